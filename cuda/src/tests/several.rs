//! Several devices, streams, counters: what a consumer sees beside the bytes.
#![cfg(test)]

use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUstream, CUstreamCaptureMode};
use fuelrail_cuda_driver::{Code, Fault, Settings, When, on_device, under_any_driver, under_driver};

use super::stand::{Consumer, check, control, store, watching};
use crate::{Device, Feed, FeedConfig, RawStream};

#[test]
fn a_capture_beside_a_running_feed_is_not_broken() {
    let settings = Settings { delay_us: 0..=100, ..watching() };
    if !under_any_driver("tests::several::a_capture_beside_a_running_feed_is_not_broken", &settings) {
        return;
    }
    let loader = store().loader().batch_size(2).epochs(20).build().unwrap();
    let mut feed = Feed::start(loader, FeedConfig::default()).unwrap();
    let (trains, captures) = (Consumer::new(0, 0, 0), Consumer::new(0, 0, 0));
    let captured: CUstream = captures.stream().as_raw().cast();
    let (mut graph, mut context) = (core::ptr::null_mut(), core::ptr::null_mut());
    // As a thread that captures does: with the context current, in CUDA's default mode.
    // SAFETY: writes one handle; what is retained and pushed is let go of below.
    unsafe {
        check(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
        check(sys::cuCtxPushCurrent_v2(context));
        check(sys::cuStreamBeginCapture_v2(captured, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL));
    }
    // The copy thread queries its events meanwhile, and this one takes batches.
    for _ in 0..200 {
        drop(feed.next(trains.stream()).unwrap().unwrap());
    }
    // SAFETY: the stream is captured since above; writes one handle, which is given back; pops and releases what was pushed and retained.
    unsafe {
        check(sys::cuStreamEndCapture(captured, &raw mut graph));
        if on_device() {
            check(sys::cuGraphDestroy(graph));
        }
        check(sys::cuCtxPopCurrent_v2(&raw mut context));
        check(sys::cuDevicePrimaryCtxRelease_v2(0));
    }
    assert!(!graph.is_null());
    drop((feed, trains, captures));
    control().assert_clean();
}

#[test]
fn the_stream_of_a_thread_is_refused_and_the_feed_goes_on() {
    if !under_any_driver("tests::several::the_stream_of_a_thread_is_refused_and_the_feed_goes_on", &watching()) {
        return;
    }
    let mut feed = Feed::start(store().loader().batch_size(10).build().unwrap(), FeedConfig::default()).unwrap();
    // SAFETY: one of CUDA's special handles, which no batch is taken with.
    let per_thread = unsafe { RawStream::from_raw(core::ptr::without_provenance_mut(2)) };
    let refused = feed.next(per_thread).unwrap().unwrap_err();
    assert_eq!(refused.kind(), fuelrail::Kind::Usage, "{refused}");
    let mut first = feed.next(RawStream::LEGACY).unwrap().unwrap();
    assert_eq!((first.seq(), first.move_to(per_thread).unwrap_err().kind()), (0, fuelrail::Kind::Usage));
    drop(first);
    assert_eq!(std::iter::from_fn(|| feed.next(RawStream::LEGACY)).map(Result::unwrap).count(), 8);
    drop(feed);
    control().assert_clean();
}

#[test]
fn a_lost_device_leaves_the_feed_of_another_alone() {
    let settings = Settings { devices: 2, delay_us: 0..=100, ..watching() };
    if !under_driver("tests::several::a_lost_device_leaves_the_feed_of_another_alone", &settings) {
        return;
    }
    let start = |device| {
        let loader = store().loader().batch_size(10).build().unwrap();
        Feed::start(loader, FeedConfig { device, ..FeedConfig::default() }).unwrap()
    };
    let mut feeds = [start(0), start(1)];
    let mut consumer = Consumer::new(1, 2, 1 << 20);
    // This thread's next event is recorded on device 0: where its batch is dropped.
    let held = feeds[0].next(RawStream::LEGACY).unwrap().unwrap();
    let code = Code::ECC_UNCORRECTABLE;
    let device = Device::open(0).unwrap();
    let entered = device.context().enter().unwrap();
    control().set_faults(&[Fault::Lose { when: When::Call("cuMemGetInfo_v2".to_owned(), 1), code }]);
    let (mut free, mut all) = (0, 0);
    // SAFETY: writes two numbers, to variables that live through the call.
    let lost = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut all) };
    assert_eq!(lost, sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
    drop((held, entered));
    let told = std::iter::from_fn(|| feeds[0].next(RawStream::LEGACY)).last().unwrap().unwrap_err();
    assert!(told.to_string().contains("CUDA_ERROR_ECC_UNCORRECTABLE"), "{told}");
    while let Some(batch) = feeds[1].next(consumer.stream()) {
        consumer.read(&batch.unwrap(), store());
    }
    consumer.finish(store());
    assert!(consumer.wrong.is_empty(), "{:?}", consumer.wrong);
    assert_eq!(consumer.right.len() as u64, store().set.len());
}

#[test]
fn counters_tell_what_was_copied_and_whether_it_was_waited_for() {
    if !under_driver("tests::several::counters_tell_what_was_copied_and_whether_it_was_waited_for", &watching()) {
        return;
    }
    control().set("gbps", "0.0005");
    let mut feed = Feed::start(store().loader().batch_size(10).build().unwrap(), FeedConfig::default()).unwrap();
    assert_eq!(feed.stats().readiness, 1.0);
    let batch = feed.next(RawStream::LEGACY).unwrap().unwrap();
    assert_eq!(feed.stats().held, 1);
    let loader = feed.loader_stats(Duration::from_secs(20)).unwrap();
    assert!(loader.batches >= 1, "{loader:?}");
    drop(batch);
    let rest = std::iter::from_fn(|| feed.next(RawStream::LEGACY)).map(Result::unwrap).count();
    let stats = feed.stats();
    assert_eq!((stats.batches, stats.copies, stats.held, rest), (9, 9, 0, 8), "{stats:?}");
    // So many bytes at so many a second.
    let least = stats.copied_bytes as f64 / 5e5 * 0.9;
    assert!(stats.copied_bytes > 10_000 && stats.copy_s > least && stats.copy_s_max <= stats.copy_s, "{stats:?}");
    assert!(stats.landed < 1.0 && stats.data_wait_s > 0.0 && stats.readiness < 1.0, "{stats:?}");
    drop(feed);
    control().assert_clean();
}

#[test]
fn behind_its_last_batch_a_feed_returns_the_loaders_counters_at_once() {
    let name = "tests::several::behind_its_last_batch_a_feed_returns_the_loaders_counters_at_once";
    if !under_driver(name, &watching()) {
        return;
    }
    let mut feed = Feed::start(store().loader().batch_size(10).build().unwrap(), FeedConfig::default()).unwrap();
    assert_eq!(std::iter::from_fn(|| feed.next(RawStream::LEGACY)).map(Result::unwrap).count(), 9);
    let begun = Instant::now();
    let loader = feed.loader_stats(Duration::from_secs(60)).unwrap();
    assert_eq!((loader.batches, loader.samples), (9, store().set.len()), "{loader:?}");
    let refused = feed.hand_over(Duration::from_secs(60)).unwrap_err();
    assert_eq!(refused.kind(), fuelrail::Kind::Environment, "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    drop(feed);
    control().assert_clean();
}

#[test]
fn with_peers_a_feed_hands_over_behind_its_last_batch() {
    if !under_driver("tests::several::with_peers_a_feed_hands_over_behind_its_last_batch", &watching()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    let builder = store().loader().batch_size(10).memory_limit("64MB".parse().unwrap());
    let builder = builder.rank(0).world(2).cache_limit("4MB".parse().unwrap());
    let builder = builder.peers(["127.0.0.1:0", "127.0.0.1:9"]).peer_secret_file(&secret);
    let mut feed = Feed::start(builder.build().unwrap(), FeedConfig::default()).unwrap();
    assert!(std::iter::from_fn(|| feed.next(RawStream::LEGACY)).map(Result::unwrap).count() > 0);
    // The other rank is not there to take anything; the loader replies all the same.
    feed.hand_over(Duration::from_secs(1)).unwrap();
    assert!(feed.close().is_some());
    control().assert_clean();
}
