//! The operations of the spill stage: from its queues into the ring, and back out of it.

use super::flight::{Block, Flight, Read, SpillOutcome, Write};
use super::manager::SegmentRequest;
use super::{BOUNCES, COMPANY_PATIENCE, JOURNAL_PAGES, READS_MAX, SpillStage};
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::limits::DIRECT_BYTES_MIN;
use fuelrail_base::{Duration, Error, Instant, Kind};
use fuelrail_io::{DIRECT_UNIT_BYTES_MIN, Done, Full, Op, ReadPin, Ring, Window};
use fuelrail_wire::block::Record;

impl SpillStage {
    /// Submits what is due: all reads there is room for, then writes as far as `writes_max` allows, and records and
    /// short blocks that have waited long enough; `all` writes everything.
    pub(crate) fn pump<R: Ring>(&mut self, ring: &mut R, now: Instant, writes_max: usize, all: bool) {
        self.flights.now = now;
        let mut room = true;
        while room && self.reading < READS_MAX && !self.reads.is_empty() {
            room = self.pump_read(ring);
        }
        let before = if all { Instant(u64::MAX) } else { before(now) };
        while room && self.writing < writes_max {
            self.stats.copied_bytes += self.gather.fill(now);
            if let Some((segment, stretch, pin, start)) = self.gather.due(before) {
                room = self.begin_gather(ring, now, (segment, stretch, pin, start));
            } else if let Some(write) = self.writes.pop_front() {
                room = self.begin_write(ring, write);
            } else {
                break;
            }
        }
        self.pump_journals(ring, before);
        self.segments.reap(ring);
        let gathered = self.gather.since().filter(|_| room && self.writing < writes_max);
        let recorded = self.segments.since().filter(|_| !self.pages.is_empty());
        self.oldest = [gathered, recorded].into_iter().flatten().min();
        self.look_for_unanswered(now);
    }

    /// Reports the segment of an operation that has been under way for very long: its disk does not answer.
    fn look_for_unanswered(&mut self, now: Instant) {
        if now < self.looks_at || self.flights.is_empty() {
            return;
        }
        self.looks_at = now.after(LOOK_AGAIN);
        if let Some((begun, segment)) = self.flights.oldest()
            && now.since(begun) >= UNANSWERED
        {
            let key = self.segments.get(segment).file.key;
            self.request(SegmentRequest::Unanswered(key, now.since(begun)));
        }
    }

    /// Begins the first queued read. False when it has to wait longer.
    fn pump_read<R: Ring>(&mut self, ring: &mut R) -> bool {
        let Some(mut read) = self.reads.pop_front() else { return false };
        let file = match self.segments.open(ring, read.segment) {
            Ok(file) => file,
            Err(error) => {
                self.fail_segment(read.segment, error);
                self.lose(read);
                return true;
            }
        };
        let window = read.window.take().expect("a read that waits has its window");
        let (op, token) = if window.len() as u64 >= DIRECT_BYTES_MIN {
            let offset = read.spot.place + window.filled() as u64;
            (Op::ReadAt { file, offset, into: window }, self.flights.insert(Flight::Read(read)))
        } else {
            let Some(mut bounce) = self.bounces.pop() else {
                read.window = Some(window);
                self.reads.push_front(read);
                return false;
            };
            let offset = read.spot.place / self.unit * self.unit;
            let skip = (read.spot.place - offset) as usize;
            let rest = bounce.split_off((skip + window.len()).next_multiple_of(self.unit as usize));
            read.window = Some(window);
            (Op::ReadAt { file, offset, into: bounce }, self.flights.insert(Flight::Bounce { read, rest, skip }))
        };
        let Err(Full(op)) = ring.push(op, token as u64) else {
            self.reading += 1;
            return true;
        };
        // The ring has no room: the read is queued again.
        let Op::ReadAt { into, .. } = op else { unreachable!("a read comes back as one") };
        match self.flights.remove(token) {
            Flight::Read(read) => self.reads.push_front(Read { window: Some(into), ..read }),
            Flight::Bounce { read, rest, .. } => {
                self.put_bounce_back(into, rest);
                self.reads.push_front(read);
            }
            _ => unreachable!("the token is a read's"),
        }
        false
    }

    fn put_bounce_back(&mut self, mut bounce: Window, rest: Window) {
        bounce.rewind(0);
        let whole = bounce.join(rest).unwrap_or_else(|_| unreachable!("split off this one"));
        self.bounces.push(whole);
        debug_assert!(self.bounces.len() <= BOUNCES, "each comes back once");
    }

    fn begin_write<R: Ring>(&mut self, ring: &mut R, write: Write) -> bool {
        let Write { block, pin, start } = write;
        let file = match self.segments.open(ring, block.segment) {
            Ok(file) => file,
            Err(error) => {
                self.fail_segment(block.segment, error);
                self.unspilled(block);
                return true;
            }
        };
        let token = self.flights.insert(Flight::Block(block)) as u64;
        let op = Op::WriteAt { file, offset: block.place + start as u64, from: pin, start };
        if let Err(Full(op)) = ring.push(op, token) {
            let Op::WriteAt { from, .. } = op else { unreachable!("a write comes back as one") };
            self.flights.remove(token as usize);
            self.writes.push_front(Write { block, pin: from, start });
            return false;
        }
        self.writing += 1;
        true
    }

    fn begin_gather<R: Ring>(
        &mut self,
        ring: &mut R,
        now: Instant,
        (segment, stretch, pin, start): (usize, u64, ReadPin, usize),
    ) -> bool {
        let pushed = match self.segments.open(ring, segment) {
            Ok(file) => {
                let token = self.flights.insert(Flight::Gather(segment)) as u64;
                let op = Op::WriteAt { file, offset: stretch + start as u64, from: pin, start };
                ring.push(op, token).map(drop).map_err(|Full(op)| {
                    self.flights.remove(token as usize);
                    drop(op);
                    None
                })
            }
            Err(error) => {
                drop(pin);
                Err(Some(error))
            }
        };
        match pushed {
            Ok(()) => {
                self.writing += 1;
                self.segments.get(segment).busy += 1;
                true
            }
            // This run does not use these blocks from disk then; a full ring is rare.
            Err(error) => {
                if let Some(error) = error {
                    self.fail_segment(segment, error);
                }
                self.gather_ended(now, false);
                true
            }
        }
    }

    fn pump_journals<R: Ring>(&mut self, ring: &mut R, before: Instant) {
        while let Some(mut window) = self.pages.pop() {
            let Some((segment, number, offset, bytes)) = self.segments.due(before) else {
                self.pages.push(window);
                return;
            };
            window.rewind(0);
            window.put(bytes);
            let pin = window.read_pin();
            let Ok(file) = self.segments.open(ring, segment) else {
                drop(pin);
                self.page_ended(segment, number, window);
                continue;
            };
            let token = self.flights.insert(Flight::Page { segment, number, window }) as u64;
            let op = Op::WriteAt { file, offset, from: pin, start: 0 };
            self.segments.get(segment).busy += 1;
            if let Err(Full(op)) = ring.push(op, token) {
                drop(op);
                self.ended_page(token as usize);
                return;
            }
        }
    }

    fn ended_page(&mut self, token: usize) {
        let Flight::Page { segment, number, window } = self.flights.remove(token) else {
            unreachable!("the token is a page's")
        };
        self.segments.get(segment).busy -= 1;
        self.page_ended(segment, number, window);
    }

    fn page_ended(&mut self, segment: usize, number: u64, window: Window) {
        self.segments.recorded(segment, number);
        self.pages.push(window);
        debug_assert!(self.pages.len() <= JOURNAL_PAGES, "each comes back once");
    }

    /// Handles the completion of an operation on a file.
    pub(crate) fn done<R: Ring>(&mut self, ring: &mut R, now: Instant, done: Done) {
        let token = done.token as usize;
        match (done.op, done.result) {
            (Op::ReadAt { mut into, offset, file }, result) => {
                let read = result.as_ref().copied().unwrap_or(0);
                self.stats.read_bytes += read as u64;
                let mut result = result.map(drop);
                let whole = into.filled() >= self.flights.get(token).bytes_due(&into);
                if !whole && result.is_ok() {
                    if may_go_on(read) {
                        // The rest of it, which the ring has room for: one operation has just left.
                        let op = Op::ReadAt { file, offset: offset + read as u64, into };
                        match ring.push(op, done.token) {
                            Ok(_) => return,
                            Err(Full(Op::ReadAt { into: unread, .. })) => into = unread,
                            Err(_) => unreachable!("a read comes back as one"),
                        }
                    }
                    result = Err(EIO);
                }
                self.reading -= 1;
                self.read_came_back(now, token, into, result);
            }
            (Op::WriteAt { from, start, offset, file }, result) => {
                let wrote = result.as_ref().copied().unwrap_or(0);
                self.stats.written_bytes += wrote as u64;
                if may_go_on(wrote) && start + wrote < from.len() {
                    // The rest of it, which the ring has room for: one operation has just left.
                    let op = Op::WriteAt { file, offset: offset + wrote as u64, from, start: start + wrote };
                    if ring.push(op, done.token).is_ok() {
                        return;
                    }
                    return self.write_came_back(now, token, Err(EIO));
                }
                let whole = wrote > 0 && start + wrote == from.len();
                drop(from);
                self.write_came_back(now, token, if whole { Ok(()) } else { Err(result.err().unwrap_or(EIO)) });
            }
            (op, _) => unreachable!("the stage does not submit {op:?}"),
        }
    }

    /// A read ended: with all bytes of its block, or with an error.
    fn read_came_back(&mut self, now: Instant, token: usize, into: Window, result: Result<(), i32>) {
        let read = match self.flights.remove(token) {
            Flight::Read(read) => Read { window: Some(into), ..read },
            Flight::Bounce { mut read, rest, skip } => {
                let window = read.window.as_mut().expect("its window waits here");
                if result.is_ok() {
                    self.stats.copied_bytes += window.put(&into.bytes()[skip..skip + window.len()]) as u64;
                }
                self.put_bounce_back(into, rest);
                read
            }
            _ => unreachable!("the token is a read's"),
        };
        match result {
            Ok(()) => self.prove(now, read),
            Err(errno) => self.read_failed(read, errno),
        }
    }

    /// Verifies a complete block against its checksum.
    fn prove(&mut self, now: Instant, read: Read) {
        let window = read.window.as_ref().expect("it came back");
        if crc32c::crc32c(window.bytes()) != read.spot.crc32c && !canary::on(Mistake::SpillTrusts) {
            let key = self.segments.get(read.segment).file.key;
            self.request(SegmentRequest::Rotten(key, read.spot.place));
            return self.lose(read);
        }
        let Read { fetch, block, segment, window, began, writes, .. } = read;
        let total = now.since(began);
        let times = if writes == 0 { &mut self.stats.read_alone } else { &mut self.stats.read_beside };
        times.record(total);
        self.segments.ended(segment, true);
        let (window, proof) = (window.expect("seen above"), self.proof(segment, block));
        self.segments.get(segment).busy -= 1;
        self.outcomes.push_back(SpillOutcome::Restored { fetch, window, proof, total, writes });
    }

    fn read_failed(&mut self, read: Read, errno: i32) {
        self.failed(read.segment, "reading", errno);
        self.lose(read);
    }

    fn lose(&mut self, read: Read) {
        let Read { fetch, segment, window, .. } = read;
        self.segments.get(segment).busy -= 1;
        let mut window = window.expect("a lost read has its window");
        window.rewind(0);
        self.outcomes.push_back(SpillOutcome::Lost { fetch, window });
    }

    fn write_came_back(&mut self, now: Instant, token: usize, result: Result<(), i32>) {
        let well = result.is_ok();
        match self.flights.get(token) {
            &Flight::Block(block) => {
                self.flights.remove(token);
                self.writing -= 1;
                self.end_write(block.segment, result);
                if well { self.spilled(now, block) } else { self.unspilled(block) }
            }
            &Flight::Gather(segment) => {
                self.flights.remove(token);
                self.writing -= 1;
                self.end_write(segment, result);
                self.segments.get(segment).busy -= 1;
                self.gather_ended(now, well);
            }
            &Flight::Page { segment, .. } => {
                self.end_write(segment, result);
                self.ended_page(token);
            }
            Flight::Read(_) | Flight::Bounce { .. } => unreachable!("the token is a write's"),
        }
    }

    fn end_write(&mut self, segment: usize, result: Result<(), i32>) {
        match result {
            Ok(()) => drop(self.segments.ended(segment, true)),
            Err(errno) => self.failed(segment, "writing", errno),
        }
    }

    fn gather_ended(&mut self, now: Instant, well: bool) {
        let mut blocks = core::mem::take(&mut self.gathered);
        self.gather.wrote(&mut blocks);
        for block in blocks.drain(..) {
            if well { self.spilled(now, block) } else { self.unspilled(block) }
        }
        self.gathered = blocks;
    }

    fn spilled(&mut self, now: Instant, block: Block) {
        let Block { id, segment, place, len, crc32c, promised } = block;
        let first = self.objects.catalog().block_first(id);
        let fingerprint = self.objects.fingerprint(id.sample);
        let mounted = self.segments.get(segment);
        mounted.busy -= 1;
        let mark = mounted.file.mark;
        if let Some(fingerprint) = fingerprint {
            let place = if canary::on(Mistake::JournalMisplaces) { place + self.unit } else { place };
            let record = Record { fingerprint, first, len, place, crc32c, promised, sequence: 0, mark };
            self.segments.record(now, segment, &record);
        }
        self.outcomes.push_back(SpillOutcome::Spilled { block: id, crc32c: Some(crc32c) });
    }

    fn unspilled(&mut self, block: Block) {
        self.segments.get(block.segment).busy -= 1;
        self.outcomes.push_back(SpillOutcome::Spilled { block: block.id, crc32c: None });
    }

    fn failed(&mut self, segment: usize, doing: &str, errno: i32) {
        self.stats.failures += 1;
        let path = self.segments.get(segment).file.path.display().to_string();
        let error = Error::from_errno(Kind::File, &format!("{doing} {path}"), errno);
        let error = match errno {
            ECANCELED => {
                error.with_hint("the kernel could start no thread for it: raise pids.max of the cgroup, or ulimit -u")
            }
            _ => error,
        };
        if self.segments.ended(segment, false) {
            self.fail_segment(segment, error);
        } else {
            let key = self.segments.get(segment).file.key;
            self.request(SegmentRequest::Failed(key, error));
        }
    }

    /// Gives the segment up.
    fn fail_segment(&mut self, segment: usize, error: Error) {
        let (id, key) = (self.segments.get(segment).id, self.segments.get(segment).file.key);
        if self.segments.key(id) == Some(segment) {
            self.request(SegmentRequest::Failed(key, error));
            self.segments.give_up(segment);
            self.outcomes.push_back(SpillOutcome::Broken(id));
        }
    }
}

/// Records and short blocks older than this are written without waiting for others.
fn before(now: Instant) -> Instant {
    Instant(now.0.saturating_sub(u64::try_from(COMPANY_PATIENCE.as_nanos()).unwrap_or(u64::MAX)))
}

/// An operation that takes longer is reported; …
const UNANSWERED: Duration = Duration::from_secs(20);
/// … so often is looked for one.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Whether a transfer that came to so many bytes is continued after them. A disk may work in smaller units than its segment was
/// written in.
fn may_go_on(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(DIRECT_UNIT_BYTES_MIN as usize)
}

/// What the kernel gives an operation that would wait where it can start no thread to wait.
const ECANCELED: i32 = 125;
/// What a transfer that ended early counts as: the file is shorter than its journal says.
const EIO: i32 = 5;
