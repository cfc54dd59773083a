//! Checks of read pins: a write keeps its memory, and nothing else of its batch, until it is back; and of the padding that
//! direct transfers need.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use super::files::{NEW, content};
use super::fixture::{Fixture, Harness};
use crate::ring::file::FileOptions;
use crate::ring::{FileId, Op, Ring};

/// Window and filling are dropped before the write begins; their memory is not allocated again until it has ended.
pub(super) fn pinned_bytes_outlive_their_batch<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const LEN: usize = 1 << 20;
    let file = fixture.new_file();
    for round in 0..4 {
        let bytes = content(round, LEN);
        let (from, filling) = fixture.holding(&bytes);
        fixture.push(Op::WriteAt { file, offset: 0, from, start: 0 });
        drop(filling);
        assert!(fixture.region.outstanding() == 1, "the memory was freed during the write");
        let mut next = fixture.slot(LEN);
        next[..].fill(0xEE);
        fixture.written();
        drop(next);
        fixture.region.collect();
        assert!(fixture.region.outstanding() == 0, "the memory was not freed after the write");
        assert!(fixture.read_all(file, 0, LEN) == bytes, "round {round}: other bytes were written");
    }
    fixture.ring.close_file(file);
}

/// Windows are not waited for by a write, and its bytes cannot be changed under it.
pub(super) fn a_batch_is_sealed_and_read_while_it_is_pinned<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const LEN: usize = 50_000;
    let file = fixture.new_file();
    let bytes = content(7, LEN);
    let (mut window, filling) = fixture.room(LEN);
    window.put(&bytes);
    let from = window.read_pin();
    assert!(window.is_read_pinned() && filling.windows_out() == 1, "one window, which is read-pinned");
    fixture.push(Op::WriteAt { file, offset: 0, from, start: 0 });
    let put = catch_unwind(AssertUnwindSafe(|| window.rewind(0)));
    assert!(put.is_err() && window.filled() == LEN, "a pinned window was emptied");
    drop(window);
    let mut slot = filling.seal().expect("a read pin keeps a filling from being sealed");
    assert!(slot.is_read_pinned() && slot[..] == bytes, "the sealed batch is not what was filled");
    let put = catch_unwind(AssertUnwindSafe(|| slot[0] ^= 1));
    assert!(put.is_err(), "pinned bytes were written to");
    fixture.written();
    assert!(!slot.is_read_pinned(), "the read pin outlives the write");
    slot[..].fill(0xEE);
    drop(slot);
    assert!(fixture.read_all(file, 0, LEN) == bytes, "other bytes were written");
    fixture.ring.close_file(file);
}

pub(super) fn a_cancelled_write_gives_its_read_pin_back<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const LEN: usize = 200_000;
    let file = fixture.new_file();
    let bytes = content(8, LEN);
    for iterations in [0, 0, 1, 2] {
        let (from, filling) = fixture.holding(&bytes);
        let mut slot = filling.seal().expect("a read pin keeps a filling from being sealed");
        let (_, id) = fixture.push(Op::WriteAt { file, offset: 0, from, start: 0 });
        for _ in 0..iterations {
            fixture.step();
        }
        fixture.ring.cancel(id);
        assert!(slot.is_read_pinned(), "a requested cancellation is not a completion");
        let done = fixture.next();
        assert!(matches!(done.result, Ok(1..) | Err(libc::ECANCELED)), "asked back: {:?}", done.result);
        let Op::WriteAt { from, .. } = done.op else { panic!("not a write") };
        assert!(from.bytes() == bytes, "the bytes came back changed");
        drop(from);
        slot[..].fill(0xEE);
    }
    fixture.ring.close_file(file);
}

/// Loans whose windows are long gone: a ring dropped with them at work gives them back, and only then memory is reused.
pub(super) fn dropped_at_work_a_ring_gives_read_pins_back<V: Harness>(harness: &mut V) {
    const LEN: usize = 300_000;
    let mut fixture = Fixture::new(harness, 32);
    let path = fixture.harness.file();
    let file = fixture.ring.open(&path, &NEW).unwrap();
    let bytes = content(9, LEN);
    for nth in 0..8 {
        let (from, filling) = fixture.holding(&bytes);
        drop(filling);
        fixture.push(Op::WriteAt { file, offset: 0, from, start: 0 });
        if nth == 3 {
            fixture.look();
        }
    }
    // Some may be done by now; those that wait to be popped still have their bytes.
    assert!(fixture.region.outstanding() == 8, "{} of 8 read pins hold their memory", fixture.region.outstanding());
    drop(fixture.ring);
    fixture.region.collect();
    assert!(fixture.region.outstanding() == 0, "{} read pins were not returned", fixture.region.outstanding());
    // Nothing of what is in the memory from now on may reach the file.
    let mut next = fixture.region.alloc(7 << 20).expect("the region is whole again");
    next[..].fill(0xEE);
    fixture.harness.rest(fuelrail_base::Duration::from_millis(50));
    fixture.ring = fixture.harness.ring(32, &fixture.arena);
    let file = fixture.ring.open(&path, &NEW).unwrap();
    drop(next);
    let now = fixture.read_all(file, 0, LEN);
    assert!(bytes.starts_with(&now), "bytes from after the ring's end were written");
    fixture.ring.close_file(file);
    fixture.finish();
}

/// With and without direct access: the file gets whole units, the window exactly its bytes, and its neighbour none.
pub(super) fn a_padded_window_is_written_and_read_whole<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const UNIT: usize = 4096;
    for direct in [false, true] {
        let path = fixture.harness.file();
        let options = FileOptions { direct, len: Some(64 << 10), ..NEW };
        let Ok(file) = fixture.ring.open(&path, &options) else { continue };
        for (nth, len) in [1usize, 511, 512, 4095, 4096, 4097, 10_000].into_iter().enumerate() {
            let padded = len.next_multiple_of(UNIT);
            let bytes = content(nth as u64, len);
            let (mut window, _filling) = fixture.aligned(len, padded);
            window.put(&bytes);
            assert!(window.room() == 0 && window.len() == len, "the padding counts as room");
            let from = window.read_pin_padded(UNIT).expect("it is padded to a unit");
            assert!(from.len() == padded && from[len..].iter().all(|b| *b == 0), "the padding is not zeroes");
            fixture.push(Op::WriteAt { file, offset: 0, from, start: 0 });
            fixture.written();
            drop((window, _filling));
            reread(fixture, file, &bytes, padded);
        }
        fixture.ring.close_file(file);
    }
}

/// Reads `bytes` back into a padded window with a guard after it.
fn reread<V: Harness>(fixture: &mut Fixture<'_, V>, file: FileId, bytes: &[u8], padded: usize) {
    let (mut into, mut filling) = fixture.aligned(bytes.len(), padded);
    let mut guard = filling.carve(64).expect("room after the padding");
    guard.put(&[0xEE; 64]);
    while into.room() > 0 {
        let offset = into.filled() as u64;
        let done = fixture.run(Op::ReadAt { file, offset, into });
        let n = done.result.expect("read");
        let Op::ReadAt { into: back, .. } = done.op else { panic!("not a read") };
        assert!(n > 0 && back.filled() == offset as usize + n, "{n} of {} bytes at {offset}", back.len());
        into = back;
    }
    assert!(into.bytes() == bytes, "{} bytes came back changed", bytes.len());
    assert!(guard.bytes() == [0xEE; 64], "a read went beyond the padding");
}
