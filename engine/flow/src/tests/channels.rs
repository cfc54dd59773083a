//! Channels between shards are bounded and lose nothing.

use super::memory::region;
use crate::assemble::BadSamples;
use crate::channels::{BlockReply, BlockRequest, ChannelEnds, SpanId, channels};
use crate::conn::Proof;
use crate::setup::keep_for_others;
use fuelrail_base::limits::CHANNEL_ENTRIES;
use fuelrail_base::{BlockId, SampleId, ShardId};
use fuelrail_io::{Filling, Waker};
use fuelrail_plan::planner::Source;
use fuelrail_plan::schedule::UseTime;

fn request(filling: &mut Filling, assembler: u16, key: u32) -> BlockRequest {
    let block = BlockId { sample: SampleId(key.into()), index: 0 };
    let window = filling.carve(1).unwrap();
    let span = SpanId { batch: 0, sample: key, index: 0 };
    BlockRequest { assembler: ShardId(assembler), span, block, at: UseTime(0), window, fresh: false }
}

fn reply(request: BlockRequest) -> BlockReply {
    BlockReply { span: request.span, window: request.window, result: Ok((Proof::default(), Source::Bucket)) }
}

fn open_and_queued(open: usize, queued: usize) -> String {
    format!("channels: {open} requests open with other shards, {queued} not sent yet")
}

#[test]
fn asks_beyond_the_lane_wait_and_every_one_is_answered_once() {
    let mut ends = channels(3, true);
    let mut filling = region(1 << 20).alloc(1 << 16).unwrap().fill();
    let all = CHANNEL_ENTRIES + 500;
    for key in 0..all as u32 {
        ends[0].request(1, request(&mut filling, 0, key));
    }
    ends[0].flush();
    assert_eq!(ends[0].describe(), open_and_queued(CHANNEL_ENTRIES, 500));
    let mut answered = Vec::new();
    while answered.len() < all {
        let before = answered.len();
        // The owner may take everything in before it replies to anything: replies still have room.
        let requests: Vec<BlockRequest> = core::iter::from_fn(|| ends[1].next_request()).collect();
        ends[0].flush();
        assert!(ends[1].next_request().is_none(), "no more than a lane of requests is open at once");
        for request in requests {
            ends[1].reply(0, reply(request));
        }
        answered.extend(core::iter::from_fn(|| ends[0].next_reply()).map(|reply| reply.span.sample));
        ends[0].flush();
        assert!(answered.len() > before);
    }
    assert_eq!(answered, (0..all as u32).collect::<Vec<u32>>());
    assert_eq!(ends[0].describe(), open_and_queued(0, 0));
}

#[test]
fn blocks_have_an_owner_where_any_shard_keeps_them() {
    assert!(
        !keep_for_others(0, false, false, BadSamples::Raise) && !keep_for_others(0, false, false, BadSamples::Skip)
    );
    assert!(keep_for_others(1, false, false, BadSamples::Raise));
    assert!(keep_for_others(0, false, true, BadSamples::Raise) && keep_for_others(0, true, false, BadSamples::Raise));
    assert!(keep_for_others(0, false, false, BadSamples::Quarantine));
}

#[test]
fn the_lanes_of_many_shards_are_bounded_in_all() {
    for (shards, bytes_max) in [(2, 1 << 20), (8, 8 << 20), (64, 64 << 20)] {
        let bytes: u64 = channels(shards, true).iter().map(ChannelEnds::bytes).sum();
        assert!(bytes <= bytes_max, "{shards} shards: {bytes} bytes in lanes, more than {bytes_max}");
        let lanes = u64::from(shards) * u64::from(shards - 1);
        assert!(
            bytes >= lanes * 8 * (size_of::<BlockRequest>() + size_of::<BlockReply>()) as u64,
            "{shards} shards: {bytes} bytes"
        );
    }
}

#[test]
fn shards_that_keep_nothing_for_each_other_have_no_lanes() {
    let blocks = (0..100).map(|sample| BlockId { sample: SampleId(sample), index: 0 });
    for ends in channels(4, false) {
        assert_eq!((ends.bytes(), blocks.clone().find_map(|block| ends.owner(block))), (0, None));
    }
    let others = |ends: &ChannelEnds| blocks.clone().filter(|block| ends.owner(*block).is_some()).count();
    assert_eq!(channels(4, true).iter().map(others).sum::<usize>(), 300, "every block has one owner");
}

#[test]
fn letters_reach_whom_they_are_for() {
    let mut ends = channels(3, true);
    let mut filling = region(1 << 20).alloc(64).unwrap().fill();
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        ends[from].request(to, request(&mut filling, from as u16, (10 * from + to) as u32));
    }
    ends.iter_mut().for_each(ChannelEnds::flush);
    for (owner, end) in ends.iter_mut().enumerate() {
        while let Some(request) = end.next_request() {
            assert_eq!(request.span.sample as usize % 10, owner);
            let assembler = usize::from(request.assembler.0);
            end.reply(assembler, reply(request));
        }
    }
    for (assembler, end) in ends.iter_mut().enumerate() {
        let mut keys: Vec<u32> = core::iter::from_fn(|| end.next_reply()).map(|reply| reply.span.sample).collect();
        keys.sort_unstable();
        let others = (0..3).filter(|owner| *owner != assembler);
        assert_eq!(keys, others.map(|owner| (10 * assembler + owner) as u32).collect::<Vec<u32>>());
    }
}

#[test]
fn a_peer_is_woken_once_for_all_letters_of_a_turn() {
    let mut ends = channels(2, true);
    let wakers = [Waker::sleeper(), Waker::sleeper()];
    (0..2).for_each(|at| ends[at].set_waker(&wakers[at]));
    let mut filling = region(1 << 20).alloc(64).unwrap().fill();
    (0..3).for_each(|key| ends[0].request(1, request(&mut filling, 0, key)));
    ends[0].flush();
    assert!(wakers[1].is_notified() && !wakers[0].is_notified());
    wakers[1].disarm();
    while let Some(taken) = ends[1].next_request() {
        ends[1].reply(0, reply(taken));
        assert!(!wakers[0].is_notified(), "not before the iteration ends");
    }
    ends[1].flush();
    assert!(wakers[0].is_notified() && !wakers[1].is_notified());
    wakers[0].disarm();
    ends[1].flush();
    assert!(!wakers[0].is_notified(), "nothing new");
}

#[test]
fn a_peer_that_is_gone_needs_no_answer() {
    let mut ends = channels(2, true);
    let mut filling = region(1 << 20).alloc(64).unwrap().fill();
    ends[0].request(1, request(&mut filling, 0, 1));
    ends[0].flush();
    let taken = ends[1].next_request().unwrap();
    drop(ends.remove(0));
    ends[0].reply(0, reply(taken));
    assert_eq!(filling.windows_out(), 0, "its window is dropped");
}
