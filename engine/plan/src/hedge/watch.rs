//! Requests under way, in the order they were sent, each found by its number: a list threaded through a table, so that neither
//! sending nor landing costs a search.

use fuelrail_base::Instant;

/// No request.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    sent: Instant,
    before: u32,
    behind: u32,
    present: bool,
}

const EMPTY: Link = Link { sent: Instant::ZERO, before: NONE, behind: NONE, present: false };

#[derive(Clone, Debug)]
pub(super) struct Watch {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { links: Vec::new(), first: NONE, last: NONE }
    }
}

impl Watch {
    /// Puts a request at the end. One that is there already moves.
    pub(super) fn insert(&mut self, number: u32, sent: Instant) {
        self.remove(number);
        let at = number as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, EMPTY);
        }
        self.links[at] = Link { sent, before: self.last, behind: NONE, present: true };
        match self.last {
            NONE => self.first = number,
            last => self.links[last as usize].behind = number,
        }
        self.last = number;
    }

    /// Takes a request out, if it is there.
    pub(super) fn remove(&mut self, number: u32) {
        let Some(link) = self.links.get_mut(number as usize).filter(|link| link.present) else { return };
        let Link { before, behind, .. } = core::mem::replace(link, EMPTY);
        match before {
            NONE => self.first = behind,
            before => self.links[before as usize].behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => self.links[behind as usize].before = before,
        }
    }

    /// When the oldest was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.links.get(self.first as usize).map(|link| link.sent)
    }

    /// Takes the oldest out.
    pub(super) fn pop(&mut self) -> Option<(u32, Instant)> {
        let sent = self.oldest()?;
        let number = self.first;
        self.remove(number);
        Some((number, sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::prng::Prng;

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
