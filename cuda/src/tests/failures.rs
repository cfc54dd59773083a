//! What goes wrong is said once, in order, with what to do; nothing hangs, and what may still be touched is kept.
#![cfg(test)]

use std::time::{Duration, Instant};

use fuelrail::{BadSamples, Kind, Listed};
use fuelrail_cuda_driver::{Settings, under_driver};

use super::skip::skip_or_fail;
use super::stand::{Consumer, PATIENCE, Store, control, eventually, store, watching};
use crate::{Device, DeviceBatch, DeviceTaken, FUNCTIONS, Feed, FeedConfig, Pinned, RawStream};

fn feed(config: FeedConfig) -> fuelrail::Result<Feed> {
    Feed::start(store().loader().batch_size(10).build().unwrap(), config)
}

/// An object as a listing names it.
fn listed(i: u64) -> Listed {
    let set = &store().set;
    Listed { key: set.key(i), size: set.size(i), etag: Some(set.etag(i)) }
}

/// Takes batches and lets go of them, to the end or the first error.
fn drain(feed: &mut Feed) -> (usize, Option<fuelrail::Error>) {
    let mut taken = 0;
    loop {
        match feed.next(RawStream::LEGACY) {
            None => return (taken, None),
            Some(Err(error)) => {
                assert!(feed.next(RawStream::LEGACY).is_none(), "an error is returned once");
                return (taken, Some(error));
            }
            Some(Ok(batch)) => {
                drop(batch);
                taken += 1;
            }
        }
    }
}

#[test]
fn without_a_driver_every_way_in_says_what_to_do() {
    // SAFETY: opens and closes shared libraries by name.
    if unsafe { cudarc::driver::sys::is_culib_present() } {
        return skip_or_fail("no-cuda-driver", "it has a CUDA driver");
    }
    for error in [Device::count().unwrap_err(), Device::all().unwrap_err(), Device::open(0).unwrap_err()] {
        let text = error.to_string();
        assert!(error.kind() == Kind::Environment && text.contains("libcuda.so.1 was not found"), "{text}");
        assert!(text.contains("install the NVIDIA driver") && text.contains("--gpus"), "{text}");
    }
    assert_eq!(feed(FeedConfig::default()).unwrap_err().kind(), Kind::Environment);
    let refused = |config: FeedConfig| feed(config).unwrap_err().kind();
    assert_eq!(refused(FeedConfig { depth: 0, ..FeedConfig::default() }), Kind::Usage);
    assert_eq!(refused(FeedConfig { copy_timeout_ms: 0, ..FeedConfig::default() }), Kind::Usage);
}

#[test]
fn a_short_wait_ends_without_a_batch_and_counts_as_one_wait() {
    let name = "tests::failures::a_short_wait_ends_without_a_batch_and_counts_as_one_wait";
    if !under_driver(name, &watching()) {
        return;
    }
    let late = Store::digits(40);
    late.bucket.set_script("latency=fixed:150ms".parse().unwrap()).unwrap();
    let loader = late.loader().batch_size(20).build().unwrap();
    let mut feed = Feed::start(loader, FeedConfig::default()).unwrap();
    let (mut waits, mut taken) = (0, 0);
    loop {
        match feed.next_within(RawStream::LEGACY, Duration::from_millis(5)).unwrap() {
            DeviceTaken::Batch(batch) => taken += batch.len(),
            DeviceTaken::NotYet => waits += 1,
            DeviceTaken::Over => break,
        }
    }
    let stats = feed.stats();
    assert!(taken == 40 && waits > 3, "{taken} {waits}");
    assert!(stats.readiness < 1.0 && stats.data_wait_s > 0.1 && stats.batches == 2, "{stats:?}");
    let over = feed.next_within(RawStream::LEGACY, Duration::ZERO).unwrap();
    assert!(matches!(over, DeviceTaken::Over));
}

#[test]
fn a_driver_without_devices_is_no_device() {
    if !under_driver("tests::failures::a_driver_without_devices_is_no_device", &Settings { devices: 0, ..watching() }) {
        return;
    }
    assert_eq!(Device::count().unwrap(), 0);
    assert!(Device::all().unwrap().is_empty());
    let text = Device::open(0).unwrap_err().to_string();
    assert!(text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
}

#[test]
fn a_device_is_described_and_a_number_that_is_none_refused() {
    let settings = Settings { devices: 2, ..watching() };
    if !under_driver("tests::failures::a_device_is_described_and_a_number_that_is_none_refused", &settings) {
        return;
    }
    let all = Device::all().unwrap();
    assert_eq!(all.iter().map(|facts| facts.ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((all[0].capability, all[0].memory_bytes), ((3, 7), 12 << 30));
    assert!(all[0].to_string().contains("compute capability 3.7"), "{}", all[0]);
    assert_eq!(control().report(), Default::default(), "looking retains nothing");
    let error = Device::open(2).unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("count from 0 to 1"), "{error}");
}

#[test]
fn memory_that_may_not_be_pinned_is_refused_whole() {
    let settings = Settings { pinned_limit: 4 << 20, ..watching() };
    if !under_driver("tests::failures::memory_that_may_not_be_pinned_is_refused_whole", &settings) {
        return;
    }
    // Two regions of 3 MB: the second is refused, the first must not stay.
    let start = || Feed::start(store().loader().shards(2).build().unwrap(), FeedConfig::default());
    let text = start().unwrap_err().to_string();
    assert!(text.contains("region 1") && text.contains("memlock"), "{text}");
    assert_eq!(control().calls()["cuMemHostRegister_v2"], 2);
    control().assert_clean();
    control().set("pinned_limit", &u64::MAX.to_string());
    control().set("faults", "fail cuMemHostRegister_v2 1 CUDA_ERROR_NOT_PERMITTED");
    assert!(start().unwrap_err().to_string().contains("ulimit -l"));
    control().assert_clean();
    let loader = store().loader().build().unwrap();
    let device = Device::open(0).unwrap();
    let held = Pinned::register(&device, loader.memory()).unwrap();
    assert!(Pinned::register(&device, loader.memory()).unwrap_err().to_string().contains("only once"));
    control().forgive();
    drop((loader, held, device));
    control().assert_clean();
}

#[test]
fn a_device_without_room_is_refused_with_the_numbers() {
    let settings = Settings { memory_limit: 20_000, ..watching() };
    if !under_driver("tests::failures::a_device_without_room_is_refused_with_the_numbers", &settings) {
        return;
    }
    // The bytes of ten samples, and their labels.
    let each = store().loader().batch_size(10).build().unwrap().batch_bytes_max().next_multiple_of(256) + 10 * 8;
    let depth = 20_000 / each as usize + 1;
    let error = feed(FeedConfig { depth, ..FeedConfig::default() }).unwrap_err();
    let text = error.to_string();
    assert!(error.kind() == Kind::Budget && text.contains(&format!("{depth} buffers")), "{text}");
    assert!(text.contains(&format!("{} bytes in all", each * depth as u64)) && text.contains("depth"), "{text}");
    control().assert_clean();
    drop(feed(FeedConfig { depth: depth - 1, ..FeedConfig::default() }).unwrap());
    control().assert_clean();
}

#[test]
fn a_copy_that_is_refused_ends_the_feed_and_leaves_nothing() {
    let settings = Settings { delay_us: 0..=200, ..watching() };
    if !under_driver("tests::failures::a_copy_that_is_refused_ends_the_feed_and_leaves_nothing", &settings) {
        return;
    }
    // Of every batch: its bytes, its labels.
    for nth in 1..=9 {
        control().set("faults", &format!("fail cuMemcpyHtoDAsync_v2 {nth} CUDA_ERROR_INVALID_VALUE"));
        let mut feed = feed(FeedConfig::default()).unwrap();
        let (taken, error) = drain(&mut feed);
        let text = error.unwrap().to_string();
        assert!(
            taken < nth && text.contains(&format!("batch {} on its way to GPU 0", (nth - 1) / 2)),
            "{taken}, {text}"
        );
        assert_eq!(feed.close().map(|remains| remains.operations), Some(0));
        control().assert_clean();
    }
}

#[test]
fn a_copy_whose_event_is_refused_is_awaited_all_the_same() {
    let settings = Settings { delay_us: 20_000..=20_000, ..watching() };
    if !under_driver("tests::failures::a_copy_whose_event_is_refused_is_awaited_all_the_same", &settings) {
        return;
    }
    // Of every batch: h2d_started, h2d_done. The copy is submitted between the two.
    for nth in [2, 3, 4] {
        control().set("faults", &format!("fail cuEventRecord {nth} CUDA_ERROR_INVALID_VALUE"));
        let mut feed = feed(FeedConfig::default()).unwrap();
        let mut error = None;
        while let (None, Some(next)) = (&error, feed.next(RawStream::LEGACY)) {
            // Held, so that only the copy thread records events.
            error = next.map(core::mem::forget).err();
        }
        assert!(error.unwrap().to_string().contains("recording an event"));
        drop(feed);
        assert!(control().violations().is_empty(), "{:?}", control().violations());
    }
}

#[test]
fn a_lost_device_is_an_error_and_nothing_hangs() {
    let settings = Settings { delay_us: 0..=200, ..watching() };
    if !under_driver("tests::failures::a_lost_device_is_an_error_and_nothing_hangs", &settings) {
        return;
    }
    let begun = Instant::now();
    let mut feed = feed(FeedConfig { depth: 4, ..FeedConfig::default() }).unwrap();
    let held: Vec<DeviceBatch> = (0..2).map(|_| feed.next(RawStream::LEGACY).unwrap().unwrap()).collect();
    control().set("faults", "lose copy 2 CUDA_ERROR_ILLEGAL_ADDRESS");
    let (_, error) = drain(&mut feed);
    let error = error.unwrap();
    assert_eq!(error.kind(), Kind::Environment);
    let text = error.to_string();
    assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && text.contains("start it again"), "{text}");
    drop(held);
    drop(feed);
    assert!(begun.elapsed() < PATIENCE);
    assert!(control().violations().is_empty(), "{:?}", control().violations());
    assert!(Device::open(0).is_err(), "the loss is for good");
}

#[test]
fn a_copy_that_hangs_is_named_and_its_memory_kept() {
    if !under_driver("tests::failures::a_copy_that_hangs_is_named_and_its_memory_kept", &watching()) {
        return;
    }
    control().set("faults", "hang copy 5");
    let begun = Instant::now();
    let mut feed = feed(FeedConfig { copy_timeout_ms: 3_000, ..FeedConfig::default() }).unwrap();
    let (taken, error) = drain(&mut feed);
    let text = error.unwrap().to_string();
    assert!(text.contains("batch 2") && text.contains("GPU 0") && text.contains("Xid"), "{text}");
    assert!((2..=5).contains(&taken), "{taken}");
    assert_eq!(feed.close(), None);
    assert!(begun.elapsed() < PATIENCE);
    // Whatever the device may still read or write is there, registered: the copy goes on and finds it.
    let report = control().report();
    assert!(report.registrations == 1 && report.allocations == 3 && report.violations == 0, "{report:?}");
    control().release();
    eventually("the released copy ends", || control().report().pending == 0);
    assert!(control().violations().is_empty(), "{:?}", control().violations());
}

#[test]
fn batches_outlive_their_feed() {
    let settings = Settings { delay_us: 0..=300, ..watching() };
    if !under_driver("tests::failures::batches_outlive_their_feed", &settings) {
        return;
    }
    let mut feed = feed(FeedConfig::default()).unwrap();
    let mut consumer = Consumer::new(0, 3, 1 << 20);
    let held: Vec<DeviceBatch> = (0..2).map(|_| feed.next(consumer.stream()).unwrap().unwrap()).collect();
    assert_eq!(held[1].state().map(|state| state.position), Some(20), "where the run stands after it");
    assert_eq!(feed.close().map(|remains| remains.slots), Some(0), "no host slot is needed for them");
    for batch in held {
        consumer.read(&batch, store());
    }
    consumer.finish(store());
    assert!(consumer.right.len() == 20 && consumer.wrong.is_empty(), "{:?}", consumer.wrong);
    drop(consumer);
    control().assert_clean();
}

#[test]
fn the_loaders_error_comes_behind_the_good_batches() {
    if !under_driver("tests::failures::the_loaders_error_comes_behind_the_good_batches", &watching()) {
        return;
    }
    let mut listing: Vec<Listed> = (0..40).map(listed).collect();
    listing.push(Listed { key: "zz/missing".into(), size: 100, etag: None });
    let builder = || store().loader().batch_size(10).shuffle(false).listing(listing.clone());
    let mut feed = Feed::start(builder().build().unwrap(), FeedConfig::default()).unwrap();
    let (taken, error) = drain(&mut feed);
    let error = error.unwrap();
    assert_eq!((taken, error.kind(), error.object()), (4, Kind::NotFound, Some("zz/missing")));
    drop(feed);
    control().assert_clean();
    let builder = builder().bad_samples(BadSamples::Skip);
    let mut feed = Feed::start(builder.build().unwrap(), FeedConfig::default()).unwrap();
    let last = std::iter::from_fn(|| feed.next(RawStream::LEGACY)).map(Result::unwrap).last().unwrap();
    assert_eq!((last.len(), last.left_out().len(), last.left_out()[0].0.0), (0, 1, 40));
    drop((last, feed));
    control().assert_clean();
}

#[test]
fn holding_every_buffer_and_asking_for_more_is_an_error() {
    if !under_driver("tests::failures::holding_every_buffer_and_asking_for_more_is_an_error", &watching()) {
        return;
    }
    let mut feed = feed(FeedConfig { depth: 2, ..FeedConfig::default() }).unwrap();
    let held: Vec<DeviceBatch> = (0..2).map(|_| feed.next(RawStream::LEGACY).unwrap().unwrap()).collect();
    let error = feed.next(RawStream::LEGACY).unwrap().unwrap_err();
    assert!(error.kind() == Kind::Budget && error.to_string().contains("the 2 batches you hold"), "{error}");
    drop((held, feed));
    control().assert_clean();
}

#[test]
fn a_stream_that_is_none_is_refused() {
    if !under_driver("tests::failures::a_stream_that_is_none_is_refused", &watching()) {
        return;
    }
    // SAFETY: none; the driver under test refuses a handle it does not know.
    let nobody = unsafe { RawStream::from_raw(core::ptr::without_provenance_mut(0x5000)) };
    let mut feed = feed(FeedConfig::default()).unwrap();
    let mut batch = feed.next(RawStream::LEGACY).unwrap().unwrap();
    assert!(batch.move_to(nobody).is_err());
    drop(batch);
    let text = feed.next(nobody).unwrap().unwrap_err().to_string();
    assert!(text.contains("INVALID_HANDLE") && text.contains("a stream of the feed's device"), "{text}");
    drop(feed);
    control().forgive();
    control().assert_clean();
}

#[test]
fn every_call_that_fails_once_ends_in_a_result() {
    let settings = Settings { delay_us: 0..=30, ..Settings::default() };
    if !under_driver("tests::failures::every_call_that_fails_once_ends_in_a_result", &settings) {
        return;
    }
    // The driver itself is up.
    assert_eq!(Device::count().unwrap(), 1);
    let gives_back = |name: &str| {
        ["Release", "Pop", "Push", "Destroy", "Free", "Unregister", "Query", "Record"].iter().any(|w| name.contains(w))
    };
    let mut before = (0, 0, 0, 0, 0);
    for (name, nth) in FUNCTIONS.iter().flat_map(|name| [1, 2, 5].map(|nth| (name, nth))) {
        control().set("faults", &format!("fail {name} {nth} CUDA_ERROR_UNKNOWN"));
        let builder = store().loader().batch_size(2).decode(fuelrail::Decode::exact(28, 28, 1));
        let loader = builder.listing((0..6).map(listed).collect()).build().unwrap();
        let outcome = Feed::start(loader, FeedConfig::default()).map(|mut feed| drain(&mut feed));
        let text = match &outcome {
            Ok((taken, None)) => (*taken == 3).then(String::new),
            Ok((_, Some(error))) | Err(error) => Some(error.to_string()),
        };
        assert!(
            text.as_ref().is_some_and(|t| t.is_empty() || t.contains("CUDA_ERROR_UNKNOWN")),
            "{name} {nth}: {outcome:?}"
        );
        control().set("faults", "");
        assert!(control().violations().is_empty(), "{name} {nth}: {:?}", control().violations());
        // Fails while something is given back: it stays, and is left out of the count from here on.
        let report = control().report();
        let left = (report.contexts, report.streams, report.events, report.allocations, report.registrations);
        assert!(left == before || gives_back(name), "{name} {nth}: {report:?}");
        before = left;
    }
}

#[test]
fn a_forked_child_is_refused_and_touches_nothing() {
    if !under_driver("tests::failures::a_forked_child_is_refused_and_touches_nothing", &watching()) {
        return;
    }
    let mut feed = feed(FeedConfig::default()).unwrap();
    let batch = feed.next(RawStream::LEGACY).unwrap().unwrap();
    // SAFETY: the child only uses memory of its own, which glibc's allocator keeps usable over a fork, and leaves by `_exit`.
    let code = unsafe {
        match libc::fork() {
            0 => {
                let refused =
                    matches!(feed.next(RawStream::LEGACY), Some(Err(error)) if error.kind() == Kind::Environment);
                drop(batch);
                drop(feed);
                libc::_exit(if refused { 42 } else { 1 })
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                libc::WEXITSTATUS(status)
            }
        }
    };
    assert_eq!(code, 42);
    drop(batch);
    assert_eq!(drain_rest(&mut feed), 8, "the parent goes on");
    drop(feed);
    control().assert_clean();
}

fn drain_rest(feed: &mut Feed) -> usize {
    std::iter::from_fn(|| feed.next(RawStream::LEGACY)).map(Result::unwrap).count()
}
