//! Requests under way, in the order they were sent, each found by its number: neither sending nor landing costs a search.

use fuelrail_base::Instant;
use std::collections::VecDeque;

/// Room for numbers and in line to begin with: which of its numbers a shard's requests get first is chance, and a warm shard allocates nothing.
const PLACES_AT_START: usize = 256;

#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// When each was sent, by number.
    sent: Vec<Option<Instant>>,
    /// In the order they were sent; entries that disagree with [`Watch::sent`] have left. The first one has not.
    line: VecDeque<(Instant, u32)>,
}

impl Watch {
    /// Puts a request at the end. One that is there already moves.
    pub(super) fn insert(&mut self, number: u32, sent: Instant) {
        self.remove(number);
        let at = number as usize;
        if self.sent.len() <= at {
            self.sent.resize((at + 1).max(PLACES_AT_START), None);
        }
        self.sent[at] = Some(sent);
        if self.line.len() == self.line.capacity() {
            // What has left makes room first: a warm line allocates nothing.
            self.line.retain(|(sent, number)| self.sent[*number as usize] == Some(*sent));
            if 2 * self.line.len() >= self.line.capacity() {
                self.line.reserve(self.line.len().max(PLACES_AT_START));
            }
        }
        self.line.push_back((sent, number));
    }

    /// Takes a request out, if it is there.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(sent) = self.sent.get_mut(number as usize) {
            *sent = None;
        }
        while self.line.front().is_some_and(|(sent, number)| self.sent[*number as usize] != Some(*sent)) {
            self.line.pop_front();
        }
    }

    /// When the oldest was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.line.front().map(|(sent, _)| *sent)
    }

    /// Takes the oldest out.
    pub(super) fn pop(&mut self) -> Option<(u32, Instant)> {
        let &(sent, number) = self.line.front()?;
        self.remove(number);
        Some((number, sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::prng::Prng;

    #[test]
    fn a_number_that_comes_late_allocates_nothing() {
        let mut watch = Watch::default();
        watch.insert(3, Instant(1));
        let room = |watch: &Watch| (watch.sent.capacity(), watch.line.capacity());
        let before = room(&watch);
        watch.insert(PLACES_AT_START as u32 - 1, Instant(2));
        assert_eq!(room(&watch), before);
    }

    #[test]
    fn it_is_a_queue_from_which_any_may_leave() {
        let (mut watch, mut model, mut prng) = (Watch::default(), Vec::new(), Prng::new(2));
        for step in 0..20_000u64 {
            let number = prng.below(40) as u32;
            match prng.below(3) {
                0 => {
                    watch.insert(number, Instant(step));
                    model.retain(|(other, _)| *other != number);
                    model.push((number, Instant(step)));
                }
                1 => {
                    watch.remove(number);
                    model.retain(|(other, _)| *other != number);
                }
                _ => {
                    let oldest = (!model.is_empty()).then(|| model.remove(0));
                    assert_eq!(watch.pop(), oldest, "step {step}");
                }
            }
            assert_eq!(watch.oldest(), model.first().map(|(_, sent)| *sent));
        }
    }
}
