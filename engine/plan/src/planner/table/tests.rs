//! The block table against a list: records walk through their states at random.

use super::*;
use fuelrail_base::SampleId;
use fuelrail_base::prng::Prng;

/// What the table should know of a record.
#[derive(Clone, Debug)]
struct Listed {
    fetch: FetchId,
    id: BlockId,
    at: UseTime,
    probes: u32,
    /// When it came into its state, by count.
    entered: u64,
    state: State,
    others: Vec<u64>,
}

#[derive(Default)]
struct Model {
    list: Vec<Listed>,
    entries: u64,
    now: u64,
}

impl Model {
    fn enter(&mut self, fetch: FetchId, state: State) {
        self.entries += 1;
        let entries = self.entries;
        let listed = self.list.iter_mut().find(|listed| listed.fetch == fetch).expect("it is listed");
        (listed.state, listed.entered) = (state, entries);
    }

    fn of(&self, wanted: impl Fn(State) -> bool) -> impl Iterator<Item = &Listed> {
        self.list.iter().filter(move |listed| wanted(listed.state))
    }

    fn most_urgent(&self) -> Option<&Listed> {
        self.of(|state| state == State::Queued).min_by_key(|listed| (listed.probes, listed.at, listed.entered))
    }

    /// One that was sent.
    fn any_sent(&self, prng: &mut Prng) -> Option<Listed> {
        let sent: Vec<_> = self.of(|state| matches!(state, State::Sent(_) | State::LastAttempt(_))).collect();
        (!sent.is_empty()).then(|| sent[prng.below(sent.len() as u64) as usize].clone())
    }

    fn take(&mut self, table: &mut BlockTable<u64>, fetch: FetchId) {
        let at = self.list.iter().position(|listed| listed.fetch == fetch).expect("it is listed");
        let (listed, mut taken) = (self.list.swap_remove(at), table.take(fetch));
        assert_eq!((taken.id, taken.state, &taken.waiters.others), (listed.id, listed.state, &listed.others));
        assert!(table.find(fetch).is_none(), "its name is never used again");
        taken.waiters.others.clear();
        table.recycle(taken.waiters.others);
    }

    fn want(&mut self, table: &mut BlockTable<u64>, prng: &mut Prng, waiter: u64) {
        let id = BlockId { sample: SampleId(prng.below(30)), index: 0 };
        let at = UseTime(prng.below(50));
        let Err(waiter) = table.join(id, waiter, at, false) else {
            self.list.iter_mut().find(|listed| listed.id == id).expect("it is listed").others.push(waiter);
            return;
        };
        assert!(self.list.iter().all(|listed| listed.id != id), "{id:?} has a record");
        let spot = crate::spill::Spot { segment: crate::spill::SegmentId(0), place: 0, crc32c: 0 };
        let state = if prng.chance(0.3) { State::Sent(Origin::Disk(spot)) } else { State::Queued };
        let fetch = table.insert((id, 1), waiter, at, state);
        self.list.push(Listed { fetch, id, at, probes: 0, entered: 0, state, others: Vec::new() });
        self.enter(fetch, state);
    }

    fn step(&mut self, table: &mut BlockTable<u64>, prng: &mut Prng, waiter: u64) {
        self.now += prng.below(5);
        match prng.below(8) {
            0 | 1 => self.want(table, prng, waiter),
            2 | 3 => {
                if let Some((fetch, _)) = table.most_urgent() {
                    table.enter(fetch, State::Sent(Origin::Bucket));
                    self.enter(fetch, State::Sent(Origin::Bucket));
                }
            }
            4 | 5 => {
                let Some(Listed { fetch, state, .. }) = self.any_sent(prng) else { return };
                let next = match (prng.below(4), state) {
                    (0, _) => return self.take(table, fetch),
                    (1, State::Sent(Origin::Bucket)) => State::Backoff(Instant(self.now + prng.below(20))),
                    (2, State::Sent(Origin::Bucket)) => {
                        table.probed(fetch);
                        self.enter(fetch, State::Queued);
                        self.list.iter_mut().filter(|listed| listed.fetch == fetch).for_each(|it| it.probes += 1);
                        return;
                    }
                    _ => State::Queued,
                };
                table.enter(fetch, next);
                self.enter(fetch, next);
            }
            6 => self.wake(table, prng.chance(0.5)),
            _ if prng.chance(0.05) => {
                let (waiting, until) = (table.end_waiting(Duration::from_secs(1)), Duration::from_secs(1));
                let sent = |state| matches!(state, State::Sent(_) | State::LastAttempt(_));
                assert_eq!(waiting.len(), self.of(|state| !sent(state)).count());
                waiting.into_iter().for_each(|fetch| self.take(table, fetch));
                self.list.iter_mut().filter(|listed| listed.state == State::Sent(Origin::Bucket)).for_each(|listed| {
                    listed.state = State::LastAttempt(until);
                });
            }
            _ => {}
        }
    }

    fn wake(&mut self, table: &mut BlockTable<u64>, is_down: bool) {
        let now = Instant(self.now);
        table.wake(now, is_down);
        let mut due: Vec<_> = self.of(|state| matches!(state, State::Backoff(at) if at <= now)).cloned().collect();
        due.sort_by_key(|listed| match listed.state {
            State::Backoff(at) => (at, listed.fetch),
            _ => unreachable!("only what waits is due"),
        });
        due.iter().for_each(|listed| self.enter(listed.fetch, State::Queued));
        if !is_down {
            self.list.iter_mut().for_each(|listed| listed.probes = 0);
        }
    }
}

#[test]
fn records_walk_through_their_states_as_a_list_says() {
    let (mut last_attempts, mut probes) = (0, 0);
    for seed in 0..200 {
        let (mut table, mut model, mut prng) = (BlockTable::new(), Model::default(), Prng::new(seed));
        for waiter in 0..600 {
            model.step(&mut table, &mut prng, waiter);
            assert_eq!(table.most_urgent().map(|(fetch, _)| fetch), model.most_urgent().map(|listed| listed.fetch));
            let count = |wanted: fn(State) -> bool| model.of(wanted).count();
            assert_eq!(table.requested, count(State::is_requested));
            assert_eq!(table.queued(), count(|state| state == State::Queued));
            let due = model.list.iter().filter_map(|listed| match listed.state {
                State::Backoff(at) => Some(at),
                _ => None,
            });
            assert_eq!(table.backoff(), (due.clone().count(), due.min()));
            for listed in &model.list {
                assert_eq!(table.get(listed.fetch).state(), listed.state, "seed {seed}");
            }
            last_attempts += count(|state| matches!(state, State::LastAttempt(_)));
            probes += model.list.iter().filter(|listed| listed.probes > 0).count();
        }
    }
    assert!(last_attempts > 100 && probes > 100, "{last_attempts} {probes}");
}

#[test]
#[should_panic(expected = "to Backoff")]
#[cfg(debug_assertions)]
fn a_block_that_was_not_requested_cannot_fail() {
    let mut table = BlockTable::new();
    let fetch = table.insert((BlockId { sample: SampleId(0), index: 0 }, 1), (), UseTime(0), State::Queued);
    table.enter(fetch, State::Backoff(Instant(0)));
}
