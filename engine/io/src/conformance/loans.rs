//! Checks of lent bytes: a write keeps its memory, and nothing else of its batch, until it is back; and of the padding that
//! direct transfers need.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use super::files::{NEW, content};
use super::stage::Stage;
use super::venue::{Check, Venue, Verdict, ensure};
use crate::ring::file::FileOptions;
use crate::ring::{FileId, Op, Ring};

pub(super) fn checks<V: Venue>() -> Vec<Check<V>> {
    vec![
        ("lent bytes outlive their batch", lent_bytes_outlive_their_batch),
        ("a batch is sealed and read while it is lent", a_batch_is_sealed_and_read_while_it_is_lent),
        ("a lent write asked back gives its bytes back", a_lent_write_asked_back_gives_its_bytes_back),
        ("dropped at work, a ring gives loans back", dropped_at_work_a_ring_gives_loans_back),
        ("a padded window is written and read whole", a_padded_window_is_written_and_read_whole),
    ]
}

impl<V: Venue> Stage<'_, V> {
    /// Waits for a write that is out until all of it is done.
    fn written(&mut self) -> Verdict {
        loop {
            let done = self.next()?;
            let n = done.result.map_err(|errno| format!("write: error {errno}"))?;
            let Op::WriteAt { file, offset, from, start } = done.op else { return Err("not a write".into()) };
            if start + n == from.len() {
                return Ok(());
            }
            self.push(Op::WriteAt { file, offset: offset + n as u64, from, start: start + n })?;
        }
    }
}

/// Window and filling are dropped before the write begins; whoever gets memory meanwhile gets other memory.
fn lent_bytes_outlive_their_batch<V: Venue>(venue: &mut V) -> Verdict {
    const LEN: usize = 1 << 20;
    let mut stage = Stage::new(venue, 16)?;
    let file = stage.new_file()?;
    for round in 0..4 {
        let bytes = content(round, LEN);
        let (from, filling) = stage.holding(&bytes)?;
        stage.push(Op::WriteAt { file, offset: 0, from, start: 0 })?;
        drop(filling);
        ensure!(stage.region.outstanding() == 1, "the memory went home during the write");
        let mut next = stage.slot(LEN)?;
        next[..].fill(0xEE);
        stage.written()?;
        drop(next);
        stage.region.collect();
        ensure!(stage.region.outstanding() == 0, "the memory did not go home after the write");
        ensure!(stage.read_all(file, 0, LEN)? == bytes, "round {round}: other bytes were written");
    }
    stage.ring.close_file(file);
    stage.strike()
}

/// Windows are not waited for by a write, and its bytes cannot be changed under it.
fn a_batch_is_sealed_and_read_while_it_is_lent<V: Venue>(venue: &mut V) -> Verdict {
    const LEN: usize = 50_000;
    let mut stage = Stage::new(venue, 16)?;
    let file = stage.new_file()?;
    let bytes = content(7, LEN);
    let (mut window, filling) = stage.room(LEN)?;
    window.put(&bytes);
    let from = window.lend();
    ensure!(window.is_lent() && filling.windows_out() == 1, "one window, which is lent");
    stage.push(Op::WriteAt { file, offset: 0, from, start: 0 })?;
    let put = catch_unwind(AssertUnwindSafe(|| window.rewind(0)));
    ensure!(put.is_err() && window.filled() == LEN, "a lent window was emptied");
    drop(window);
    let mut slot = filling.seal().map_err(|_| "a loan keeps a filling from being sealed")?;
    ensure!(slot.is_lent() && slot[..] == bytes, "the sealed batch is not what was filled");
    let put = catch_unwind(AssertUnwindSafe(|| slot[0] ^= 1));
    ensure!(put.is_err(), "lent bytes were written to");
    stage.written()?;
    ensure!(!slot.is_lent(), "the loan outlives the write");
    slot[..].fill(0xEE);
    drop(slot);
    ensure!(stage.read_all(file, 0, LEN)? == bytes, "other bytes were written");
    stage.ring.close_file(file);
    stage.strike()
}

fn a_lent_write_asked_back_gives_its_bytes_back<V: Venue>(venue: &mut V) -> Verdict {
    const LEN: usize = 200_000;
    let mut stage = Stage::new(venue, 16)?;
    let file = stage.new_file()?;
    let bytes = content(8, LEN);
    for turns in [0, 0, 1, 2] {
        let (from, filling) = stage.holding(&bytes)?;
        let mut slot = filling.seal().map_err(|_| "a loan keeps a filling from being sealed")?;
        let (_, id) = stage.push(Op::WriteAt { file, offset: 0, from, start: 0 })?;
        for _ in 0..turns {
            stage.turn()?;
        }
        stage.ring.cancel(id);
        ensure!(slot.is_lent(), "asking back is not getting back");
        let done = stage.next()?;
        ensure!(matches!(done.result, Ok(1..) | Err(libc::ECANCELED)), "asked back: {:?}", done.result);
        let Op::WriteAt { from, .. } = done.op else { return Err("not a write".into()) };
        ensure!(from.bytes() == bytes, "the bytes came back changed");
        drop(from);
        slot[..].fill(0xEE);
    }
    stage.ring.close_file(file);
    stage.strike()
}

/// Loans whose windows are long gone: a ring dropped with them at work gives them back, and only then memory is reused.
fn dropped_at_work_a_ring_gives_loans_back<V: Venue>(venue: &mut V) -> Verdict {
    const LEN: usize = 300_000;
    let mut stage = Stage::new(venue, 32)?;
    let path = stage.venue.file();
    let file = stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
    let bytes = content(9, LEN);
    for nth in 0..8 {
        let (from, filling) = stage.holding(&bytes)?;
        drop(filling);
        stage.push(Op::WriteAt { file, offset: 0, from, start: 0 })?;
        if nth == 3 {
            let now = stage.ring.now();
            stage.ring.wait(Some(now)).map_err(|error| error.to_string())?;
        }
    }
    // Some may be done by now; those that wait to be popped still have their bytes.
    ensure!(stage.region.outstanding() == 8, "{} of 8 loans hold their memory", stage.region.outstanding());
    drop(stage.ring);
    stage.region.collect();
    ensure!(stage.region.outstanding() == 0, "{} loans did not come home", stage.region.outstanding());
    // Nothing of what is in the memory from now on may reach the file.
    let mut next = stage.region.alloc(7 << 20).ok_or("the region is whole again")?;
    next[..].fill(0xEE);
    stage.venue.rest(fuelrail_base::Duration::from_millis(50));
    stage.ring = stage.venue.ring(32, &stage.arena);
    let file = stage.ring.open(&path, &NEW).map_err(|error| error.to_string())?;
    drop(next);
    let now = stage.read_all(file, 0, LEN)?;
    ensure!(bytes.starts_with(&now), "bytes from after the ring's end were written");
    stage.ring.close_file(file);
    stage.strike()
}

/// With and without direct access: the file gets whole units, the window exactly its bytes, and its neighbour none.
fn a_padded_window_is_written_and_read_whole<V: Venue>(venue: &mut V) -> Verdict {
    const UNIT: usize = 4096;
    let mut stage = Stage::new(venue, 16)?;
    for direct in [false, true] {
        let path = stage.venue.file();
        let options = FileOptions { direct, len: Some(64 << 10), ..NEW };
        let Ok(file) = stage.ring.open(&path, &options) else { continue };
        for (nth, len) in [1usize, 511, 512, 4095, 4096, 4097, 10_000].into_iter().enumerate() {
            let padded = len.next_multiple_of(UNIT);
            let bytes = content(nth as u64, len);
            let (mut window, _filling) = stage.aligned(len, padded)?;
            window.put(&bytes);
            ensure!(window.room() == 0 && window.len() == len, "the padding counts as room");
            let from = window.lend_padded(UNIT).ok_or("it is padded to a unit")?;
            ensure!(from.len() == padded && from[len..].iter().all(|b| *b == 0), "the padding is not zeroes");
            stage.push(Op::WriteAt { file, offset: 0, from, start: 0 })?;
            stage.written()?;
            drop((window, _filling));
            reread(&mut stage, file, &bytes, padded)?;
        }
        stage.ring.close_file(file);
    }
    stage.strike()
}

/// Reads `bytes` back into a padded window with a guard behind it.
fn reread<V: Venue>(stage: &mut Stage<'_, V>, file: FileId, bytes: &[u8], padded: usize) -> Verdict {
    let (mut into, mut filling) = stage.aligned(bytes.len(), padded)?;
    let mut guard = filling.carve(64).ok_or("room behind the padding")?;
    guard.put(&[0xEE; 64]);
    while into.room() > 0 {
        let offset = into.filled() as u64;
        stage.push(Op::ReadAt { file, offset, into })?;
        let done = stage.next()?;
        let n = done.result.map_err(|errno| format!("read: error {errno}"))?;
        let Op::ReadAt { into: back, .. } = done.op else { return Err("not a read".into()) };
        ensure!(n > 0 && back.filled() == offset as usize + n, "{n} of {} bytes at {offset}", back.len());
        into = back;
    }
    ensure!(into.bytes() == bytes, "{} bytes came back changed", bytes.len());
    ensure!(guard.bytes() == [0xEE; 64], "a read went beyond the padding");
    Ok(())
}
