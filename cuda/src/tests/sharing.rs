//! Batches that another process reads: registered to be read, replaced when that process goes, right in every case.
#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use fuelrail::{LoaderBuilder, SharingOptions};
use fuelrail_cuda_driver::{Settings, on_device, under_any_driver, under_driver};

use super::stand::{Consumer, PATIENCE, control, store, watching};
use crate::{Device, Feed, FeedConfig};

const EPOCHS: u64 = 3;

fn builder() -> LoaderBuilder {
    // Requests are counted: none is sent twice.
    store().loader().batch_size(5).epochs(EPOCHS).memory_limit("8MB".parse().unwrap()).hedge_percent(0)
}

/// Two feeds of one read; after so many batches of each, the process that reads ends. Every sample of every epoch must arrive.
fn two_feeds(reads_for: usize) {
    let (dir, stopped) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
    let _open = on_device().then(|| Device::open(0).unwrap());
    store().bucket.reset_counters();
    let options = SharingOptions { jobs: 2, wait: PATIENCE, ..SharingOptions::default() };
    let mut sharing = builder().share_dir(dir.path()).share(options).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| sharing.serve(&|| stopped.load(Ordering::Relaxed), &mut |_| {}));
        let loaders = [(); 2].map(|()| builder().share_dir(dir.path()).shared_read(true).build().unwrap());
        let mut feeds = loaders.map(|loader| {
            assert!(loader.notices().is_empty(), "{:?}", loader.notices());
            let consumer = Consumer::new(0, 4, loader.batch_bytes_max() as usize);
            (Feed::start(loader, FeedConfig::default()).unwrap(), consumer)
        });
        let (mut reading, mut number, mut open) = (Some(reading), 0, 2);
        while open > 0 {
            open = 0;
            for (feed, consumer) in &mut feeds {
                if let Some(batch) = feed.next(consumer.stream()) {
                    consumer.read(&batch.unwrap(), store());
                    open += 1;
                }
            }
            if number == reads_for {
                stopped.store(true, Ordering::Relaxed);
                reading.take().unwrap().join().unwrap().unwrap();
            }
            number += 1;
        }
        for (_, consumer) in &mut feeds {
            consumer.finish(store());
            assert!(consumer.wrong.is_empty(), "{:?}", consumer.wrong);
            assert_eq!(consumer.right.len() as u64, store().set.len() * EPOCHS);
            assert_eq!(consumer.right.iter().collect::<BTreeSet<_>>().len() as u64, store().set.len());
        }
        drop(feeds);
        if let Some(reading) = reading {
            reading.join().unwrap().unwrap();
        }
    });
    control().assert_clean();
}

#[test]
fn two_feeds_of_one_read_get_every_byte_from_registered_memory() {
    let name = "tests::sharing::two_feeds_of_one_read_get_every_byte_from_registered_memory";
    if !under_any_driver(name, &Settings { read_only: true, delay_us: 0..=100, ..watching() }) {
        return;
    }
    two_feeds(usize::MAX);
    // Where the end of one epoch and the begin of the next are fetched together, one request serves both.
    let requests = store().bucket.counters().get_requests;
    assert!(requests <= store().set.len() * EPOCHS, "{requests} requests for one read");
}

#[test]
fn feeds_go_on_alone_when_the_process_that_reads_ends() {
    let name = "tests::sharing::feeds_go_on_alone_when_the_process_that_reads_ends";
    // What is handed over between the two is not registered.
    let settings = Settings { read_only: true, forbid_pageable: false, delay_us: 0..=100, ..watching() };
    if !under_any_driver(name, &settings) {
        return;
    }
    [0, 3, 20].into_iter().for_each(two_feeds);
}

#[test]
fn a_device_that_cannot_register_memory_to_be_read_gets_every_byte_all_the_same() {
    let name = "tests::sharing::a_device_that_cannot_register_memory_to_be_read_gets_every_byte_all_the_same";
    if !under_driver(name, &Settings { forbid_pageable: false, delay_us: 0..=100, ..watching() }) {
        return;
    }
    [usize::MAX, 7].into_iter().for_each(two_feeds);
}
