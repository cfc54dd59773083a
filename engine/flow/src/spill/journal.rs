//! The journal of a segment that is being written: records of blocks that are on disk, gathered into pages.
//!
//! A page is written when it is full, or a moment after its first record. It is written whole each time, and what it held
//! before it holds still, so a torn write of it loses no record that was there. Owns the pages that are not on disk yet.

use fuelrail_base::Instant;
use fuelrail_wire::block::{PAGE_BYTES, RECORD_BYTES, Record};
use std::collections::VecDeque;

const PAGE_RECORDS: usize = PAGE_BYTES / RECORD_BYTES;

struct Page {
    number: u64,
    bytes: Box<[u8; PAGE_BYTES]>,
    records: usize,
    /// Records of it that are on disk or on their way.
    written: usize,
    /// A write of it is under way.
    busy: bool,
    since: Instant,
}

impl Page {
    fn is_due(&self, before: Instant) -> bool {
        let waits = !self.busy && self.written < self.records;
        waits && (self.records == PAGE_RECORDS || self.since <= before)
    }
}

/// The pages of one segment's journal that are not finished.
pub(super) struct Journal {
    pages: VecDeque<Page>,
    next: u64,
    sequence: u32,
}

impl Journal {
    /// A journal that goes on behind so many whole pages.
    pub(super) fn new(pages: u64) -> Journal {
        Journal { pages: VecDeque::new(), next: pages, sequence: 0 }
    }

    /// Adds a record.
    pub(super) fn add(&mut self, now: Instant, record: &Record) {
        if self.pages.back().is_none_or(|page| page.records == PAGE_RECORDS) {
            let bytes = Box::new([0; PAGE_BYTES]);
            self.pages.push_back(Page { number: self.next, bytes, records: 0, written: 0, busy: false, since: now });
            self.next += 1;
        }
        let page = self.pages.back_mut().expect("there is one now");
        if page.written == page.records {
            page.since = now;
        }
        let record = Record { sequence: self.sequence, ..*record };
        self.sequence += 1;
        let at = page.records * RECORD_BYTES;
        page.bytes[at..at + RECORD_BYTES].copy_from_slice(&record.encode());
        page.records += 1;
    }

    /// Whether a page is full or has waited since `before`.
    pub(super) fn has_due(&self, before: Instant) -> bool {
        self.pages.iter().any(|page| page.is_due(before))
    }

    /// The next page to write, if one is due: its number and bytes. It is busy from now on.
    pub(super) fn due(&mut self, before: Instant) -> Option<(u64, &[u8])> {
        let page = self.pages.iter_mut().find(|page| page.is_due(before))?;
        (page.busy, page.written) = (true, page.records);
        Some((page.number, &page.bytes[..]))
    }

    /// Since when the oldest record waits for company. One whose page is being written waits for that write.
    pub(super) fn since(&self) -> Option<Instant> {
        self.pages.iter().filter(|p| !p.busy && p.written < p.records).map(|p| p.since).min()
    }

    /// The write of a page ended. A page that failed is not tried again: its blocks are fetched anew by the next run.
    pub(super) fn wrote(&mut self, number: u64) {
        if let Some(page) = self.pages.iter_mut().find(|page| page.number == number) {
            page.busy = false;
        }
        let finished = |p: &Page| !p.busy && p.written == PAGE_RECORDS;
        while self.pages.front().is_some_and(finished) {
            self.pages.pop_front();
        }
    }

    /// Nothing is on its way or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.pages.iter().all(|page| !page.busy && page.written == page.records)
    }
}
