//! Finding the records of a segment: which bytes of its journal to read next, and what they say.
//!
//! A segment that was not written to its end does not say how many pages its journal has, and a power cut may have taken
//! any of them. So all pages down to the last block are looked at. Reads nothing itself.

use super::{Entry, PAGE_BYTES, Record, SegmentHeader, entries, journal_page};

/// Pages asked for at a time.
const PAGES: u64 = 64;

/// A segment's journal being read, from its end down.
#[derive(Debug)]
pub struct Scan {
    len: u64,
    mark: u64,
    /// The next page to look at.
    next: u64,
    /// Places that are no records, behind the last page that has one.
    doubtful: u64,
    scanned: Scanned,
}

/// What a journal said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// Records that prove themselves and whose blocks lie where blocks may.
    pub records: Vec<Record>,
    /// Places of the journal that hold something else than a record.
    pub damaged: u64,
    /// Pages up to the last one with a record. What lies between the last block and them is not looked into: a block
    /// that was written and not recorded may be there.
    pub pages: u64,
    /// First byte behind the last block.
    pub end: u64,
}

impl Scan {
    /// Of the segment with this header.
    #[must_use]
    pub fn new(header: &SegmentHeader) -> Scan {
        let scanned = Scanned { end: PAGE_BYTES as u64, ..Scanned::default() };
        Scan { len: header.len, mark: header.mark(), next: 0, doubtful: 0, scanned }
    }

    /// What to read next: the first byte and how many. `None` when everything was.
    #[must_use]
    pub fn wants(&self) -> Option<(u64, usize)> {
        let top = journal_page(self.len, self.next)?;
        let room = (top + PAGE_BYTES as u64).checked_sub(self.scanned.end)? / PAGE_BYTES as u64;
        let pages = room.min(PAGES);
        let first = journal_page(self.len, self.next + pages.checked_sub(1)?)?;
        Some((first, pages as usize * PAGE_BYTES))
    }

    /// Takes the bytes that were wanted.
    ///
    /// # Panics
    /// When they are not as many.
    pub fn take(&mut self, bytes: &[u8]) {
        assert_eq!(self.wants().map(|wanted| wanted.1), Some(bytes.len()), "what is wanted is given");
        for page in bytes.chunks_exact(PAGE_BYTES).rev() {
            let Some(place) = journal_page(self.len, self.next).filter(|place| *place >= self.scanned.end) else {
                return;
            };
            self.next += 1;
            self.page(page, place);
        }
    }

    fn page(&mut self, page: &[u8], place: u64) {
        let Scanned { records, damaged, pages, end } = &mut self.scanned;
        for entry in entries(page) {
            match entry {
                Entry::Empty => continue,
                Entry::Record(record) if record.mark == self.mark && record.lies_before(place) => {
                    *end = (*end).max(record.place + u64::from(record.len));
                    records.push(record);
                    *pages = self.next;
                }
                Entry::Record(_) | Entry::Damaged => self.doubtful += 1,
            }
        }
        if *pages == self.next {
            *damaged += core::mem::take(&mut self.doubtful);
        }
    }

    /// What was found.
    #[must_use]
    pub fn finish(self) -> Scanned {
        self.scanned
    }
}
