//! The ledger of segments: how full each is, how much of it is still needed, when it was used.
//!
//! A segment is only ever appended to: blocks grow from its head page up, the journal's pages from its end down, and it is
//! full where they meet. Room of a block that is no longer needed is freed with the whole segment. Owns numbers only.

use super::index::SegmentId;
use crate::schedule::UseTime;
use fuelrail_base::limits::{SEGMENT_PAGE_BYTES, SEGMENT_RECORD_BYTES};

/// Bytes of the page a segment begins with, and of a page of its journal.
pub const PAGE_BYTES: u64 = SEGMENT_PAGE_BYTES as u64;
/// Journal records a page holds.
pub const PAGE_RECORDS: u64 = (SEGMENT_PAGE_BYTES / SEGMENT_RECORD_BYTES) as u64;
/// Most segments one shard knows at a time: their numbers are 16 bits wide, and one is kept back.
pub const SEGMENTS_MAX: usize = u16::MAX as usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Empty and ours: not written to yet.
    Spare,
    /// Being appended to.
    Open,
    /// Ours, and not written to any more.
    Sealed,
    /// Another process's, or on a read-only disk: read, never trimmed.
    Foreign,
    /// Given up: index entries that name it are void and being swept.
    Retired,
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) state: State,
    /// Retired and still in use by flow: its number must not be given to another.
    pub(super) held: bool,
    pub(super) len: u64,
    /// First byte after the last block.
    end: u64,
    records: u64,
    /// Bytes of the blocks that the index still has here.
    pub(super) live_bytes: u64,
    /// Blocks on their way here: until they are written, the segment's value is not known.
    pub(super) writing: u32,
    /// Grows with every segment: the age.
    pub(super) serial: u64,
    pub(super) used_at: UseTime,
    /// Bytes its value is divided by: its length, or, once full, what was appended. An end that stays empty is no reason to trim:
    /// the next segment would have one too.
    pub(super) room_bytes: u64,
    /// Uses per epoch and byte expected of what lies here, as of the last valuation, and the one being summed up.
    pub(super) value: f64,
    pub(super) summing: f64,
}

impl Segment {
    /// Takes room for a block of `bytes` at a multiple of `step`, not across a multiple of `within`: its place. `None` when it
    /// does not fit any more.
    fn append(&mut self, bytes: u64, step: u64, within: u64) -> Option<u64> {
        let mut place = self.end.next_multiple_of(step);
        if place % within > within.checked_sub(bytes)? {
            place = place.next_multiple_of(within);
        }
        let end = place.checked_add(bytes)?.checked_next_multiple_of(step)?;
        let journal = (self.records + 1).div_ceil(PAGE_RECORDS) * PAGE_BYTES;
        if end.checked_add(journal)? > self.len {
            return None;
        }
        self.end = end;
        self.records += 1;
        Some(place)
    }

    /// Continues after what was written earlier.
    pub(super) fn resume(&mut self, end: u64, records: u64) {
        (self.end, self.records) = (end, records.next_multiple_of(PAGE_RECORDS));
    }

    /// Leaves the room up to the next multiple of `step` empty.
    pub(super) fn skip_to(&mut self, step: u64) {
        self.end = self.end.next_multiple_of(step);
    }

    /// Nothing more fits.
    pub(super) fn seal(&mut self) {
        self.state = State::Sealed;
        self.room_bytes = self.end;
    }

    /// Ours, full, and all of it written: what can be trimmed.
    pub(super) fn is_settled(&self) -> bool {
        self.state == State::Sealed && self.writing == 0
    }

    /// Share of its room that is taken, in `0..=1`.
    pub(super) fn fullness(&self) -> f64 {
        (self.end + self.records.div_ceil(PAGE_RECORDS) * PAGE_BYTES) as f64 / self.len as f64
    }
}

/// The segments of one shard.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    segments: Vec<Option<Segment>>,
    serials: u64,
}

impl Ledger {
    /// Adds a segment of `len` bytes. `None` when there are [`SEGMENTS_MAX`] of them.
    pub(super) fn mount(&mut self, len: u64, state: State) -> Option<SegmentId> {
        let at = match self.segments.iter().position(Option::is_none) {
            Some(at) => at,
            None if self.segments.len() < SEGMENTS_MAX => {
                self.segments.push(None);
                self.segments.len() - 1
            }
            None => return None,
        };
        self.serials += 1;
        self.segments[at] = Some(Segment {
            state,
            held: false,
            len,
            end: PAGE_BYTES,
            records: 0,
            live_bytes: 0,
            writing: 0,
            serial: self.serials,
            used_at: UseTime(0),
            room_bytes: len,
            value: 0.0,
            summing: 0.0,
        });
        Some(SegmentId(at as u16))
    }

    /// A segment that is known and not retired.
    pub(super) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(usize::from(id.0))?.as_ref().filter(|segment| segment.state != State::Retired)
    }

    /// The same, to change.
    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.segments.get_mut(usize::from(id.0))?.as_mut().filter(|segment| segment.state != State::Retired)
    }

    /// As [`Segment::append`] on this one.
    pub(super) fn append(&mut self, id: SegmentId, bytes: u64, step: u64, within: u64) -> Option<u64> {
        self.get_mut(id)?.append(bytes, step, within)
    }

    /// Flow no longer uses a retired segment.
    pub(super) fn let_go(&mut self, id: SegmentId) {
        if let Some(Some(segment)) = self.segments.get_mut(usize::from(id.0)) {
            segment.held = false;
        }
    }

    /// Frees retired segments that flow no longer uses and no index entry references.
    pub(super) fn reap(&mut self) {
        for segment in &mut self.segments {
            if segment.as_ref().is_some_and(|s| s.state == State::Retired && !s.held) {
                *segment = None;
            }
        }
    }

    /// Segments that are known and not retired.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        let known = self.segments.iter().enumerate();
        known.filter_map(|(at, s)| Some((SegmentId(at as u16), s.as_ref().filter(|s| s.state != State::Retired)?)))
    }

    /// The same, to change.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.segments.iter_mut().flatten().filter(|s| s.state != State::Retired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_journal_meet_and_never_cross() {
        for (bytes, step, within) in
            [(784, 16, 65_536), (100_000, 512, u64::MAX), (112_345, 4096, u64::MAX), (1, 16, 4096)]
        {
            let mut ledger = Ledger::default();
            let id = ledger.mount(1 << 20, State::Open).unwrap();
            let (mut end, mut blocks) = (PAGE_BYTES, 0u64);
            while let Some(place) = ledger.append(id, bytes, step, within) {
                assert!(place >= end && place.is_multiple_of(step));
                assert_eq!(place / within, (place + bytes - 1) / within, "it lies across a boundary");
                (end, blocks) = (place + bytes, blocks + 1);
                assert!(end <= (1 << 20) - blocks.div_ceil(PAGE_RECORDS) * PAGE_BYTES, "block {blocks}");
            }
            let one_more = (blocks + 1).div_ceil(PAGE_RECORDS) * PAGE_BYTES + bytes.next_multiple_of(step);
            assert!(end + one_more > (1 << 20), "it is full: {blocks} blocks of {bytes} bytes end at {end}");
            assert_eq!(ledger.append(id, u64::MAX - 5, step, u64::MAX), None);
        }
    }

    #[test]
    fn numbers_of_retired_segments_are_used_again_when_reaped() {
        let mut ledger = Ledger::default();
        let ids: Vec<_> = (0..3).map(|_| ledger.mount(1 << 20, State::Spare).unwrap()).collect();
        let retired = ledger.get_mut(ids[1]).unwrap();
        (retired.state, retired.held) = (State::Retired, true);
        ledger.reap();
        assert!(ledger.get(ids[1]).is_none());
        assert_eq!(
            ledger.mount(1 << 20, State::Spare),
            Some(SegmentId(3)),
            "a retired one's entries may still be there"
        );
        ledger.let_go(ids[1]);
        ledger.reap();
        assert_eq!(ledger.mount(1 << 20, State::Spare), Some(ids[1]));
    }
}
