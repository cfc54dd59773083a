//! Mixtures through the whole loader: shares by prefix, the same samples and pixels on any number of ranks, logs that prove it, errors.

use crate::common::{PATIENCE, bucket, folder, loader, loader_at, needed};
use fuelrail::{
    Audit, ByteSize, Decode, Fit, Format, ImportanceMode, Kind, Loader, LoaderBuilder, MixtureEpoch, OrderName, State,
};
use fuelrail_bucket::{Bucket, DataSet};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

const EPOCHS: u64 = 3;
/// Three of ten classes are mixed: the others never come.
const MIXED: &str =
    "training/3/=2, training/5/=1; from 70: training/5/=1, training/8/=3; from 200: training/3/=1, training/8/=1";

fn mixing(bucket: &Bucket) -> LoaderBuilder {
    let decode = Decode { fit: Fit::RandomCrop, flip: true, ..Decode::exact(20, 20, 1) };
    loader(bucket).batch_size(6).epochs(EPOCHS).seed(3).mixture(MIXED.parse().ok()).mixture_window(32).decode(decode)
}

/// Keys and pixels, by epoch and position.
type Seen = BTreeMap<(u64, u64), (String, Vec<u8>)>;

/// Reads so many steps with `world` ranks, or to the end; gives the state after them.
fn read(world: u32, steps: usize, builder: &LoaderBuilder, logs: (&Path, &mut Vec<PathBuf>), seen: &mut Seen) -> State {
    let mut states: Vec<State> = Vec::new();
    for rank in 0..world {
        let log = logs.0.join(logs.1.len().to_string());
        logs.1.push(log.clone());
        let mut loader = builder.clone().rank(rank).world(world).audit(log).build().unwrap();
        for _ in 0..steps {
            let Some(batch) = loader.next_batch() else { break };
            let batch = batch.unwrap();
            for (at, sample) in batch.positions().zip(batch.samples()) {
                let key = loader.key(sample.id).to_owned();
                assert!(seen.insert((batch.epoch(), at), (key, sample.bytes.to_vec())).is_none(), "delivered once");
            }
        }
        states.push(loader.state());
    }
    assert!(states.iter().all(|state| *state == states[0]));
    states.swap_remove(0)
}

#[test]
fn two_three_and_one_rank_go_on_with_the_same_samples_and_pixels() {
    let (set, place) = (DataSet::digits(700, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "reset=0.02,latency=uniform:0ms..2ms");
    let (mut whole, mut logs) = (Seen::new(), Vec::new());
    let end = read(1, usize::MAX, &mixing(&bucket), (place.path(), &mut logs), &mut whole);
    assert_eq!((end.epoch, whole.len() as u64), (EPOCHS, EPOCHS * end.samples));
    let share = |range: core::ops::Range<usize>, class: &str| {
        let all: Vec<&String> = whole.values().map(|(key, _)| key).skip(range.start).take(range.len()).collect();
        all.iter().filter(|key| key.starts_with(class)).count()
    };
    assert_eq!((share(0..64, "training/5/"), share(0..64, "training/8/")), (22, 0));
    let later = [share(96..192, "training/3/"), share(96..192, "training/5/"), share(96..192, "training/8/")];
    assert_eq!(later, [0, 24, 72]);
    assert!(
        whole
            .values()
            .all(|(key, _)| ["3", "5", "8"].iter().any(|class| key.starts_with(&format!("training/{class}/"))))
    );
    let (mut parts, mut parts_logs, mut state) = (Seen::new(), Vec::new(), None);
    let dir = tempfile::tempdir().unwrap();
    for (world, steps) in [(2, 7), (3, 11), (1, usize::MAX)] {
        let cached = mixing(&bucket).cache_limit(ByteSize(30_000)).shards(2);
        let builder = state.take().map_or(cached.clone(), |state| cached.resume(state));
        state = Some(read(world, steps, &builder, (dir.path(), &mut parts_logs), &mut parts));
    }
    assert!(whole == parts, "the same samples and pixels, bit for bit");
    for logs in [&logs, &parts_logs] {
        let logs: Vec<Audit> = logs.iter().map(|log| Audit::read(log).unwrap()).collect();
        let verdict = Audit::join(&logs).unwrap();
        assert!(verdict.exactly_once && verdict.epochs.len() as u64 == EPOCHS, "{verdict:?}");
        assert!(logs.len() == 1 || !Audit::join(&logs[1..]).unwrap().exactly_once, "a rank left out is noticed");
    }
    let other = mixing(&bucket).mixture(MIXED.replace("3/=2", "3/=3").parse().ok()).resume(State { epoch: 1, ..end });
    let error = other.build().unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("mixture"), "{error}");
}

#[test]
fn a_folder_may_be_named_without_its_last_slash() {
    let bucket = bucket(&DataSet::digits(200, 7), "");
    let mixed = |uri: &str, mixture: &str| -> Vec<u64> {
        let loader = loader_at(&bucket.url(uri)).mixture(mixture.parse().ok()).build().unwrap();
        loader.flat_map(|batch| batch.unwrap().ids().iter().map(|id| id.0).collect::<Vec<_>>()).collect()
    };
    let expected = mixed("training/", "3/=1, 5/=2");
    assert!(!expected.is_empty());
    assert_eq!(mixed("training", "3/=1, 5/=2"), expected, "as classes are found below it");
    assert_eq!(mixed("training", "training/3/=1, training/5/=2"), expected, "or by whole names");
}

#[test]
fn records_of_shards_are_mixed_by_the_names_of_shards() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (set, records) in [("code", 30), ("en", 90)] {
        for n in 0..records {
            std::fs::write(files.path().join(format!("{set}{n:03}.txt")), format!("{set} {n}")).unwrap();
        }
        std::fs::create_dir_all(dir.path().join(set)).unwrap();
        for (shard, third) in ["0", "1", "2"].into_iter().enumerate() {
            let names = (0..records).filter(|n| n % 3 == shard).map(|n| format!("{set}{n:03}.txt"));
            let mut tar = Command::new("tar");
            tar.arg("-cf").arg(dir.path().join(format!("{set}/{third}.tar"))).arg("-C").arg(files.path()).args(names);
            assert!(tar.status().unwrap().success());
        }
    }
    let bucket = folder(dir.path(), "");
    let builder = loader(&bucket).format(Format::WebDataset).mixture("code/=1, en/=1".parse().ok());
    let builder = builder.mixture_epoch(MixtureEpoch::AllUsedUp).batch_size(20);
    let mut times: BTreeMap<String, u64> = BTreeMap::new();
    let mut loader: Loader = builder.build().unwrap();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        for i in 0..batch.len() {
            let text = batch.field(i, "txt").unwrap();
            *times.entry(String::from_utf8(text.into_owned()).unwrap()).or_default() += 1;
        }
    }
    assert_eq!(times.len(), 120, "all of both have come");
    let expected = |text: &str| if text.starts_with("en") { 1..=1 } else { 2..=3 };
    assert!(times.iter().all(|(text, times)| expected(text).contains(times)), "{times:?}");
}

/// An epoch may be longer than all data sets together, and a batch hold one of its samples many times.
#[test]
fn a_batch_of_more_samples_than_there_are_objects_has_room_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for key in ["a/0", "b/0", "b/1", "b/2", "b/3", "b/4"] {
        std::fs::create_dir_all(dir.path().join(key).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(key), vec![7; 100_000]).unwrap();
    }
    let bucket = folder(dir.path(), "");
    let build = |memory| {
        let builder = loader(&bucket).mixture("a/=7, b/=1".parse().ok()).mixture_epoch(MixtureEpoch::AllUsedUp);
        builder.batch_size(20).memory_limit(ByteSize(memory)).build()
    };
    let error = build(2_000_000).unwrap_err();
    assert_eq!(error.kind(), Kind::Budget, "{error}");
    let loader = build(needed(&error)).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(loader.map(|batch| batch.unwrap().len()).collect::<Vec<_>>()).unwrap());
    // 28 times the one of the first data set, and each of the second once.
    assert_eq!(told.recv_timeout(PATIENCE).expect("the run ends"), [20, 13]);
}

#[test]
fn what_cannot_be_mixed_is_an_error_with_a_hint() {
    let set = DataSet::digits(50, 7);
    let bucket = bucket(&set, "");
    let plain = || loader(&bucket).mixture("training/3/=1".parse().ok());
    for (builder, cause) in [
        (plain().mixture("trainin/3/=1".parse().ok()), "no object begins with 'trainin/3/'"),
        (plain().mixture("training/3/=1, training/=1".parse().ok()), "begin the same keys"),
        (plain().mixture("training/3/=0".parse().ok()), "all 0"),
        (plain().mixture_window(0), "windows of 0"),
        (plain().order(OrderName::Sticky), "order = sticky"),
        (plain().shuffle(false), "shuffle = false"),
        (plain().importance(ImportanceMode::On), "with importance"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(cause), "{cause}: {error}");
        assert!(error.hint().is_some(), "{error}");
    }
}
