//! How what is under way ends: fetches, reads and writes, and requests to other ranks, each somehow.

use super::disk::Ended;
use super::{AskId, Model};
use fuelrail_base::{BlockId, Duration, Instant, Kind};
use fuelrail_plan::planner::{Asker, Attempt, Fact, FetchId, Role};
use fuelrail_plan::schedule::UseTime;
use std::sync::Arc;

impl Model {
    /// Another rank is asked for a block.
    pub(super) fn ask_rank(
        &mut self,
        fetch: FetchId,
        ask: AskId,
        block: BlockId,
        (rank, since, at, role): (u16, Instant, UseTime, Role),
    ) {
        let homes = self.config.homes.as_ref().expect("only a run with peers asks them");
        assert!(rank != homes.rank() && since <= self.now, "{block:?} of rank {rank}");
        let asked = self.asks.get_mut(&ask).expect("a request is for an open ask");
        assert!(asked.block == block && asked.at == at, "{block:?}");
        let (is_first, is_second) = (homes.of(block) == rank, homes.second(block) == Some(rank));
        let fits = match role {
            // That it leaves may have been heard in between.
            Role::Home => (is_first || is_second) && asked.asker == Asker::Own,
            Role::Former => homes.of(block) == homes.rank() && is_second,
            Role::Leaving => asked.asker == Asker::Leaving(rank),
        };
        assert!(
            fits,
            "{block:?} of rank {rank}, {role:?} for {:?}: {:?} then {:?}",
            asked.asker,
            homes.of(block),
            homes.second(block)
        );
        asked.fetch = Some(fetch);
        self.at_peers.insert(fetch, ask);
    }

    /// A rank sends a block, or does not, by the draw or as told.
    pub(super) fn end_at_peer(&mut self, fetch: FetchId, fails: Option<bool>) {
        let ask = self.at_peers.remove(&fetch).expect("it is under way");
        let ask = self.asks.get_mut(&ask).expect("a request is for an open ask");
        ask.fetch = None;
        if fails.unwrap_or_else(|| self.prng.chance(0.4)) {
            let displaced = self.prng.chance(0.2);
            self.tell(Fact::Unserved { fetch, displaced });
        } else {
            (ask.full, ask.restored) = (true, true);
            let homes = self.config.homes.as_ref().expect("only a run with peers asks them");
            self.counted.moved += u64::from(homes.of(ask.block) == homes.rank());
            self.counted.sent += 1;
            let transit = Duration::from_micros(1 + self.prng.below(5_000));
            self.tell(Fact::Sent { fetch, transit, passed: false });
        }
    }

    /// One of the fetches ends somehow.
    pub(super) fn end_a_fetch(&mut self) {
        if let Some(&fetch) = self.at_peers.keys().next().filter(|_| self.prng.chance(0.5)) {
            return self.end_at_peer(fetch, None);
        }
        let n = self.in_flight.len() as u64;
        if n == 0 {
            return;
        }
        let (&fetch, &ask) = self.in_flight.iter().nth(self.prng.below(n) as usize).unwrap();
        let hedged = self.hedged.remove(&fetch);
        if hedged && self.prng.chance(0.3) {
            let (kind, second) = (self.prng.chance(0.7).then_some(Kind::Throttled), self.prng.chance(0.5));
            return self.tell(Fact::Halved { fetch, kind, second });
        }
        self.in_flight.remove(&fetch);
        let ask = self.asks.get_mut(&ask).unwrap();
        ask.fetch = None;
        if self.prng.chance(0.1) {
            let displaced = self.prng.chance(0.2);
            self.counted.displaced += u64::from(displaced);
            self.tell(Fact::Unserved { fetch, displaced });
        } else if self.prng.chance(self.trouble) {
            let kinds = [Kind::Network, Kind::Throttled, Kind::Server, Kind::Changed, Kind::NotFound, Kind::Stalled];
            let attempts = [Attempt::Barren, Attempt::Barren, Attempt::Progress, Attempt::Excused];
            let kind = kinds[self.prng.below(6) as usize];
            let attempt = attempts[self.prng.below(4) as usize];
            let retry_after = self.prng.chance(0.2).then(|| Duration::from_millis(self.prng.below(3_000)));
            self.counted.failures += 1;
            self.tell(Fact::Failed { fetch, kind, retry_after, attempt });
        } else {
            ask.full = true;
            let first_byte = Duration::from_micros(1 + self.prng.below(5_000));
            let total = first_byte + Duration::from_micros(self.prng.below(5_000));
            self.counted.outrun += u64::from(hedged);
            self.tell(Fact::Landed { fetch, first_byte, total, outran: hedged.then(|| total * 3) });
        }
    }

    /// One of the reads and writes ends somehow, and a segment comes if one is wanted.
    pub(super) fn work_the_disk(&mut self) {
        let catalog = Arc::clone(&self.catalog);
        let bytes = |block| catalog.block_len(block);
        match self.disk.end_one(&mut self.prng, self.trouble) {
            Some(Ended::Written(block, crc32c)) => self.disk_tier().written(block, bytes(block), crc32c),
            Some(Ended::NotWritten(block)) => self.disk_tier().write_failed(block, bytes(block)),
            Some(Ended::Read(fetch, ask)) => {
                let ask = self.asks.get_mut(&ask).expect("a read is for an open ask");
                (ask.fetch, ask.full, ask.restored) = (None, true, true);
                let bytes = bytes(ask.block);
                let total = Duration::from_micros(1 + self.prng.below(5_000));
                let writes = self.prng.below(3) as usize;
                let now = self.now;
                self.disk_tier().restored(now, bytes, total, writes);
                self.tell(Fact::Landed { fetch, first_byte: total, total, outran: None });
            }
            Some(Ended::NotRead(fetch)) => {
                let ask = self.asks.values_mut().find(|ask| ask.fetch == Some(fetch)).expect("it is open");
                ask.fetch = None;
                self.tell(Fact::Unserved { fetch, displaced: false });
            }
            None => {}
        }
        if let Some(tier) = self.planner.spill().filter(|tier| tier.wants_segment())
            && !self.disk.grant(tier)
        {
            tier.no_segment();
        }
    }
}
