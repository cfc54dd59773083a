//! Decoding when something is wrong: pictures that are none, too little memory, a consumer that keeps everything, a loader
//! that is dropped in the middle.

use crate::common::pictures::{self, difference, jpeg, jpeg_pixels, png, scene};
use crate::common::reading::Reading;
use crate::common::{PATIENCE, bucket, eventually, folder, least_budget, loader, plain_run, planned};
use fuelrail::internal::memory_use;
use fuelrail::{BadSamples, Batch, ByteSize, Decode, DecodeFunction, Fit, Kind, LoaderBuilder, Remains, Taken};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, DataSet};
use jpeg_encoder::ColorType as JpegColor;
use png::{BitDepth, ColorType};
use std::sync::mpsc;
use std::time::Duration;

const SIDE: usize = 24;

fn good() -> Vec<u8> {
    png(SIDE as u32, SIDE as u32, ColorType::Rgb, BitDepth::Eight, &scene(SIDE, SIDE, 3))
}

fn photo() -> Vec<u8> {
    jpeg(SIDE as u16, SIDE as u16, JpegColor::Rgb, &scene(SIDE, SIDE, 3), |_| ())
}

fn progressive() -> Vec<u8> {
    jpeg(SIDE as u16, SIDE as u16, JpegColor::Rgb, &scene(SIDE, SIDE, 3), |e| e.set_progressive(true))
}

/// The file with the size in its header changed.
fn lying(mut file: Vec<u8>, width: u16, height: u16) -> Vec<u8> {
    if file.starts_with(b"\x89PNG") {
        file[16..20].copy_from_slice(&u32::from(width).to_be_bytes());
        file[20..24].copy_from_slice(&u32::from(height).to_be_bytes());
        // The checksum of the header is made to agree: a liar who means it.
        let checksum = crc32(&file[12..29]);
        file[29..33].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let frame = file.windows(2).position(|pair| pair == [0xFF, 0xC0]).expect("a baseline frame");
        file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
        file[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    }
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 })
    })
}

/// With its byte at `share` of its length turned around.
fn damaged(mut file: Vec<u8>, share: f64) -> Vec<u8> {
    let at = (file.len() as f64 * share) as usize;
    file[at] ^= 0xFF;
    file
}

fn cut_short(file: Vec<u8>, share: f64) -> Vec<u8> {
    let len = (file.len() as f64 * share) as usize;
    file[..len].to_vec()
}

/// Every kind of object that is no picture of the wanted size, and what must be said of it.
fn wrongs() -> Vec<(Vec<u8>, &'static str)> {
    let mut arithmetic = photo();
    let frame = arithmetic.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    arithmetic[frame + 1] = 0xC9;
    vec![
        (cut_short(good(), 0.5), "truncated"),
        (cut_short(good(), 0.1), "truncated"),
        (damaged(good(), 0.5), "damaged"),
        (cut_short(photo(), 0.5), "truncated"),
        (cut_short(photo(), 0.999), "truncated"),
        (cut_short(photo(), 0.1), "truncated"),
        ([cut_short(photo(), 0.6), vec![0xFF, 0xD9]].concat(), "JPEG"),
        (cut_short(progressive(), 0.5), "truncated"),
        ([cut_short(progressive(), 0.4), vec![0xFF, 0xD9]].concat(), "JPEG"),
        (lying(good(), 60_000, 60_000), "60000 × 60000 pixels"),
        (lying(photo(), 60_000, 60_000), "60000 × 60000 pixels"),
        (lying(good(), 24, 25), "25 pixels high and 24 wide"),
        (lying(photo(), 48, 24), "24 pixels high and 48 wide"),
        (lying(photo(), 0, 24), "JPEG"),
        // The right size, and not enough pixels after it.
        (lying(png(24, 16, ColorType::Rgb, BitDepth::Eight, &scene(24, 16, 3)), 24, 24), "PNG"),
        (lying(jpeg(24, 8, JpegColor::Rgb, &scene(24, 8, 3), |_| ()), 24, 24), "JPEG"),
        (arithmetic, "unsupported JPEG: with arithmetic coding"),
        (png(23, 24, ColorType::Rgb, BitDepth::Eight, &scene(23, 24, 3)), "decode_fit = center-crop"),
        (b"just some text".to_vec(), "none of PNG, JPEG, FLAC and WAV: it starts with 6a757374"),
        (Vec::new(), "it is empty"),
    ]
}

fn exact() -> Decode {
    Decode::exact(SIDE as u32, SIDE as u32, 3)
}

/// A folder with a good picture after every wrong one, in order of name.
fn folder_of(wrongs: &[(Vec<u8>, &'static str)]) -> (tempfile::TempDir, Bucket) {
    let dir = tempfile::tempdir().unwrap();
    for (n, (bytes, _)) in wrongs.iter().enumerate() {
        let good = if n % 2 == 0 { good() } else { photo() };
        pictures::write(dir.path(), &[(&format!("{n:02}-a"), bytes.clone()), (&format!("{n:02}-b"), good)]);
    }
    let bucket = folder(dir.path(), "");
    (dir, bucket)
}

#[test]
fn what_is_no_picture_is_left_out_with_its_reason_and_batches_stay_dense() {
    let wrongs = wrongs();
    let (_dir, bucket) = folder_of(&wrongs);
    let sound = [scene(SIDE, SIDE, 3), jpeg_pixels(&photo()).2];
    // One more round, so that the measured one finds the tools made.
    for measured in [false, true] {
        let builder = loader(&bucket).batch_size(5).shuffle(false).bad_samples(BadSamples::Skip).decode(exact());
        let mut loader = builder.decode_threads(2).build().unwrap();
        let before = memory_use().peak_rss_bytes;
        let (mut left_out, mut seen) = (Vec::new(), 0);
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            assert_eq!(batch.bytes().len(), batch.len() * SIDE * SIDE * 3);
            assert_eq!(batch.shape().map(|shape| shape.samples), Some(batch.len()));
            for sample in batch.samples() {
                let n = loader.key(sample.id)[..2].parse::<usize>().unwrap();
                assert!(loader.key(sample.id).ends_with('b'), "{} was decoded", loader.key(sample.id));
                // Two decoders of JPEG differ in the last bit.
                let apart = difference(sample.bytes, &sound[n % 2]);
                assert!(apart.0 <= 3, "{}: {apart:?}", loader.key(sample.id));
                seen += 1;
            }
            left_out.extend(batch.left_out().iter().map(|(id, error)| (loader.key(*id).to_owned(), error.clone())));
        }
        assert_eq!((seen, left_out.len()), (wrongs.len(), wrongs.len()));
        for ((key, error), (n, (_, said))) in left_out.iter().zip(wrongs.iter().enumerate()) {
            assert_eq!((error.kind(), key.as_str()), (Kind::Undecodable, format!("{n:02}-a").as_str()));
            assert_eq!(error.object(), Some(key.as_str()));
            let text = error.to_string();
            assert!(text.contains(said) && text.contains("; "), "wanted '{said}': {text}");
        }
        let stats = loader.stats();
        assert_eq!((stats.left_out, stats.decode.unwrap().refused), (wrongs.len() as u64, wrongs.len() as u64));
        if measured {
            let grown = memory_use().peak_rss_bytes - before;
            assert!(grown < 64 << 20, "headers that lie cost {grown} bytes");
        }
    }
}

#[test]
fn a_panic_of_the_programs_function_is_told_with_its_text() {
    let bucket = bucket(&DataSet::digits(3, 1), "");
    let function = DecodeFunction::new(|sample, _| panic!("index out of range {}", sample.epoch));
    let error = loader(&bucket).decode_with(exact(), function).build().unwrap().next_batch().unwrap().unwrap_err();
    assert!(error.kind() == Kind::Undecodable && error.object().is_some(), "{error}");
    assert!(error.cause().ends_with("panicked on it: index out of range 0"), "{error}");
    assert!(error.hint().unwrap().starts_with("mend the function"), "the object is not at fault: {error}");
}

/// What is not there is left out before what cannot be decoded, whatever their order.
#[test]
fn a_shared_read_leaves_out_for_its_jobs_what_cannot_be_had_and_what_cannot_be_decoded() {
    let (dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..8 {
        let file = if n == 2 { b"just some text".to_vec() } else { good() };
        pictures::write(dir.path(), &[(&format!("{n}.png"), file)]);
    }
    let bucket = folder(dir.path(), "missing_keys=5.png");
    let builder = || loader(&bucket).batch_size(8).shuffle(false).bad_samples(BadSamples::Skip).decode(exact());
    let reading = Reading::start(builder(), shared.path(), 1, PATIENCE);
    let mut loader = builder().share_dir(shared.path()).shared_read(true).build().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let left_out: Vec<(u64, Kind)> = batch.left_out().iter().map(|(id, error)| (id.0, error.kind())).collect();
    assert_eq!(left_out, [(2, Kind::Undecodable), (5, Kind::NotFound)]);
    assert!(batch.len() == 6 && batch.is_borrowed());
    drop((batch, loader));
    assert_eq!(reading.end().0.slots, 0);
}

#[test]
fn raise_names_the_object_behind_the_good_batches() {
    let set = DataSet::digits(60, 4);
    let dir = tempfile::tempdir().unwrap();
    for n in 0..60 {
        let content = if n == 41 { cut_short(set.content(n), 0.7) } else { set.content(n) };
        pictures::write(dir.path(), &[(&format!("{n:02}.png"), content)]);
    }
    let bucket = folder(dir.path(), "");
    let order = planned(plain_run(60, 8, 4, 2));
    let bad = order.iter().position(|&(_, id)| id == 41).unwrap() / 4;
    for (threads, depth) in [(1, 1), (3, 5)] {
        let builder = loader(&bucket).batch_size(4).epochs(2).seed(8).decode(Decode::exact(28, 28, 1));
        let mut loader = builder.decode_threads(threads).decode_depth(depth).build().unwrap();
        for batch in 0..bad {
            let ids: Vec<u64> = loader.next_batch().unwrap().unwrap().ids().iter().map(|id| id.0).collect();
            assert_eq!(ids, order[batch * 4..][..4].iter().map(|&(_, id)| id).collect::<Vec<_>>());
        }
        let error = loader.next_batch().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.object()), (Kind::Undecodable, Some("41.png")));
        let text = error.to_string();
        assert!(text.contains("41.png") && text.contains("truncated") && text.contains("bad_samples"), "{text}");
        assert!(loader.next_batch().is_none());
        assert!(matches!(loader.next_batch_within(Duration::ZERO), Ok(Taken::Over)));
    }
}

#[test]
fn quarantine_does_not_decode_again() {
    let wrongs = wrongs();
    let (_dir, bucket) = folder_of(&wrongs);
    let count = wrongs.len() as u64;
    for (policy, tried) in [(BadSamples::Quarantine, count), (BadSamples::Skip, 4 * count)] {
        let builder = loader(&bucket).batch_size(3).epochs(4).bad_samples(policy).decode(exact()).decode_depth(1);
        let mut loader = builder.decode_threads(2).build().unwrap();
        let samples: usize = loader.by_ref().map(|batch| batch.unwrap().len()).sum();
        let stats = loader.stats();
        assert_eq!((samples as u64, stats.left_out), (4 * count, 4 * count));
        assert_eq!(stats.decode.unwrap().refused, tried, "{policy:?}");
    }
}

fn digits(bucket: &Bucket) -> LoaderBuilder {
    loader(bucket).batch_size(32).connections_max(8).decode(Decode::exact(28, 28, 1))
}

#[test]
fn decoded_batches_are_within_the_budget_and_a_smaller_one_is_refused_with_the_number() {
    let set = DataSet::digits(200, 7);
    let bucket = bucket(&set, "");
    for shards in [1, 2] {
        let raw = least_budget(loader(&bucket).batch_size(32).connections_max(8).shards(shards));
        let least = least_budget(digits(&bucket).shards(shards));
        // A batch of 32 × 784 bytes, in whole pages.
        assert_eq!(least - raw, (32u64 * 784).next_multiple_of(4096), "{shards} shards");
        let error = digits(&bucket).shards(shards).memory_limit(ByteSize(least - 4096)).build().unwrap_err();
        assert!(error.kind() == Kind::Budget && error.to_string().contains("a decoded one of"), "{error}");
        let mut loader = digits(&bucket).shards(shards).memory_limit(ByteSize(least)).epochs(3).build().unwrap();
        assert_eq!(loader.config().decode.depth, 1, "the configuration tells what there is");
        assert!(
            loader.notices().iter().any(|notice| notice.contains("decode_depth: 1 of 4")),
            "{:?}",
            loader.notices()
        );
        let (base, len) = loader.memory().span();
        assert!(len as u64 <= least);
        assert_eq!(loader.memory().regions().len(), usize::from(shards) + 1);
        let mut samples = 0;
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            let at = batch.bytes().as_ptr().addr();
            assert!(at >= base.addr() && at + batch.bytes().len() <= base.addr() + len, "in the arena");
            samples += batch.len();
        }
        assert_eq!(samples, 600);
    }
}

#[test]
fn a_consumer_that_keeps_everything_is_told_so() {
    let set = DataSet::digits(2000, 7);
    let bucket = bucket(&set, "");
    let mut loader = digits(&bucket).decode_depth(2).build().unwrap();
    let mut held: Vec<Batch> = Vec::new();
    let error = loop {
        match loader.next_batch().expect("2000 digits do not fit three batches") {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), held.len()), (Kind::Budget, 3));
    let text = error.to_string();
    assert!(text.contains("the 3 batches you hold leave no room") && text.contains("25088 bytes"), "{text}");
    assert_eq!(loader.close(), Remains { operations: 0, slots: 3 });

    // One that lets go in time goes on.
    let mut loader = digits(&bucket).decode_depth(2).build().unwrap();
    let mut samples = 0;
    held.clear();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        samples += batch.len();
        held.push(batch);
        if held.len() == 3 {
            held.remove(0);
        }
    }
    assert_eq!(samples, 2000);
}

/// Threads of loaders in this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has /proc");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("fuelrail")).count()
}

#[test]
fn dropping_a_loader_while_it_decodes_leaves_nothing() {
    let set = DataSet::photos(60, 3);
    let bucket = bucket(&set, "latency=uniform:0ms..2ms");
    let mut draw = Prng::new(7);
    for seed in 0..30 {
        let decode = Decode { fit: Fit::RandomCrop, ..Decode::exact(64, 64, 3) };
        let builder = loader(&bucket).batch_size(4).epochs(1000).seed(seed).decode(decode);
        let mut loader = builder.decode_threads(1 + seed as usize % 3).shards(1 + seed as u16 % 2).build().unwrap();
        for _ in 0..draw.below(4) {
            loader.next_batch().unwrap().unwrap();
        }
        std::thread::sleep(Duration::from_micros(draw.below(8000)));
        // A thread names itself a moment after it has begun.
        eventually("no threads of the stage", || threads() >= 4);
        assert_eq!(loader.close(), Remains::default(), "seed {seed}");
        // The kernel lists a thread for a moment longer than it can be joined.
        eventually("threads stay", || threads() == 0);
    }
    eventually("connections stay open", || bucket.counters().connections_open == 0);
}

#[test]
fn the_watchdog_tells_of_the_decode_stage() {
    let set = DataSet::digits(50, 1);
    let bucket = bucket(&set, "stall=1.0,per_key_max=1000000,only=*");
    let (tell, told) = mpsc::channel();
    let builder = digits(&bucket)
        .stall_after(Duration::from_secs(600))
        .attempts_max(1)
        .outage_limit(None)
        .watchdog_after(Duration::from_millis(100));
    let mut loader = builder.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    assert!(matches!(loader.next_batch_within(Duration::ZERO), Ok(Taken::NotYet)));
    let consumer = std::thread::spawn(move || loader.next_batch());
    let text = told.recv_timeout(PATIENCE).expect("silence is told");
    assert!(text.contains("\ndecode: 0 of 4 batches inside") && text.contains("gate decoded"), "{text}");
    drop(bucket);
    let error = consumer.join().unwrap().expect("an error").expect_err("the bucket is gone");
    assert!(matches!(error.kind(), Kind::Network | Kind::Truncated), "{error}");
}
