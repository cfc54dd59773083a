//! Checks of files: what was written is read, the end is the end, and no operation is lost or keeps its memory.

use std::collections::BTreeMap;

use fuelrail_base::Kind;
use fuelrail_base::limits::RING_FILES_MAX;
use fuelrail_base::prng::Prng;

use super::stage::{Stage, received};
use super::venue::{Check, Script, Venue, Verdict, ensure, recital};
use crate::lent::Lent;
use crate::ring::file::FileOptions;
use crate::ring::{Done, FileId, Op, Ring};
use crate::slot::{Filling, Window};

pub(super) fn checks<V: Venue>() -> Vec<Check<V>> {
    vec![
        ("what is written is read", what_is_written_is_read),
        ("a file ends where it ends", a_file_ends_where_it_ends),
        ("files open as they are asked to", files_open_as_they_are_asked_to),
        ("files run out and come back", files_run_out_and_come_back),
        ("many file operations at once", many_file_operations_at_once),
        ("direct access is aligned or refused", direct_access_is_aligned_or_refused),
        ("file operations are cancelled or done", file_operations_are_cancelled_or_done),
        ("a file closed at work gives all back", a_file_closed_at_work_gives_all_back),
        ("sockets and files together", sockets_and_files_together),
        ("dropped over files, memory is left alone", dropped_over_files_memory_is_left_alone),
    ]
}

/// To be made and written.
pub(super) const NEW: FileOptions = FileOptions { write: true, create: true, direct: false, len: None };

impl<V: Venue> Stage<'_, V> {
    /// A new empty file.
    pub(super) fn new_file(&mut self) -> Result<FileId, String> {
        let path = self.venue.file();
        self.ring.open(&path, &NEW).map_err(|error| error.to_string())
    }

    /// These bytes, lent, and the filling they lie in.
    pub(super) fn holding(&mut self, bytes: &[u8]) -> Result<(Lent, Filling), String> {
        let (mut window, filling) = self.room(bytes.len())?;
        window.put(bytes);
        Ok((window.lend(), filling))
    }

    /// An empty window of `len` bytes.
    pub(super) fn room(&mut self, len: usize) -> Result<(Window, Filling), String> {
        let mut filling = self.slot(len)?.fill();
        let window = filling.carve(len).ok_or("a fresh filling has room")?;
        Ok((window, filling))
    }

    /// An empty window of `len` bytes, padded to so many, at an address that suits every disk.
    pub(super) fn aligned(&mut self, len: usize, padded: usize) -> Result<(Window, Filling), String> {
        const BLOCK: usize = 4096;
        let slot = self.slot(padded + BLOCK)?;
        let before = slot.as_ptr().align_offset(BLOCK);
        let mut filling = slot.fill();
        filling.skip(before);
        let window = filling.carve_padded(len, padded).ok_or("room behind the first aligned place")?;
        Ok((window, filling))
    }

    /// Writes all of `bytes`, with as many operations as it takes.
    pub(super) fn write_all(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Verdict {
        let (mut lent, _filling) = self.holding(bytes)?;
        let mut start = 0;
        while start < bytes.len() {
            self.push(Op::WriteAt { file, offset: offset + start as u64, from: lent, start })?;
            let done = self.next()?;
            let n = done.result.map_err(|errno| format!("write: error {errno}"))?;
            let Op::WriteAt { from, .. } = done.op else { return Err("a write came back as something else".into()) };
            ensure!(n > 0 && n <= bytes.len() - start, "write of {} took {n}", bytes.len() - start);
            ensure!(from.bytes() == bytes, "a write changed its bytes");
            (lent, start) = (from, start + n);
        }
        Ok(())
    }

    /// Reads once; the bytes read, or the error number.
    fn read_once(&mut self, file: FileId, offset: u64, len: usize) -> Result<Result<Vec<u8>, i32>, String> {
        let (into, _filling) = self.room(len)?;
        self.push(Op::ReadAt { file, offset, into })?;
        read(self.next()?, 0)
    }

    /// Reads until `len` bytes or the end.
    pub(super) fn read_all(&mut self, file: FileId, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let more = self.read_once(file, offset + bytes.len() as u64, len - bytes.len())?;
            let more = more.map_err(|errno| format!("read: error {errno}"))?;
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
        }
        Ok(bytes)
    }
}

/// The bytes a completed read brought behind the `before` there were, after checking its accounting.
pub(super) fn read(done: Done, before: usize) -> Result<Result<Vec<u8>, i32>, String> {
    let Op::ReadAt { into, .. } = done.op else { return Err("a read came back as something else".into()) };
    let bytes = into.bytes()[before..].to_vec();
    match done.result {
        Ok(n) => ensure!(n == bytes.len(), "{n} reported, the cursor moved over {}", bytes.len()),
        Err(errno) => ensure!(bytes.is_empty(), "error {errno} with {} bytes accounted for", bytes.len()),
    }
    Ok(done.result.map(|_| bytes))
}

pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| recital(seed, i)).collect()
}

fn what_is_written_is_read<V: Venue>(venue: &mut V) -> Verdict {
    const LEN: usize = 300_007;
    let mut stage = Stage::new(venue, 16)?;
    let file = stage.new_file()?;
    let bytes = content(4, LEN);
    stage.write_all(file, 0, &bytes)?;
    ensure!(stage.read_all(file, 0, LEN)? == bytes, "read bytes differ from those written");
    // Over the middle, at odd places; and behind the end, which leaves a hole of zeroes.
    stage.write_all(file, 77_777, &content(5, 1_001))?;
    stage.write_all(file, LEN as u64 + 500, b"far")?;
    let mut expected = bytes;
    expected[77_777..78_778].copy_from_slice(&content(5, 1_001));
    expected.extend([[0; 500].as_slice(), b"far"].concat());
    stage.push(Op::SyncData { file })?;
    let done = stage.next()?;
    ensure!(done.result == Ok(0) && matches!(done.op, Op::SyncData { .. }), "sync: {:?}", done.result);
    let times = done.times;
    ensure!(times.pushed <= times.submitted && times.submitted <= times.reaped, "times run backwards: {times:?}");
    let mut prng = Prng::new(8);
    for _ in 0..20 {
        let from = prng.below(expected.len() as u64) as usize;
        let len = (1 + prng.below(50_000) as usize).min(expected.len() - from);
        ensure!(stage.read_all(file, from as u64, len)? == expected[from..from + len], "{len} bytes at {from} differ");
    }
    // Only the part behind `start` is written, and a read goes on behind what its window holds.
    let (from, written) = stage.holding(b"not this|but this")?;
    stage.push(Op::WriteAt { file, offset: 10, from, start: 16 })?;
    ensure!(stage.next()?.result == Ok(1), "one byte was there to write");
    let (mut into, filled) = stage.room(8)?;
    into.put(b"before-");
    stage.push(Op::ReadAt { file, offset: 10, into })?;
    ensure!(read(stage.next()?, 7)? == Ok(b"s".to_vec()), "the read did not go on at the cursor");
    drop((written, filled));
    let counts = stage.ring.facts().counts;
    ensure!(counts.written_bytes == (LEN + 1_001 + 3 + 1) as u64, "counters: {counts:?}");
    ensure!(counts.read_bytes > LEN as u64 && counts.received_bytes == 0, "counters: {counts:?}");
    stage.ring.close_file(file);
    stage.strike()
}

fn a_file_ends_where_it_ends<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.venue.file();
    let file = stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
    ensure!(stage.read_once(file, 0, 100)? == Ok(Vec::new()), "an empty file has bytes");
    stage.write_all(file, 0, &content(1, 1_000))?;
    ensure!(stage.read_all(file, 900, 5_000)? == content(1, 1_000)[900..], "the last bytes differ");
    for offset in [1_000, 1_001, 1 << 40] {
        let end = stage.read_once(file, offset, 100)?;
        ensure!(end == Ok(Vec::new()), "behind the end, at {offset}: {end:?}");
    }
    // Opened again, longer: the old bytes, then zeroes. Asked for less than it has, it keeps what it has.
    stage.ring.close_file(file);
    for (len, expected) in [(3_000, 3_000), (10, 3_000)] {
        let options = FileOptions { len: Some(len), ..NEW };
        let file = stage.ring.open(&path, &options).map_err(|error| error.to_string())?;
        let bytes = stage.read_all(file, 0, 9_000)?;
        ensure!(bytes.len() == expected, "{} bytes after opening with a length of {len}", bytes.len());
        ensure!(bytes[..1_000] == content(1, 1_000) && bytes[1_000..].iter().all(|b| *b == 0), "the bytes differ");
        stage.ring.close_file(file);
    }
    stage.strike()
}

fn files_open_as_they_are_asked_to<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.venue.file();
    let missing = stage.ring.open(&path, &FileOptions::default());
    ensure!(matches!(&missing, Err(error) if error.kind() == Kind::NotFound), "a missing file: {missing:?}");
    let wrong = stage.ring.open(&path, &FileOptions { create: true, ..FileOptions::default() });
    ensure!(matches!(&wrong, Err(error) if error.kind() == Kind::Usage), "made, but not written: {wrong:?}");
    let vast = stage.ring.open(&path, &FileOptions { len: Some(1 << 61), ..NEW });
    ensure!(matches!(&vast, Err(error) if error.kind() == Kind::File), "larger than any disk: {vast:?}");
    let file = stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
    stage.write_all(file, 0, b"kept")?;
    let reader = stage.ring.open(&path, &FileOptions::default()).map_err(|error| error.to_string())?;
    ensure!(reader != file, "two open files have one name");
    let (from, _filling) = stage.holding(b"lost")?;
    stage.push(Op::WriteAt { file: reader, offset: 0, from, start: 0 })?;
    let done = stage.next()?;
    ensure!(done.result == Err(libc::EBADF), "writing to a file opened for reading: {:?}", done.result);
    drop((done, _filling));
    ensure!(stage.read_once(reader, 0, 4)?.is_ok_and(|bytes| b"kept".starts_with(&bytes)), "the file was changed");
    // Closed, its name is stale, and the next file does not answer to it.
    stage.ring.close_file(file);
    stage.ring.close_file(file);
    let next = stage.new_file()?;
    stage.push(Op::SyncData { file })?;
    let done = stage.next()?;
    ensure!(done.result == Err(libc::EBADF) && next != file, "a closed file: {:?}", done.result);
    stage.ring.close_file(next);
    stage.ring.close_file(reader);
    stage.strike()
}

/// Neither files nor sockets take the other's places.
fn files_run_out_and_come_back<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.venue.file();
    for _ in 0..2 {
        let mut files = Vec::new();
        for _ in 0..RING_FILES_MAX {
            files.push(stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?);
        }
        let refused = stage.ring.open(&path, &NEW);
        ensure!(matches!(&refused, Err(error) if error.kind() == Kind::Budget), "one file too many: {refused:?}");
        let sock = stage.connect(Script::Echo)?;
        stage.ring.close(sock);
        files.into_iter().for_each(|file| stage.ring.close_file(file));
    }
    stage.strike()
}

/// Reads and writes of a whole file, all in flight together, each in its own place.
fn many_file_operations_at_once<V: Venue>(venue: &mut V) -> Verdict {
    const PIECES: usize = 48;
    const LEN: usize = 8_000;
    let mut stage = Stage::new(venue, 64)?;
    let file = stage.new_file()?;
    let bytes = content(6, PIECES * LEN);
    let mut fillings = Vec::new();
    for piece in 0..PIECES {
        let (from, filling) = stage.holding(&bytes[piece * LEN..][..LEN])?;
        fillings.push(filling);
        stage.push(Op::WriteAt { file, offset: (piece * LEN) as u64, from, start: 0 })?;
    }
    for _ in 0..PIECES {
        let mut done = stage.next()?;
        while let (Op::WriteAt { offset, from, start, .. }, Ok(n)) = (done.op, done.result) {
            if start + n == LEN {
                break;
            }
            stage.push(Op::WriteAt { file, offset: offset + n as u64, from, start: start + n })?;
            done = stage.next()?;
        }
        ensure!(done.result.is_ok(), "write: {:?}", done.result);
    }
    let mut expected = BTreeMap::new();
    for piece in (0..PIECES).rev() {
        let (into, filling) = stage.room(LEN)?;
        fillings.push(filling);
        let offset = (piece * LEN) as u64;
        expected.insert(stage.push(Op::ReadAt { file, offset, into })?.0, piece * LEN);
    }
    while !expected.is_empty() {
        let done = stage.next()?;
        let from = expected.remove(&done.token).ok_or("a read came back twice")?;
        let got = read(done, 0)?.map_err(|errno| format!("read: error {errno}"))?;
        ensure!(!got.is_empty() && got == bytes[from..from + got.len()], "{} bytes at {from} differ", got.len());
    }
    drop(fillings);
    stage.ring.close_file(file);
    stage.strike()
}

/// On a disk that demands alignment, what is not aligned is an error; what is aligned works everywhere.
fn direct_access_is_aligned_or_refused<V: Venue>(venue: &mut V) -> Verdict {
    const BLOCK: usize = 4096;
    let mut stage = Stage::new(venue, 16)?;
    let path = stage.venue.file();
    let file = match stage.ring.open(&path, &FileOptions { direct: true, ..NEW }) {
        Ok(file) => file,
        // A file system without direct access: said with its cure, and nothing else is to be checked there.
        Err(error) => {
            let text = error.to_string();
            ensure!(error.kind() == Kind::File && text.contains("O_DIRECT"), "{text}");
            return stage.strike();
        }
    };
    let bytes = content(9, 2 * BLOCK);
    let (mut window, filling) = stage.aligned(2 * BLOCK, 2 * BLOCK)?;
    window.put(&bytes);
    let mut from = window.lend();
    let mut written = 0;
    while written < 2 * BLOCK {
        stage.push(Op::WriteAt { file, offset: written as u64, from, start: written })?;
        let done = stage.next()?;
        let n = done.result.map_err(|errno| format!("an aligned write: error {errno}"))?;
        let Op::WriteAt { from: back, .. } = done.op else { return Err("not a write".into()) };
        (from, written) = (back, written + n);
    }
    drop((from, window, filling));
    let (into, filling) = stage.aligned(2 * BLOCK, 2 * BLOCK)?;
    stage.push(Op::ReadAt { file, offset: 0, into })?;
    let got = read(stage.next()?, 0)?.map_err(|errno| format!("an aligned read: error {errno}"))?;
    ensure!(!got.is_empty() && got == bytes[..got.len()], "an aligned read brought {} other bytes", got.len());
    drop(filling);
    match stage.read_once(file, 1, 100)? {
        Err(errno) => ensure!(errno == libc::EINVAL, "an unaligned read: error {errno}"),
        Ok(got) => ensure!(got == bytes[1..=got.len()], "an unaligned read brought other bytes"),
    }
    stage.ring.close_file(file);
    stage.strike()
}

/// Asked back at random moments, each comes back once: done, or cancelled with nothing moved.
fn file_operations_are_cancelled_or_done<V: Venue>(venue: &mut V) -> Verdict {
    const ROUNDS: u64 = 60;
    const LEN: usize = 4_096;
    let mut stage = Stage::new(venue, 64)?;
    let file = stage.new_file()?;
    stage.write_all(file, 0, &content(2, LEN))?;
    let mut prng = Prng::new(3);
    for round in 0..ROUNDS {
        let mut pending = BTreeMap::new();
        let mut fillings = Vec::new();
        for nth in 0..6 {
            let op = if nth % 3 == 2 {
                // The same bytes in the same place: the file stays what it is, whoever wins.
                let (from, filling) = stage.holding(&content(2, LEN))?;
                fillings.push(filling);
                Op::WriteAt { file, offset: 0, from, start: 0 }
            } else {
                let (into, filling) = stage.room(LEN)?;
                fillings.push(filling);
                Op::ReadAt { file, offset: 0, into }
            };
            let (token, id) = stage.push(op)?;
            pending.insert(token, id);
        }
        if prng.chance(0.7) {
            let now = stage.ring.now();
            stage.ring.wait(Some(now)).map_err(|error| error.to_string())?;
        }
        let ids: Vec<_> = pending.values().copied().collect();
        ids.into_iter().filter(|_| prng.chance(0.5)).for_each(|id| stage.ring.cancel(id));
        while !pending.is_empty() {
            let done = stage.next()?;
            ensure!(pending.remove(&done.token).is_some(), "token {} came back twice in round {round}", done.token);
            match (&done.op, done.result) {
                (_, Err(libc::ECANCELED)) => {}
                (Op::WriteAt { .. }, Ok(n)) => ensure!(n > 0 && n <= LEN, "write of {LEN} took {n}"),
                (Op::ReadAt { .. }, _) => {
                    let got = read(done, 0)?.map_err(|errno| format!("read: error {errno}"))?;
                    ensure!(!got.is_empty() && got == content(2, LEN)[..got.len()], "round {round}: bytes differ");
                }
                (op, result) => return Err(format!("{op:?}: {result:?}")),
            }
        }
        let back = |filling: Filling| filling.seal().is_ok_and(|slot| !slot.is_lent());
        ensure!(fillings.into_iter().all(back), "windows or loans did not come back");
    }
    stage.ring.close_file(file);
    stage.strike()
}

fn a_file_closed_at_work_gives_all_back<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 32)?;
    for turns in 0..3 {
        let file = stage.new_file()?;
        stage.write_all(file, 0, &content(3, 50_000))?;
        let mut pending = BTreeMap::new();
        let mut fillings = Vec::new();
        for nth in 0..8 {
            let (into, filling) = stage.room(40_000)?;
            fillings.push(filling);
            let (token, id) = stage.push(Op::ReadAt { file, offset: nth, into })?;
            pending.insert(token, id);
        }
        for _ in 0..turns {
            stage.turn()?;
        }
        stage.ring.close_file(file);
        let (into, late) = stage.room(10)?;
        let (refused, id) = stage.push(Op::ReadAt { file, offset: 0, into })?;
        pending.insert(refused, id);
        while !pending.is_empty() {
            let done = stage.next()?;
            ensure!(pending.remove(&done.token).is_some(), "token {} came back twice", done.token);
            let expected = match done.result {
                Err(libc::EBADF) => done.token == refused,
                Err(libc::ECANCELED) | Ok(1..) => done.token != refused,
                _ => false,
            };
            ensure!(expected, "after close: {:?}", done.result);
        }
        drop(late);
        ensure!(fillings.into_iter().all(|filling| filling.seal().is_ok()), "windows did not come back");
    }
    stage.strike()
}

/// Echo and files in flight together: what comes from the one goes to the other.
fn sockets_and_files_together<V: Venue>(venue: &mut V) -> Verdict {
    const ROUNDS: u64 = 40;
    const LEN: usize = 3_000;
    let mut stage = Stage::new(venue, 16)?;
    let sock = stage.connect(Script::Echo)?;
    let file = stage.new_file()?;
    for round in 0..ROUNDS {
        let (from, written) = stage.holding(&content(round, LEN))?;
        stage.push(Op::WriteAt { file, offset: round * LEN as u64, from, start: 0 })?;
        stage.push(Op::Send { sock, bytes: content(round, 500), from: 0 })?;
        let (scatter, echoed) = stage.one_window(500)?;
        stage.push(Op::Recv { sock, into: scatter })?;
        stage.push(Op::SyncData { file })?;
        let (mut sent, mut echo, mut took) = (0, Vec::new(), 0);
        for _ in 0..4 {
            let done = stage.next()?;
            let n = done.result.map_err(|errno| format!("{:?}: error {errno}", done.op))?;
            match &done.op {
                Op::Send { .. } => sent = n,
                Op::WriteAt { .. } => took = n,
                Op::Recv { .. } => echo = received(done)?.map_err(|errno| format!("error {errno}"))?,
                _ => {}
            }
        }
        while echo.len() < sent {
            let more = stage.receive(sock, 500)?.map_err(|errno| format!("error {errno}"))?;
            ensure!(!more.is_empty(), "the echo ended early");
            echo.extend(more);
        }
        ensure!(echo == content(round, 500)[..sent], "round {round}: the echo differs");
        let back = stage.read_all(file, round * LEN as u64, took)?;
        ensure!(took > 0 && back == content(round, LEN)[..took], "round {round}: the file differs");
        drop((written, echoed));
    }
    stage.ring.close(sock);
    stage.ring.close_file(file);
    stage.strike()
}

/// The ring is dropped with reads and writes queued, at work and done; all memory is back, and stays as it is.
fn dropped_over_files_memory_is_left_alone<V: Venue>(venue: &mut V) -> Verdict {
    const LEN: usize = 100_000;
    let mut stage = Stage::new(venue, 64)?;
    let file = stage.new_file()?;
    stage.write_all(file, 0, &content(5, LEN))?;
    let mut fillings = Vec::new();
    for nth in 0..24 {
        let (op, filling) = if nth % 2 == 0 {
            let (into, filling) = stage.room(LEN)?;
            (Op::ReadAt { file, offset: 0, into }, filling)
        } else {
            let (from, filling) = stage.holding(&content(5, LEN))?;
            (Op::WriteAt { file, offset: 0, from, start: 0 }, filling)
        };
        fillings.push(filling);
        stage.push(op)?;
        if nth == 12 {
            let now = stage.ring.now();
            stage.ring.wait(Some(now)).map_err(|error| error.to_string())?;
        }
    }
    drop(stage.ring);
    let mut slots = Vec::new();
    for filling in fillings {
        let mut slot = filling.seal().map_err(|_| "the dropped ring kept a window")?;
        ensure!(!slot.is_lent(), "the dropped ring kept a loan");
        slot[..].fill(0xEE);
        slots.push(slot);
    }
    stage.venue.rest(fuelrail_base::Duration::from_millis(50));
    ensure!(slots.iter().all(|slot| slot.iter().all(|b| *b == 0xEE)), "memory was written after the ring was gone");
    drop(slots);
    stage.region.collect();
    ensure!(stage.arena.outstanding() == 0, "{} slots did not come home", stage.arena.outstanding());
    Ok(())
}
