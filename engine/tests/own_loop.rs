//! Programs with a loop of their own: the loader as a stream, and its eventfd.

use crate::common::keys::at_gate;
use crate::common::services::Service;
use crate::common::{Delivered, PATIENCE, bucket, drain, eventually, listing, loader, loader_at, take};
use fuelrail::{Kind, Taken};
use fuelrail_bucket::DataSet;
use futures_util::StreamExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SLOW: &str = "latency=fixed:20ms";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Counts how often it gets its turn.
async fn ticking(count: &std::cell::Cell<u32>) {
    loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        count.set(count.get() + 1);
    }
}

#[test]
fn a_stream_delivers_what_the_iterator_does_and_leaves_the_thread_to_others() {
    let set = DataSet::digits(100, 7);
    let bucket = bucket(&set, SLOW);
    let builder = loader(&bucket).batch_size(4).epochs(2).connections_max(2).shards(2);
    let expected = drain(&mut builder.clone().build().unwrap(), &set).unwrap();
    let (mut loader, mut delivered) = (builder.build().unwrap(), Delivered::default());
    let ticks = std::cell::Cell::new(0);
    runtime().block_on(async {
        let reading = async {
            while let Some(batch) = StreamExt::next(&mut loader).await {
                take(&batch.unwrap(), &loader, &set, &mut delivered);
            }
        };
        tokio::select! { () = reading => {}, () = ticking(&ticks) => unreachable!("it ticks for ever") }
    });
    assert_eq!(delivered.order, expected.order);
    assert!(ticks.get() > 20, "others had their turn: {}", ticks.get());
    let stats = loader.stats();
    assert!(stats.data_wait_s > 0.1 && stats.readiness < 1.0, "waiting is counted: {stats:?}");
}

#[test]
fn an_eventfd_that_is_made_behind_a_wait_is_readable() {
    let set = DataSet::digits(8, 7);
    let bucket = bucket(&set, SLOW);
    let mut loader = loader(&bucket).batch_size(4).connections_max(1).build().unwrap();
    for _ in 0..2 {
        loader.next_batch().unwrap().unwrap();
    }
    let event = loader.event().unwrap();
    assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())).unwrap(), 1);
    assert!(matches!(loader.try_next_batch().unwrap(), Taken::Over));
}

#[test]
fn the_eventfd_is_readable_when_a_batch_may_be_there() {
    let set = DataSet::digits(60, 7);
    let bucket = bucket(&set, SLOW);
    let mut loader = loader(&bucket).batch_size(4).connections_max(2).build().unwrap();
    let (mut delivered, mut looks) = (Delivered::default(), 0);
    let event = loader.event().unwrap();
    loop {
        looks += 1;
        match loader.try_next_batch().unwrap() {
            Taken::Batch(batch) => take(&batch, &loader, &set, &mut delivered),
            Taken::NotYet => {
                let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                let ready = poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)).unwrap();
                assert_eq!(ready, 1, "what comes makes it readable");
            }
            Taken::Over => break,
        }
    }
    assert_eq!(delivered.order.len(), 60);
    assert!(looks < 200, "it looks when there may be something, not all the time: {looks}");
}

/// From a look that finds nothing to the wake, and inside the calls: what the program does before it looks again is its own.
#[test]
fn only_what_was_waited_for_is_data_wait() {
    let set = DataSet::digits(8, 7);
    let bucket = bucket(&set, "");
    let looked = Arc::new(AtomicBool::new(false));
    let is_looked = Arc::clone(&looked);
    let gate = Service::before(&bucket, move |_| {
        eventually("nobody looks", || is_looked.load(Ordering::Acquire));
        None
    });
    let builder = loader_at(&at_gate(&gate, &bucket)).listing(listing(&set)).batch_size(8);
    let mut loader = builder.build().unwrap();
    let (event, begun) = (loader.event().unwrap(), Instant::now());
    assert!(matches!(loader.try_next_batch(), Ok(Taken::NotYet)));
    looked.store(true, Ordering::Release);
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)).unwrap(), 1);
    let waited = begun.elapsed();
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    assert!(matches!(loader.try_next_batch(), Ok(Taken::Batch(_))));
    let waited = (waited + begun.elapsed()).as_secs_f64();
    let stats = loader.stats();
    assert!(stats.data_wait_s <= waited + 0.001 && stats.readiness < 0.5, "{waited} s: {stats:?}");
}

#[test]
fn a_call_between_look_and_poll_leaves_the_eventfd_readable() {
    let bucket = bucket(&DataSet::digits(60, 7), "latency=fixed:200ms");
    let mut loader = loader(&bucket).batch_size(30).connections_max(2).build().unwrap();
    let event = loader.event().unwrap();
    let is_readable = |within_s: i64| {
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec { tv_sec: within_s, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(matches!(loader.try_next_batch(), Ok(Taken::NotYet)) && !is_readable(0));
    // As by another thread, while the one that has looked sleeps: it disarms what that one waits for.
    assert!(matches!(loader.next_batch_within(Duration::from_millis(1)), Ok(Taken::NotYet)) && is_readable(0));
    assert!(matches!(loader.try_next_batch(), Ok(Taken::NotYet)) && is_readable(20), "the first batch comes");
    for _ in 0..2 {
        while let Taken::NotYet = loader.try_next_batch().unwrap() {
            assert!(is_readable(20));
        }
        assert!(is_readable(0), "another thread that sleeps looks for the batch after this one");
    }
    assert!(matches!(loader.try_next_batch(), Ok(Taken::Over)) && is_readable(0), "all learn that it is over");
}

#[test]
fn a_stream_whose_batches_are_held_goes_on_when_they_are_dropped() {
    let bucket = bucket(&DataSet::photos(120, 3), "");
    let builder = loader(&bucket).memory_limit("12MB".parse().unwrap()).batch_size(8).connections_max(4);
    let (mut loader, mut held) = (builder.build().unwrap(), Vec::new());
    let error = loop {
        match loader.next_batch().expect("the data set is larger than the budget") {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Budget, "{error}");
    runtime().block_on(async {
        let next = tokio::time::timeout(PATIENCE, StreamExt::next(&mut loader));
        let dropping = async {
            // The stream finds nothing first.
            tokio::task::yield_now().await;
            held.clear();
        };
        let (batch, ()) = tokio::join!(next, dropping);
        assert!(batch.expect("it is woken").unwrap().is_ok());
    });
}

#[test]
fn a_stream_ends_after_its_error() {
    let set = DataSet::digits(20, 7);
    let bucket = bucket(&set, "missing_keys=training/3/*");
    let mut loader = loader(&bucket).batch_size(4).build().unwrap();
    runtime().block_on(async {
        let batches: Vec<_> = StreamExt::collect(&mut loader).await;
        assert_eq!(batches.iter().filter(|batch| batch.is_err()).count(), 1);
        assert!(batches.last().unwrap().is_err() && StreamExt::next(&mut loader).await.is_none());
    });
}
