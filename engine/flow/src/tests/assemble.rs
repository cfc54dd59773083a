//! Batches assembled from blocks in any order, proved, and asked for again when the proof fails.

use super::memory::region;
use super::world::{content, objects, run};
use crate::assemble::{AssembleStage, Assembled, BadSamples, Finished};
use crate::channels::{BlockReply, BlockRequest};
use crate::conn::Proof;
use crate::objects::Objects;
use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::prng::Prng;
use fuelrail_base::{BatchSeq, Error, Kind, SampleId, ShardId};
use fuelrail_io::Region;
use fuelrail_plan::planner::Source;
use fuelrail_plan::run::Run;
use fuelrail_plan::schedule::Schedule;
use fuelrail_wire::Etag;
use std::sync::Arc;

struct Rig {
    objects: Arc<Objects>,
    run: Run,
    region: Region,
    stage: AssembleStage,
    requests: Vec<BlockRequest>,
}

impl Rig {
    /// Two epochs over objects of these sizes, in batches of `batch_size`.
    fn new(sizes: &[u64], block_bytes: u64, batch_size: u32, bad_samples: BadSamples) -> Rig {
        let objects = objects(sizes, block_bytes);
        let run = run(sizes.len() as u64, batch_size, 2);
        let stage = AssembleStage::new(ShardId(0), Arc::clone(&objects), run.clone(), bad_samples);
        Rig { objects, run, region: region(1 << 20), stage, requests: Vec::new() }
    }

    fn open(&mut self, seq: u64) {
        let spec = self.run.batch(BatchSeq(seq)).unwrap();
        let room: u64 = self.run.samples(&spec).map(|id| self.objects.catalog().room(id)).sum();
        let slot = self.region.alloc(room as usize).unwrap();
        self.stage.open(BatchSeq(seq), slot, &mut self.requests);
    }

    /// Fills the window of `request` as the bucket would.
    fn serve(&self, request: &mut BlockRequest) {
        let catalog = self.objects.catalog();
        let whole = content(request.block.sample, catalog.size(request.block.sample));
        let first = catalog.block_first(request.block) as usize;
        assert_eq!(request.window.filled(), 0, "a window is asked for empty");
        let part = &whole[first..first + catalog.block_len(request.block) as usize];
        assert_eq!(request.window.put(part), part.len());
        assert_eq!(request.window.room(), 0, "a window is as long as its block");
    }

    fn reply(&mut self, mut request: BlockRequest, proof: Proof) {
        self.serve(&mut request);
        let reply = BlockReply { span: request.span, window: request.window, result: Ok((proof, Source::Bucket)) };
        self.stage.reply(reply, &mut self.requests);
    }

    fn refuse(&mut self, request: BlockRequest, kind: Kind) {
        let result = Err(Error::new(kind, "refused by the test"));
        self.stage.reply(BlockReply { span: request.span, window: request.window, result }, &mut self.requests);
    }

    /// Replies to all requests, new ones too, with `proof` of each.
    fn reply_all(&mut self, proof: impl Fn(&BlockRequest) -> Proof) {
        while let Some(request) = self.requests.pop() {
            let proof = proof(&request);
            self.reply(request, proof);
        }
    }

    fn finished(&mut self) -> Option<Finished> {
        let mut all: Vec<Finished> = self.stage.finished().collect();
        assert!(all.len() <= 1);
        all.pop()
    }

    fn assembled(&mut self) -> Assembled {
        self.finished().expect("the batch is finished").result.unwrap()
    }
}

fn none(_: &BlockRequest) -> Proof {
    Proof::default()
}

fn crc(of: &[u8]) -> Proof {
    Proof { crc32c: Some(crc32c::crc32c(of)), etag: None }
}

#[test]
fn samples_lie_in_order_each_at_a_line_whatever_comes_first() {
    let sizes = [0, 1, 64, 65, 200, 0, 7, 640, 3];
    for seed in 0..50 {
        let mut prng = Prng::new(seed);
        let mut rig = Rig::new(&sizes, 64, 9, BadSamples::Raise);
        let schedule = Schedule::new(&rig.run, 1);
        // Two batches at once, and a third in the lists of a finished one.
        rig.open(0);
        rig.open(1);
        assert_eq!(rig.requests.len(), 2 * (1 + 1 + 2 + 4 + 1 + 10 + 1));
        for request in &rig.requests {
            let epoch = schedule.cursor(request.at).epoch;
            assert_eq!(request.at, schedule.time(epoch, request.block.sample.0));
            assert!(!request.fresh && request.assembler == ShardId(0));
        }
        let mut done = Vec::new();
        while !rig.requests.is_empty() {
            let request = rig.requests.swap_remove(prng.below(rig.requests.len() as u64) as usize);
            let proof = crc(&content(request.block.sample, sizes[request.block.sample.0 as usize]));
            rig.reply(request, proof);
            done.extend(rig.stage.finished());
        }
        assert!(rig.stage.is_empty() && done.len() == 2 && rig.stage.unproved == 0);
        for finished in done {
            let Assembled { slot, samples, left_out, spec } = finished.result.unwrap();
            assert!(left_out.is_empty() && spec.seq == finished.seq);
            let mut offset = 0;
            for (i, placed) in samples.iter().enumerate() {
                assert_eq!((placed.id, placed.offset, placed.len as u64), (SampleId(i as u64), offset, sizes[i]));
                assert_eq!(slot[offset..offset + placed.len], content(placed.id, sizes[i]));
                offset = (offset + placed.len).next_multiple_of(SAMPLE_ALIGN);
            }
            assert_eq!((samples.len(), offset), (sizes.len(), slot.len()));
        }
    }
}

#[test]
fn a_batch_of_empty_samples_is_finished_when_it_is_opened() {
    let mut rig = Rig::new(&[0, 0], 64, 2, BadSamples::Raise);
    rig.open(0);
    assert!(rig.requests.is_empty());
    assert_eq!(rig.assembled().samples.len(), 2);
}

#[test]
fn a_wrong_checksum_is_asked_for_twice_more_past_the_cache_then_the_sample_is_bad() {
    let mut rig = Rig::new(&[100], 64, 1, BadSamples::Raise);
    rig.open(0);
    for round in 0..3 {
        assert_eq!(rig.requests.len(), 2, "round {round}: all blocks of the sample");
        assert!(rig.requests.iter().all(|request| request.fresh == (round > 0)));
        for request in core::mem::take(&mut rig.requests) {
            rig.reply(request, crc(b"something else"));
        }
    }
    let error = rig.finished().unwrap().result.unwrap_err();
    assert_eq!((error.kind(), rig.stage.unproved), (Kind::Mismatch, 3));
    assert!(error.to_string().contains("k/0"), "{error}");
}

#[test]
fn a_checksum_that_is_right_the_second_time_is_good() {
    let mut rig = Rig::new(&[100], 64, 1, BadSamples::Raise);
    rig.open(0);
    let good = crc(&content(SampleId(0), 100));
    rig.reply_all(|request| if request.fresh { good } else { crc(b"something else") });
    let batch = rig.assembled();
    assert_eq!(batch.slot[..100], content(SampleId(0), 100));
    assert_eq!(rig.stage.unproved, 1);
}

#[test]
fn parts_of_two_versions_are_never_delivered() {
    let tag = |text: &str| Proof { etag: Some(Etag::of(text)), crc32c: None };
    let mut rig = Rig::new(&[200], 64, 1, BadSamples::Raise);
    rig.open(0);
    // One of the four blocks is of another version, once.
    rig.reply_all(|request| tag(if request.block.index == 2 && !request.fresh { "\"old\"" } else { "\"new\"" }));
    assert_eq!(rig.assembled().samples.len(), 1);
    assert_eq!(rig.stage.unproved, 1);

    let mut rig = Rig::new(&[200], 64, 1, BadSamples::Raise);
    rig.open(0);
    rig.reply_all(|request| tag(if request.block.index == 2 { "\"old\"" } else { "\"new\"" }));
    assert_eq!(rig.finished().unwrap().result.unwrap_err().kind(), Kind::Changed);
}

#[test]
fn an_error_waits_for_the_blocks_still_under_way() {
    let mut rig = Rig::new(&[200], 64, 1, BadSamples::Raise);
    rig.open(0);
    let mut requests = core::mem::take(&mut rig.requests);
    let first = requests.remove(0);
    rig.refuse(first, Kind::NotFound);
    assert!(rig.finished().is_none(), "the kernel may still write to the other windows");
    for request in requests {
        rig.reply(request, Proof::default());
    }
    let error = rig.finished().unwrap().result.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(rig.requests.is_empty(), "what was given up is not proved and not asked for again");
    assert_eq!(rig.region.outstanding(), 0);
}

#[test]
fn skipped_samples_leave_the_others_in_place() {
    let sizes = [70, 70, 70];
    let mut rig = Rig::new(&sizes, 64, 3, BadSamples::Skip);
    for seq in 0..2 {
        rig.open(seq);
        assert_eq!(rig.requests.len(), 6, "a skipped sample is tried again in the next epoch");
        for request in core::mem::take(&mut rig.requests) {
            match request.block.sample {
                SampleId(1) => rig.refuse(request, Kind::Denied),
                _ => rig.reply(request, Proof::default()),
            }
        }
        let batch = rig.assembled();
        let ids: Vec<u64> = batch.samples.iter().map(|p| p.id.0).collect();
        let left_out: Vec<(u64, Kind)> = batch.left_out.iter().map(|(id, error)| (id.0, error.kind())).collect();
        assert_eq!((ids, left_out), (vec![0, 2], vec![(1, Kind::Denied)]));
        let last = batch.samples[1];
        assert_eq!(batch.slot[last.offset..last.offset + last.len], content(last.id, 70));
    }
}

#[test]
fn quarantined_samples_are_not_asked_for_again() {
    let mut rig = Rig::new(&[70, 70], 64, 2, BadSamples::Quarantine);
    rig.open(0);
    for request in core::mem::take(&mut rig.requests) {
        match request.block.sample {
            SampleId(0) => rig.refuse(request, Kind::NotFound),
            _ => rig.reply(request, Proof::default()),
        }
    }
    assert_eq!(rig.assembled().left_out.len(), 1);
    rig.open(1);
    assert!(rig.requests.len() == 2 && rig.requests.iter().all(|request| { request.block.sample } == SampleId(1)));
    rig.reply_all(none);
    let batch = rig.assembled();
    assert_eq!(
        (batch.samples.len(), batch.left_out[0].0, batch.left_out[0].1.kind()),
        (1, SampleId(0), Kind::NotFound)
    );
}
