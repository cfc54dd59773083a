//! Checks of files: what was written is read, the end is the end, and no operation is lost or keeps its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fuelrail_base::limits::RING_FILES_MAX;
use fuelrail_base::prng::Prng;
use fuelrail_base::{Error, Kind};

use super::fixture::{Fixture, Harness, Script, all_returned, pattern, received};
use crate::ring::file::FileOptions;
use crate::ring::{Done, FileId, Op, Ring};
use crate::slot::{Filling, ReadPin, Window};

/// To be made and written.
pub(super) const NEW: FileOptions = FileOptions { write: true, create: true, direct: false, len: None };

impl<V: Harness> Fixture<'_, V> {
    pub(super) fn new_file(&mut self) -> FileId {
        let path = self.harness.file();
        self.ring.open(&path, &NEW).unwrap()
    }

    /// What is said of a file that cannot be opened so.
    fn refused(&mut self, path: &Path, options: FileOptions) -> Error {
        self.ring.open(path, &options).expect_err("it cannot be opened so")
    }

    /// A read pin on these bytes, and the filling they lie in.
    pub(super) fn holding(&mut self, bytes: &[u8]) -> (ReadPin, Filling) {
        let (mut window, filling) = self.room(bytes.len());
        window.put(bytes);
        (window.read_pin(), filling)
    }

    /// An empty window of `len` bytes, padded to so many, at an address that suits every disk.
    pub(super) fn aligned(&mut self, len: usize, padded: usize) -> (Window, Filling) {
        const BLOCK: usize = 4096;
        let slot = self.slot(padded + BLOCK);
        let mut filling = slot.fill();
        assert!(filling.align(BLOCK));
        (filling.carve_padded(len, padded).expect("room after the first aligned place"), filling)
    }

    /// Writes all of `bytes`, with as many operations as it takes.
    pub(super) fn write_all(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        let from = self.holding(bytes).0;
        self.push(Op::WriteAt { file, offset, from, start: 0 });
        self.written();
    }

    /// Waits until a write that is out is wholly done, with as many operations as that takes.
    pub(super) fn written(&mut self) {
        loop {
            let done = self.next();
            let n = done.result.unwrap_or_else(|errno| panic!("write: error {errno}"));
            let Op::WriteAt { file, offset, from, start } = done.op else { panic!("not a write") };
            assert!(n > 0 && start + n <= from.len(), "write of {} took {n}", from.len() - start);
            if start + n == from.len() {
                return;
            }
            self.push(Op::WriteAt { file, offset: offset + n as u64, from, start: start + n });
        }
    }

    /// Reads once; the bytes read, or the error number.
    fn read_once(&mut self, file: FileId, offset: u64, len: usize) -> Result<Vec<u8>, i32> {
        let into = self.room(len).0;
        read(self.run(Op::ReadAt { file, offset, into }), 0)
    }

    /// Reads until `len` bytes or the end.
    pub(super) fn read_all(&mut self, file: FileId, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let more = self.read_once(file, offset + bytes.len() as u64, len - bytes.len()).expect("read");
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
        }
        bytes
    }
}

/// The bytes a completed read brought beyond the `before` there were, after checking its accounting.
pub(super) fn read(done: Done, before: usize) -> Result<Vec<u8>, i32> {
    let Op::ReadAt { into, .. } = done.op else { panic!("a read came back as something else") };
    let bytes = into.bytes()[before..].to_vec();
    match done.result {
        Ok(n) => assert!(n == bytes.len(), "{n} reported, the cursor moved over {}", bytes.len()),
        Err(errno) => assert!(bytes.is_empty(), "error {errno} with {} bytes accounted for", bytes.len()),
    }
    done.result.map(|_| bytes)
}

pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| pattern(seed, i)).collect()
}

pub(super) fn what_is_written_is_read<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const LEN: usize = 300_007;
    let file = fixture.new_file();
    let bytes = content(4, LEN);
    fixture.write_all(file, 0, &bytes);
    assert!(fixture.read_all(file, 0, LEN) == bytes, "read bytes differ from those written");
    // Over the middle, at odd places; and after the end, which leaves a hole of zeroes.
    fixture.write_all(file, 77_777, &content(5, 1_001));
    fixture.write_all(file, LEN as u64 + 500, b"far");
    let mut expected = bytes;
    expected[77_777..78_778].copy_from_slice(&content(5, 1_001));
    expected.extend([[0; 500].as_slice(), b"far"].concat());
    let done = fixture.run(Op::SyncData { file });
    assert!(done.result == Ok(0) && matches!(done.op, Op::SyncData { .. }), "sync: {:?}", done.result);
    let mut prng = Prng::new(8);
    for _ in 0..20 {
        let from = prng.below(expected.len() as u64) as usize;
        let len = (1 + prng.below(50_000) as usize).min(expected.len() - from);
        assert!(fixture.read_all(file, from as u64, len) == expected[from..from + len], "{len} bytes at {from} differ");
    }
    // Only the part after `start` is written, and a read goes on after what its window holds.
    let from = fixture.holding(b"not this|but this").0;
    let done = fixture.run(Op::WriteAt { file, offset: 10, from, start: 16 });
    assert!(done.result == Ok(1), "one byte was there to write");
    drop(done);
    let mut into = fixture.room(8).0;
    into.put(b"before-");
    let done = fixture.run(Op::ReadAt { file, offset: 10, into });
    assert!(read(done, 7) == Ok(b"s".to_vec()), "the read did not go on at the cursor");
    let counts = fixture.ring.facts().counts;
    assert!(counts.written_bytes == (LEN + 1_001 + 3 + 1) as u64, "counters: {counts:?}");
    assert!(counts.read_bytes > LEN as u64 && counts.received_bytes == 0, "counters: {counts:?}");
    fixture.ring.close_file(file);
}

pub(super) fn a_file_ends_where_it_ends<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let path = fixture.harness.file();
    let file = fixture.ring.open(&path, &NEW).unwrap();
    assert!(fixture.read_once(file, 0, 100) == Ok(Vec::new()), "an empty file has bytes");
    fixture.write_all(file, 0, &content(1, 1_000));
    assert!(fixture.read_all(file, 900, 5_000) == content(1, 1_000)[900..], "the last bytes differ");
    for offset in [1_000, 1_001, 1 << 40] {
        let end = fixture.read_once(file, offset, 100);
        assert!(end == Ok(Vec::new()), "after the end, at {offset}: {end:?}");
    }
    // Opened again, longer: the old bytes, then zeroes. Asked for less than it has, it keeps what it has.
    fixture.ring.close_file(file);
    for (len, expected) in [(3_000, 3_000), (10, 3_000)] {
        let options = FileOptions { len: Some(len), ..NEW };
        let file = fixture.ring.open(&path, &options).unwrap();
        let bytes = fixture.read_all(file, 0, 9_000);
        assert!(bytes.len() == expected, "{} bytes after opening with a length of {len}", bytes.len());
        assert!(bytes[..1_000] == content(1, 1_000) && bytes[1_000..].iter().all(|b| *b == 0), "the bytes differ");
        fixture.ring.close_file(file);
    }
}

pub(super) fn files_open_as_they_are_asked_to<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let path = fixture.harness.file();
    let reading = FileOptions::default();
    for (kind, options) in [
        (Kind::NotFound, reading),
        // Made, but not written; larger than any disk.
        (Kind::Usage, FileOptions { create: true, ..reading }),
        (Kind::Usage, FileOptions { len: Some(1), ..reading }),
        (Kind::File, FileOptions { len: Some(1 << 61), ..NEW }),
    ] {
        let error = fixture.refused(&path, options);
        assert!(error.kind() == kind, "{options:?}: {error}");
    }
    let file = fixture.ring.open(&path, &NEW).unwrap();
    fixture.write_all(file, 0, b"kept");
    let reader = fixture.ring.open(&path, &reading).unwrap();
    assert!(reader != file, "two open files have one name");
    let from = fixture.holding(b"lost").0;
    let done = fixture.run(Op::WriteAt { file: reader, offset: 0, from, start: 0 });
    assert!(done.result == Err(libc::EBADF), "writing to a file opened for reading: {:?}", done.result);
    drop(done);
    assert!(fixture.read_once(reader, 0, 4).is_ok_and(|bytes| b"kept".starts_with(&bytes)), "the file was changed");
    // Closed, its name is stale, and the next file does not answer to it.
    fixture.ring.close_file(file);
    fixture.ring.close_file(file);
    let next = fixture.new_file();
    let done = fixture.run(Op::SyncData { file });
    assert!(done.result == Err(libc::EBADF) && next != file, "a closed file: {:?}", done.result);
    fixture.ring.close_file(next);
    fixture.ring.close_file(reader);
}

/// Neither files nor sockets take the other's places.
pub(super) fn files_run_out_and_come_back<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let path = fixture.harness.file();
    for _ in 0..2 {
        let files = [(); RING_FILES_MAX as usize].map(|()| fixture.ring.open(&path, &NEW).unwrap());
        let error = fixture.refused(&path, NEW);
        assert!(error.kind() == Kind::Budget, "one file too many: {error}");
        let sock = fixture.connect(Script::Echo);
        fixture.ring.close(sock);
        files.into_iter().for_each(|file| fixture.ring.close_file(file));
    }
}

/// Reads and writes of a whole file, all in flight together, each in its own place.
pub(super) fn many_file_operations_at_once<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const PIECES: usize = 48;
    const LEN: usize = 8_000;
    let file = fixture.new_file();
    let bytes = content(6, PIECES * LEN);
    for piece in 0..PIECES {
        let from = fixture.holding(&bytes[piece * LEN..][..LEN]).0;
        fixture.push(Op::WriteAt { file, offset: (piece * LEN) as u64, from, start: 0 });
    }
    for _ in 0..PIECES {
        fixture.written();
    }
    let mut expected = BTreeMap::new();
    for piece in (0..PIECES).rev() {
        let into = fixture.room(LEN).0;
        let offset = (piece * LEN) as u64;
        expected.insert(fixture.push(Op::ReadAt { file, offset, into }).0, piece * LEN);
    }
    while !expected.is_empty() {
        let done = fixture.next();
        let from = expected.remove(&done.token).expect("a read came back twice");
        let got = read(done, 0).expect("read");
        assert!(!got.is_empty() && got == bytes[from..from + got.len()], "{} bytes at {from} differ", got.len());
    }
    fixture.ring.close_file(file);
}

/// On a disk that demands alignment, what is not aligned is an error; what is aligned works everywhere.
pub(super) fn direct_access_is_aligned_or_refused<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const BLOCK: usize = 4096;
    let path = fixture.harness.file();
    let file = match fixture.ring.open(&path, &FileOptions { direct: true, ..NEW }) {
        Ok(file) => file,
        // A file system without direct access: said with its cure, and nothing else is to be checked there.
        Err(error) => {
            let text = error.to_string();
            assert!(error.kind() == Kind::File && text.contains("O_DIRECT"), "{text}");
            return;
        }
    };
    let bytes = content(9, 2 * BLOCK);
    let mut window = fixture.aligned(2 * BLOCK, 2 * BLOCK).0;
    window.put(&bytes);
    fixture.push(Op::WriteAt { file, offset: 0, from: window.read_pin(), start: 0 });
    fixture.written();
    drop(window);
    let into = fixture.aligned(2 * BLOCK, 2 * BLOCK).0;
    fixture.push(Op::ReadAt { file, offset: 0, into });
    let got = read(fixture.next(), 0).expect("an aligned read");
    assert!(!got.is_empty() && got == bytes[..got.len()], "an aligned read brought {} other bytes", got.len());
    match fixture.read_once(file, 1, 100) {
        Err(errno) => assert!(errno == libc::EINVAL, "an unaligned read: error {errno}"),
        Ok(got) => assert!(got == bytes[1..=got.len()], "an unaligned read brought other bytes"),
    }
    fixture.ring.close_file(file);
}

/// Asked back at random moments, each comes back once: done, or cancelled with nothing moved.
pub(super) fn file_operations_are_cancelled_or_done<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const ROUNDS: u64 = 60;
    const LEN: usize = 4_096;
    let file = fixture.new_file();
    fixture.write_all(file, 0, &content(2, LEN));
    let mut prng = Prng::new(3);
    for round in 0..ROUNDS {
        let mut pending = BTreeMap::new();
        let mut fillings = Vec::new();
        for nth in 0..6 {
            let op = if nth % 3 == 2 {
                // The same bytes in the same place: the file stays what it is, whoever wins.
                let (from, filling) = fixture.holding(&content(2, LEN));
                fillings.push(filling);
                Op::WriteAt { file, offset: 0, from, start: 0 }
            } else {
                let (into, filling) = fixture.room(LEN);
                fillings.push(filling);
                Op::ReadAt { file, offset: 0, into }
            };
            let (token, id) = fixture.push(op);
            pending.insert(token, id);
        }
        if prng.chance(0.7) {
            fixture.look();
        }
        let ids: Vec<_> = pending.values().copied().collect();
        ids.into_iter().filter(|_| prng.chance(0.5)).for_each(|id| fixture.ring.cancel(id));
        while !pending.is_empty() {
            let done = fixture.next();
            assert!(pending.remove(&done.token).is_some(), "token {} came back twice in round {round}", done.token);
            match (&done.op, done.result) {
                (_, Err(libc::ECANCELED)) => {}
                (Op::WriteAt { .. }, Ok(n)) => assert!(n > 0 && n <= LEN, "write of {LEN} took {n}"),
                (Op::ReadAt { .. }, _) => {
                    let got = read(done, 0).expect("read");
                    assert!(!got.is_empty() && got == content(2, LEN)[..got.len()], "round {round}: bytes differ");
                }
                (op, result) => panic!("{op:?}: {result:?}"),
            }
        }
        let back = |filling: Filling| filling.seal().is_ok_and(|slot| !slot.is_read_pinned());
        assert!(fillings.into_iter().all(back), "windows or read pins did not come back");
    }
    fixture.ring.close_file(file);
}

pub(super) fn a_file_closed_at_work_gives_all_back<V: Harness>(fixture: &mut Fixture<'_, V>) {
    for iterations in 0..3 {
        let file = fixture.new_file();
        fixture.write_all(file, 0, &content(3, 50_000));
        let mut pending = BTreeSet::new();
        let mut fillings = Vec::new();
        for nth in 0..8 {
            let (into, filling) = fixture.room(40_000);
            fillings.push(filling);
            pending.insert(fixture.push(Op::ReadAt { file, offset: nth, into }).0);
        }
        for _ in 0..iterations {
            fixture.step();
        }
        fixture.ring.close_file(file);
        let into = fixture.room(10).0;
        let (refused, _) = fixture.push(Op::ReadAt { file, offset: 0, into });
        pending.insert(refused);
        while !pending.is_empty() {
            let done = fixture.next();
            assert!(pending.remove(&done.token), "token {} came back twice", done.token);
            let expected = match done.result {
                Err(libc::EBADF) => done.token == refused,
                Err(libc::ECANCELED) | Ok(1..) => done.token != refused,
                _ => false,
            };
            assert!(expected, "after close: {:?}", done.result);
        }
        assert!(fillings.into_iter().all(|filling| filling.seal().is_ok()), "windows did not come back");
    }
}

/// Echo and files in flight together: what comes from the one goes to the other.
pub(super) fn sockets_and_files_together<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const ROUNDS: u64 = 40;
    const LEN: usize = 3_000;
    let sock = fixture.connect(Script::Echo);
    let file = fixture.new_file();
    for round in 0..ROUNDS {
        let from = fixture.holding(&content(round, LEN)).0;
        fixture.push(Op::WriteAt { file, offset: round * LEN as u64, from, start: 0 });
        fixture.push(Op::Send { sock, bytes: content(round, 500), from: 0 });
        let into = fixture.one_window(500).0;
        fixture.push(Op::Recv { sock, into });
        fixture.push(Op::SyncData { file });
        let (mut sent, mut echo, mut took) = (0, Vec::new(), 0);
        for _ in 0..4 {
            let done = fixture.next();
            let n = done.result.unwrap_or_else(|errno| panic!("{:?}: error {errno}", done.op));
            match &done.op {
                Op::Send { .. } => sent = n,
                Op::WriteAt { .. } => took = n,
                Op::Recv { .. } => echo = received(done).unwrap(),
                _ => {}
            }
        }
        while echo.len() < sent {
            let more = fixture.receive(sock, 500).unwrap();
            assert!(!more.is_empty(), "the echo ended early");
            echo.extend(more);
        }
        assert!(echo == content(round, 500)[..sent], "round {round}: the echo differs");
        let back = fixture.read_all(file, round * LEN as u64, took);
        assert!(took > 0 && back == content(round, LEN)[..took], "round {round}: the file differs");
    }
    fixture.ring.close(sock);
    fixture.ring.close_file(file);
}

/// The ring is dropped with reads and writes queued, at work and done; all memory is back, and stays as it is.
pub(super) fn dropped_over_files_memory_is_left_alone<V: Harness>(harness: &mut V) {
    const LEN: usize = 100_000;
    let mut fixture = Fixture::new(harness, 64);
    let file = fixture.new_file();
    fixture.write_all(file, 0, &content(5, LEN));
    let mut fillings = Vec::new();
    for nth in 0..24 {
        let (op, filling) = if nth % 2 == 0 {
            let (into, filling) = fixture.room(LEN);
            (Op::ReadAt { file, offset: 0, into }, filling)
        } else {
            let (from, filling) = fixture.holding(&content(5, LEN));
            (Op::WriteAt { file, offset: 0, from, start: 0 }, filling)
        };
        fillings.push(filling);
        fixture.push(op);
        if nth == 12 {
            fixture.look();
        }
    }
    drop(fixture.ring);
    let mut slots = Vec::new();
    for filling in fillings {
        let mut slot = filling.seal().expect("the dropped ring kept a window");
        assert!(!slot.is_read_pinned(), "the dropped ring kept a read pin");
        slot[..].fill(0xEE);
        slots.push(slot);
    }
    fixture.harness.rest(fuelrail_base::Duration::from_millis(50));
    assert!(slots.iter().all(|slot| slot.iter().all(|b| *b == 0xEE)), "memory was written after the ring was gone");
    drop(slots);
    all_returned(&mut fixture.region);
}
