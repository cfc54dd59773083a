//! What this crate asks of the driver exists in CUDA 11.4.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::Path;

use fuelrail_cuda_driver::under_driver;

use super::stand::{control, store, watching};
use crate::FUNCTIONS;

/// The functions of CUDA 11.4's driver.
fn cuda_11_4() -> BTreeSet<&'static str> {
    let list = include_str!("../../tests/driver/cuda-11.4-symbols.txt");
    list.lines().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn every_function_called_is_in_the_driver_of_cuda_11_4() {
    let known = cuda_11_4();
    assert!(known.len() > 300, "the list is there");
    let newer: Vec<_> = FUNCTIONS.iter().filter(|name| !known.contains(**name)).collect();
    assert!(newer.is_empty(), "newer than CUDA 11.4: {newer:?}");
}

#[test]
fn the_table_is_the_only_way_to_the_driver() {
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let path = file.unwrap().path();
        let (Ok(text), false) = (std::fs::read_to_string(&path), path.ends_with("driver.rs")) else { continue };
        assert!(!text.contains("cudarc"), "{} goes past the table", path.display());
    }
    // The engine below has no way to CUDA at all.
    let engine = include_str!("../../../engine/Cargo.toml");
    assert!(!engine.contains("cuda"), "the engine does not know CUDA");
}

#[test]
fn a_run_calls_nothing_beyond_the_table() {
    if !under_driver("tests::symbols::a_run_calls_nothing_beyond_the_table", &watching()) {
        return;
    }
    let before = control().calls();
    assert!(before.is_empty(), "{before:?}");
    let loader = store().loader().batch_size(16).build().unwrap();
    let mut feed = crate::Feed::start(loader, crate::FeedConfig::default()).unwrap();
    while let Some(batch) = feed.next(crate::RawStream::LEGACY) {
        drop(batch.unwrap());
    }
    drop(feed);
    let calls = control().calls();
    let beyond: Vec<_> = calls.keys().filter(|name| !FUNCTIONS.contains(&name.as_str())).collect();
    assert!(beyond.is_empty() && calls["cuMemcpyHtoDAsync_v2"] == 2 * 6, "{calls:?}");
    control().assert_clean();
    // Two copies a batch, of bytes and labels, and no call that waits for the device.
    assert!(!calls.keys().any(|name| name.contains("Synchronize")), "{calls:?}");
}
