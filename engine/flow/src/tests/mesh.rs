//! The mesh: bounded, and nothing is lost.

use super::memory::region;
use crate::conn::Proof;
use crate::letter::{Answer, Ask, SpanId};
use crate::mesh::{MeshEnds, mesh};
use fuelrail_base::limits::CHANNEL_ENTRIES;
use fuelrail_base::{BlockId, SampleId, ShardId};
use fuelrail_io::{Filling, Waker};
use fuelrail_plan::brain::Source;
use fuelrail_plan::schedule::UseTime;

fn ask(filling: &mut Filling, home: u16, key: u32) -> Ask {
    let block = BlockId { sample: SampleId(key.into()), index: 0 };
    let window = filling.carve(1).unwrap();
    let span = SpanId { batch: 0, sample: key, index: 0 };
    Ask { home: ShardId(home), span, block, at: UseTime(0), window, fresh: false }
}

fn reply(ask: Ask) -> Answer {
    Answer { span: ask.span, window: ask.window, result: Ok((Proof::default(), Source::Bucket)) }
}

fn open_and_queued(open: usize, queued: usize) -> String {
    format!("mesh: {open} asks open with other shards, {queued} not sent yet")
}

#[test]
fn asks_beyond_the_lane_wait_and_every_one_is_answered_once() {
    let mut ends = mesh(3, true);
    let mut filling = region(1 << 20).alloc(1 << 16).unwrap().fill();
    let all = CHANNEL_ENTRIES + 500;
    for key in 0..all as u32 {
        ends[0].ask(1, ask(&mut filling, 0, key));
    }
    ends[0].flush();
    assert_eq!(ends[0].describe(), open_and_queued(CHANNEL_ENTRIES, 500));
    let mut answered = Vec::new();
    while answered.len() < all {
        let before = answered.len();
        // The owner may take everything in before it answers anything: answers still have room.
        let asks: Vec<Ask> = core::iter::from_fn(|| ends[1].next_ask()).collect();
        ends[0].flush();
        assert!(ends[1].next_ask().is_none(), "no more than a lane of asks is open at once");
        for ask in asks {
            ends[1].answer(0, reply(ask));
        }
        answered.extend(core::iter::from_fn(|| ends[0].next_answer()).map(|answer| answer.span.sample));
        ends[0].flush();
        assert!(answered.len() > before);
    }
    assert_eq!(answered, (0..all as u32).collect::<Vec<u32>>());
    assert_eq!(ends[0].describe(), open_and_queued(0, 0));
}

#[test]
fn the_lanes_of_many_shards_are_bounded_in_all() {
    for (shards, bytes_max) in [(2, 1 << 20), (8, 8 << 20), (64, 64 << 20)] {
        let bytes: u64 = mesh(shards, true).iter().map(MeshEnds::bytes).sum();
        assert!(bytes <= bytes_max, "{shards} shards: {bytes} bytes in lanes, more than {bytes_max}");
        let lanes = u64::from(shards) * u64::from(shards - 1);
        assert!(bytes >= lanes * 8 * (size_of::<Ask>() + size_of::<Answer>()) as u64, "{shards} shards: {bytes} bytes");
    }
}

#[test]
fn shards_that_keep_nothing_for_each_other_have_no_lanes() {
    let blocks = (0..100).map(|sample| BlockId { sample: SampleId(sample), index: 0 });
    for ends in mesh(4, false) {
        assert_eq!((ends.bytes(), blocks.clone().find_map(|block| ends.owner(block))), (0, None));
    }
    let others = |ends: &MeshEnds| blocks.clone().filter(|block| ends.owner(*block).is_some()).count();
    assert_eq!(mesh(4, true).iter().map(others).sum::<usize>(), 300, "every block has one owner");
}

#[test]
fn letters_reach_whom_they_are_for() {
    let mut ends = mesh(3, true);
    let mut filling = region(1 << 20).alloc(64).unwrap().fill();
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        ends[from].ask(to, ask(&mut filling, from as u16, (10 * from + to) as u32));
    }
    ends.iter_mut().for_each(MeshEnds::flush);
    for (owner, end) in ends.iter_mut().enumerate() {
        while let Some(ask) = end.next_ask() {
            assert_eq!(ask.span.sample as usize % 10, owner);
            let home = usize::from(ask.home.0);
            end.answer(home, reply(ask));
        }
    }
    for (home, end) in ends.iter_mut().enumerate() {
        let mut keys: Vec<u32> = core::iter::from_fn(|| end.next_answer()).map(|answer| answer.span.sample).collect();
        keys.sort_unstable();
        let others = (0..3).filter(|owner| *owner != home);
        assert_eq!(keys, others.map(|owner| (10 * home + owner) as u32).collect::<Vec<u32>>());
    }
}

#[test]
fn a_peer_is_woken_once_for_all_letters_of_a_turn() {
    let mut ends = mesh(2, true);
    let wakers = [Waker::sleeper(), Waker::sleeper()];
    (0..2).for_each(|at| ends[at].set_waker(&wakers[at]));
    let mut filling = region(1 << 20).alloc(64).unwrap().fill();
    (0..3).for_each(|key| ends[0].ask(1, ask(&mut filling, 0, key)));
    ends[0].flush();
    assert!(wakers[1].is_notified() && !wakers[0].is_notified());
    wakers[1].disarm();
    while let Some(taken) = ends[1].next_ask() {
        ends[1].answer(0, reply(taken));
        assert!(!wakers[0].is_notified(), "not before the turn ends");
    }
    ends[1].flush();
    assert!(wakers[0].is_notified() && !wakers[1].is_notified());
    wakers[0].disarm();
    ends[1].flush();
    assert!(!wakers[0].is_notified(), "nothing new");
}

#[test]
fn a_peer_that_is_gone_needs_no_answer() {
    let mut ends = mesh(2, true);
    let mut filling = region(1 << 20).alloc(64).unwrap().fill();
    ends[0].ask(1, ask(&mut filling, 0, 1));
    ends[0].flush();
    let taken = ends[1].next_ask().unwrap();
    drop(ends.remove(0));
    ends[0].answer(0, reply(taken));
    assert_eq!(filling.windows_out(), 0, "its window is dropped");
}
