//! Requests to other ranks and from them: what may have to be fetched does not hold up what is answered at once.

use super::memory::{region, window};
use super::world::{Bucket, content, objects};
use crate::conn::{Asked, AskedRank, End};
use crate::fetch::FetchStage;
use crate::peers::{PeerLink, PeerRequest, PeerRoute, PeerStage, peer_queue};
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{BlockId, Duration, Error, Kind, SampleId, ShardId};
use fuelrail_io::{Ring, SimFaults, SimRing, SimWorld, Waker};
use fuelrail_plan::planner::{Asker, FetchId};
use fuelrail_plan::schedule::UseTime;

const STALL_AFTER: Duration = Duration::from_secs(10);

/// Two ranks that wait for each other's fetches would otherwise wait until both give up.
#[test]
fn a_rank_is_asked_for_what_it_holds_beside_requests_that_it_does_not_answer() {
    let sizes = [100; 16];
    let mut bucket = Bucket::new(&sizes);
    let heard = bucket.heard.clone();
    bucket.takes = Box::new(move |nth| {
        let is_held = heard.borrow()[nth as usize].1.contains("Cache-Control: only-if-cached\r\n");
        is_held.then_some(Duration::from_millis(1))
    });
    let (objects, world) = (objects(&sizes, 1 << 20), SimWorld::new(1, SimFaults::default(), Box::new(bucket)));
    let (mut ring, mut region) = (SimRing::with_capacity(&world, 64, 8), region(4 << 20));
    let mut scratch = || (0..4).map(|_| region.alloc(SCRATCH_BYTES).unwrap()).collect::<Vec<_>>();
    let link = PeerLink { server: objects.server().clone(), route: PeerRoute::new("/b/k".into(), None) };
    let stage = FetchStage::new(objects, STALL_AFTER, scratch());
    let mut fetch = stage.with_peers(vec![None, Some(link)], STALL_AFTER, (scratch(), true));
    let mut landed = Vec::new();
    for (asked, if_held) in [(0..8, false), (8..10, true), (10..12, true), (12..14, false), (14..16, true)] {
        if asked.start == 10 {
            // Its connection closes, and others are open when a new one takes its place.
            let now = ring.now();
            fetch.recall(&mut ring, now, FetchId { place: 1, serial: 0 }, 1);
        }
        for n in asked {
            let rank = Some(AskedRank { at: UseTime(0), if_held });
            let asked = Asked { rank, ..Asked::whole(FetchId { place: n, serial: 0 }, SampleId(n.into()), 100) };
            fetch.ask_peer(1, asked, window(&mut region, 100), ring.now());
        }
        // Until nothing happens any more.
        let mut still = 0;
        while still < 2 {
            let now = ring.now();
            fetch.pump(&mut ring, now, 1, |_| 1);
            ring.wait(None).unwrap();
            let mut moved = false;
            while let Some(done) = ring.pop() {
                moved = true;
                let now = ring.now();
                fetch.done(&mut ring, now, done);
            }
            while let Some(outcome) = fetch.next_peer_outcome() {
                if outcome.asked.fetch.place != 1 {
                    assert!(matches!(outcome.end, End::Landed { .. }), "{outcome:?}");
                    assert_eq!(outcome.window.bytes(), content(outcome.asked.sample, 100));
                    landed.push(outcome.asked.fetch.place);
                }
            }
            still = if moved || world.advance() { 0 } else { still + 1 };
        }
    }
    assert_eq!(landed, [8, 9, 10, 11, 14, 15], "{}", fetch.describe(ring.now()));
}

#[test]
fn a_slot_is_left_for_blocks_that_are_held() {
    let (objects, mut region) = (objects(&[256; 8], 256), region(1 << 20));
    let (mut outbox, inbox) = peer_queue(3);
    let slots = (0..3).map(|_| region.alloc(256).unwrap()).collect();
    let mut stage = PeerStage::new(objects, inbox, slots, &Waker::sleeper());
    let mut ask = |sample, asker| {
        let block = BlockId { sample: SampleId(sample), index: 0 };
        let request = PeerRequest { block, at: UseTime(0), asker, reply: Box::new(|_| {}) };
        assert!(outbox.send(request).is_ok(), "there is room for it");
    };
    (0..3).for_each(|sample| ask(sample, Asker::Rank));
    ask(3, Asker::Leaving(1));
    let mut open = Vec::new();
    let mut next = |stage: &mut PeerStage| {
        let request = stage.next(ShardId(0))?;
        let sample = request.block.sample.0;
        open.push(request);
        Some(sample)
    };
    assert_eq!([next(&mut stage), next(&mut stage), next(&mut stage)], [Some(0), Some(1), None]);
    ask(4, Asker::RankIfHeld);
    ask(5, Asker::RankIfHeld);
    assert_eq!([next(&mut stage), next(&mut stage)], [Some(4), None], "what is held goes before");
    let mut give_up = |stage: &mut PeerStage, at: usize| {
        let request = open.remove(at);
        let gone = Error::new(Kind::NotFound, "it is gone");
        stage.landed(request.span.peer().unwrap(), request.window, Err(gone));
    };
    give_up(&mut stage, 2);
    give_up(&mut stage, 0);
    let [first, second] = [(); 2].map(|()| stage.next(ShardId(0)));
    assert_eq!((first.map(|request| request.block.sample.0), second.is_none()), (Some(5), true));
}
