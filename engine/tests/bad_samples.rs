//! What happens to a sample that cannot be had: the three policies.

use crate::common::pictures::{png, scene};
use crate::common::{Delivered, bucket, drain, loader, loader_at, plain_run, planned, take};
use crate::records::archive;
use ::png::{BitDepth, ColorType};
use fuelrail::{BadSamples, Decode, Format, Kind, NO_LABEL, SampleId};
use fuelrail_bucket::{DataSet, FaultKind};
use std::collections::BTreeSet;

const SAMPLES: u64 = 120;

/// The set, the samples that are listed but not there, and the script that makes it so.
fn holes() -> (DataSet, BTreeSet<u64>, String) {
    let set = DataSet::digits(SAMPLES, 4);
    let missing = BTreeSet::from([7, 64, 65, 119]);
    let keys: Vec<String> = missing.iter().map(|&id| set.key(id)).collect();
    let script = format!("missing_keys={}", keys.join(";"));
    (set, missing, script)
}

#[test]
fn raise_names_the_object_and_the_cause() {
    let (set, missing, script) = holes();
    let bucket = bucket(&set, &script);
    let mut loader = loader(&bucket).batch_size(8).epochs(3).build().unwrap();
    let mut delivered = Delivered::default();
    let error = loop {
        match loader.next_batch().expect("the run ends with an error") {
            Ok(batch) => take(&batch, &loader, &set, &mut delivered),
            Err(error) => break error,
        }
    };
    // Everything before the batch that fails was delivered, in order, and nothing after it is.
    let order = planned(plain_run(SAMPLES, 0, 8, 3));
    assert_eq!(delivered.order, order[..delivered.order.len()]);
    let failed: Vec<u64> = order[delivered.order.len()..][..8].iter().map(|&(_, id)| id).collect();
    let key = error.object().expect("the object is named").to_owned();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(failed.iter().any(|&id| missing.contains(&id) && set.key(id) == key), "{error}");
    let text = error.to_string();
    assert!(text.contains(&key) && text.contains("404") && text.contains(';'), "no object, cause and cure: {text}");
    assert!(loader.next_batch().is_none());
    assert!(loader.stats().given_up > 0);
}

#[test]
fn skip_leaves_it_out_and_counts_it() {
    let (set, missing, script) = holes();
    let bucket = bucket(&set, &script);
    let mut loader = loader(&bucket).bad_samples(BadSamples::Skip).batch_size(8).epochs(3).build().unwrap();
    let order = planned(plain_run(SAMPLES, 0, 8, 3));
    let mut delivered = Delivered::default();
    let mut left_out = Vec::new();
    let mut positions = 0;
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        take(&batch, &loader, &set, &mut delivered);
        for (id, error) in batch.left_out() {
            assert_eq!((error.kind(), error.object()), (Kind::NotFound, Some(loader.key(*id))), "{error}");
            left_out.push((batch.epoch(), id.0));
        }
        positions += batch.positions().end - batch.positions().start;
        assert_eq!(batch.len() + batch.left_out().len(), 8, "a left-out sample is not replaced");
        assert!(batch.ids().iter().all(|id| !missing.contains(&id.0)));
    }
    let (bad, good): (Vec<_>, Vec<_>) = order.into_iter().partition(|(_, id)| missing.contains(id));
    assert_eq!((delivered.order, left_out), (good, bad));
    let stats = loader.stats();
    assert_eq!((stats.left_out, stats.samples, positions), (12, 3 * (SAMPLES - 4), 3 * SAMPLES));
    assert_eq!(stats.retries, 0, "what is not there is not tried again");
}

#[test]
fn quarantine_does_not_ask_again() {
    for shards in [1, 3] {
        let (set, missing, script) = holes();
        let bucket = bucket(&set, &script);
        let builder = loader(&bucket).bad_samples(BadSamples::Quarantine).batch_size(8).epochs(6).shards(shards);
        let mut loader = builder.build().unwrap();
        let delivered = drain(&mut loader, &set).unwrap();
        let order = planned(plain_run(SAMPLES, 0, 8, 6)).into_iter().filter(|(_, id)| !missing.contains(id));
        assert_eq!(delivered.order, order.collect::<Vec<_>>());
        assert_eq!(loader.stats().left_out, 24);
        let asked = bucket.counters().injected(FaultKind::MissingKey);
        assert_eq!(asked, 4, "{shards} shards: every missing object is asked for once, in six epochs");
    }
}

/// A sample of several blocks is left out whole, and its neighbours in the batch are not harmed.
#[test]
fn a_large_sample_is_left_out_whole() {
    let set = DataSet::volumes(6, 3, 0.01);
    for policy in [BadSamples::Skip, BadSamples::Quarantine] {
        let bucket = bucket(&set, &format!("missing_keys={}", set.key(2)));
        let builder = loader(&bucket).bad_samples(policy).batch_size(3).epochs(2).shards(2);
        let mut loader = builder.block_size("64KiB".parse().unwrap()).build().unwrap();
        let delivered = drain(&mut loader, &set).unwrap();
        assert_eq!(delivered.order.len(), 10);
        assert_eq!(loader.stats().left_out, 2);
        let id = (0..6).map(SampleId).find(|&id| loader.key(id) == set.key(2)).unwrap();
        let blocks = loader.size(id).div_ceil(64 << 10);
        let asked = bucket.counters().injected(FaultKind::MissingKey);
        // Two epochs that want it at the same time share one attempt, whatever the policy.
        let most = if policy == BadSamples::Skip { 2 * blocks } else { blocks };
        assert!((blocks..=most).contains(&asked), "{asked} requests for {blocks} blocks");
    }
}

/// Labels that 31 bits do not hold, or that are no whole number, are not delivered as others, whether pictures are decoded or not.
#[test]
fn a_record_with_a_label_that_is_no_whole_number_is_a_bad_sample() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let picture = png(20, 10, ColorType::Rgb, BitDepth::Eight, &scene(20, 10, 3));
    let labels = ["3", "2147483647\n", "2147483648", "4294967295", "-2", "c\tat", "7.0", ""];
    for (n, label) in labels.iter().enumerate() {
        std::fs::write(files.path().join(format!("{n}.png")), &picture).unwrap();
        std::fs::write(files.path().join(format!("{n}.cls")), label).unwrap();
    }
    std::fs::write(files.path().join("8.png"), &picture).unwrap();
    archive(&dir.path().join("a.tar"), files.path());
    let plain = || {
        let builder = loader_at(dir.path().to_str().unwrap()).format(Format::WebDataset).label_field("cls");
        builder.shuffle(false).batch_size(16).epochs(2)
    };
    for builder in [plain(), plain().decode(Decode::exact(10, 20, 3))] {
        let error = builder.clone().build().unwrap().next_batch().unwrap().unwrap_err();
        let text = error.to_string();
        assert!(
            error.kind() == Kind::Undecodable && error.object().is_some_and(|key| key.starts_with("a.tar")),
            "{text}"
        );
        assert!(text.contains("the field 'cls' of record './2' is '2147483648'"), "{text}");
        for policy in [BadSamples::Skip, BadSamples::Quarantine] {
            let mut loader = builder.clone().bad_samples(policy).build().unwrap();
            while let Some(batch) = loader.next_batch() {
                let batch = batch.unwrap();
                assert_eq!(batch.labels(), [3, 2_147_483_647, NO_LABEL]);
                let left_out: Vec<u64> = batch.left_out().iter().map(|(id, _)| id.0).collect();
                assert_eq!(left_out, [2, 3, 4, 5, 6, 7]);
                assert!(batch.left_out()[3].1.to_string().contains(r"is 'c\tat'"), "{:?}", batch.left_out());
            }
            assert_eq!(loader.stats().left_out, 12);
        }
    }
}
