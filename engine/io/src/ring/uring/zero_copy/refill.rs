//! The books of the refill ring, through which pieces of the area go back to the kernel: head and tail that wrap, and what
//! waits while it is full. Knows nothing of memory; whoever owns it writes the entries.

use std::collections::VecDeque;

use super::chunk::Chunk;

pub(super) struct Refill {
    /// A power of two.
    entries: u32,
    /// Entries written since the ring was made; wraps.
    tail: u32,
    /// Given back by us and not yet written.
    late: VecDeque<Chunk>,
}

impl Refill {
    pub(super) fn new(entries: u32) -> Refill {
        assert!(entries.is_power_of_two(), "the kernel rounds up to a power of two, and so did the asking");
        Refill { entries, tail: 0, late: VecDeque::with_capacity(entries as usize) }
    }

    /// Takes a piece to be given back; nobody reads it from here on.
    pub(super) fn take(&mut self, chunk: Chunk) {
        self.late.push_back(chunk);
    }

    /// The next entry to be written, and its place, where the kernel has read up to `head`. `None` when there is none, or no
    /// place: then the kernel has enough to go on with, and the rest goes back later.
    pub(super) fn next(&mut self, head: u32) -> Option<(u32, Chunk)> {
        if self.tail.wrapping_sub(head) >= self.entries {
            return None;
        }
        let chunk = self.late.pop_front()?;
        let place = self.tail & (self.entries - 1);
        self.tail = self.tail.wrapping_add(1);
        Some((place, chunk))
    }

    /// What the kernel is told: it may read entries up to here.
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A kernel that reads entries when it feels like it.
    struct Reader {
        places: Vec<Option<u32>>,
        head: u32,
    }

    impl Reader {
        fn flush(&mut self, refill: &mut Refill) {
            while let Some((place, chunk)) = refill.next(self.head) {
                let before = self.places[place as usize].replace(chunk.end().0);
                assert_eq!(before, None, "an entry the kernel has not read was overwritten");
            }
        }

        fn read(&mut self, tail: u32, at_most: u32, out: &mut Vec<u32>) {
            for _ in 0..at_most.min(tail.wrapping_sub(self.head)) {
                let place = self.head as usize % self.places.len();
                out.push(self.places[place].take().expect("an entry below the tail is written"));
                self.head = self.head.wrapping_add(1);
            }
        }
    }

    proptest! {
        /// Everything goes back exactly once and in order, across the numbers' wrap and however slow the kernel reads.
        #[test]
        fn everything_goes_back_once_and_in_order(
            bits in 0u32..5,
            start in prop_oneof![Just(0u32), (u32::MAX - 40)..=u32::MAX],
            steps in proptest::collection::vec((0u32..9, 0u32..9), 1..60),
        ) {
            let mut refill = Refill::new(1 << bits);
            refill.tail = start;
            let mut reader = Reader { places: vec![None; 1 << bits], head: start };
            let (mut given, mut read) = (0, Vec::new());
            for (give, take) in steps {
                for _ in 0..give {
                    refill.take(Chunk::new(given, 1));
                    given += 1;
                }
                reader.flush(&mut refill);
                prop_assert!(refill.tail().wrapping_sub(reader.head) <= 1 << bits);
                reader.read(refill.tail(), take, &mut read);
            }
            while (read.len() as u32) < given {
                reader.flush(&mut refill);
                reader.read(refill.tail(), 1, &mut read);
            }
            prop_assert_eq!(read, (0..given).collect::<Vec<_>>());
        }
    }
}
