//! What goes wrong ends in a sentence that says what to do, and with the exit code that is promised.

use crate::common::{
    Job, PATIENCE, assert_near, clean, digits, meeting_port, start, steps, trainer, wait_for_steps, words,
};
use fuelrail::{ByteSize, Decode, Kind, Listed, Loader};
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use fuelrail_cuda_driver::{Settings, under_driver};
use fuelrail_tch::{Classifier, HostFeed, TrainConfig, Trainer, Vault, models::lenet};
use rustix::process::Signal;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tch::nn::VarStore;
use tch::{Device, Tensor};

fn run(arguments: &str) -> Output {
    trainer(&words(arguments)).output().unwrap()
}

/// The run ends with this code and says all of this, and nothing of a panic.
fn ends(output: &Output, code: i32, says: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(says.iter().all(|words| text.contains(words)) && !text.contains("panicked"), "{text}");
}

#[test]
fn ranks_of_one_machine_share_its_memory_by_default() {
    let bucket = digits(64, 3);
    let folder = tempfile::tempdir().unwrap();
    let limit = |ranks: u32| {
        let json = folder.path().join(format!("{ranks}.json"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuelrail-train"));
        let arguments = format!("{} --decode 28x28x1 --device cpu --set shards=1 --json", bucket.url("training/"));
        command.args(words(&arguments)).arg(&json).env("LOCAL_WORLD_SIZE", ranks.to_string());
        clean(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        said.lines().find_map(|line| Some(line.split_once("memory_limit: ")?.1.to_owned())).unwrap()
    };
    let bytes = |line: &str| line.split_once(" (").unwrap().0.parse::<ByteSize>().unwrap().0 as f64;
    let (all, half) = (limit(1), limit(2));
    assert!((bytes(&half) / bytes(&all) - 0.5).abs() < 0.01 && half.contains("shared by 2 ranks"), "{all}, {half}");
}

#[test]
fn ranks_that_do_not_know_how_many_share_their_machine_say_so() {
    let bucket = digits(64, 3);
    let uri = bucket.url("training/");
    let said = |more: &str| {
        let (folder, port) = (tempfile::tempdir().unwrap(), meeting_port().to_string());
        let ranks = (0..2).map(|rank: usize| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fuelrail-train"));
            let arguments = format!("{uri} --decode 28x28x1 --device cpu --set shards=1 --timeout-s 60 {more}");
            command.args(words(&arguments)).envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".into())]);
            command.env("MASTER_PORT", &port).env_remove("LOCAL_WORLD_SIZE");
            clean(&mut command);
            start(command, folder.path().join(format!("rank{rank}.out")))
        });
        Job::of(ranks.collect()).done().remove(0).output
    };
    let notice = "LOCAL_WORLD_SIZE is not set";
    let (alone, shared) = (said(""), said("--set local_world=2"));
    assert!(alone.contains(notice) && !shared.contains(notice), "{alone}, {shared}");
}

#[test]
fn a_gpu_that_torch_does_not_find_is_an_error_unless_the_cpu_was_asked_for() {
    const NAME: &str = "findings::a_gpu_that_torch_does_not_find_is_an_error_unless_the_cpu_was_asked_for";
    if !under_driver(NAME, &Settings::default()) {
        return;
    }
    let bucket = digits(64, 3);
    let uri = bucket.url("training/");
    let run = |device: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuelrail-train"));
        command.args([&uri, "--decode", "28x28x1", "--device", device, "--set", "memory_limit_bytes=64MB"]);
        clean(&mut command);
        command.output().unwrap()
    };
    // The driver shows a GPU, and the libtorch here is for the CPU.
    for device in ["auto", "cuda"] {
        ends(&run(device), 3, &["torch finds no CUDA device", "--device cpu"]);
    }
    assert!(run("cpu").status.success());
}

#[test]
fn what_torch_says_of_a_model_is_an_error() {
    let bucket = digits(64, 3);
    let uri = bucket.url("training/");
    let output = run(&format!("{uri} --decode 20x20x1 --set decode_fit=center-crop"));
    ends(&output, 1, &["step 1: torch: mat1 and mat2 shapes cannot be multiplied", "look at the model"]);
    let output = run(&format!("{uri} --model transformer --vocabulary 1000000000000"));
    ends(&output, 1, &["torch: ", "lower the batch size"]);
}

#[test]
fn a_class_that_is_missing_in_the_validation_set_shifts_no_label() {
    let bucket = digits(2000, 3);
    let (uri, folder) = (bucket.url("training/"), tempfile::tempdir().unwrap());
    // The rate falls to zero: at a constant one the last updates still move the accuracy by far, and the last bits of torch's sums, which
    // differ from processor to processor, decide where it ends.
    let accuracy = |of: &str| {
        let json = folder.path().join("outcome.json");
        let saved = folder.path().join("saved");
        let arguments = format!(
            "{uri} --decode 28x28x1 --epochs 4 --decay cosine --eval-uri {uri}{of} --checkpoint {} --json {}",
            saved.display(),
            json.display()
        );
        let output = run(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let outcome: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        outcome["score"]["accuracy"].as_f64().unwrap()
    };
    let (all, sevens) = (accuracy(""), accuracy("7"));
    assert!(all > 0.9 && sevens > 0.8, "{all} of all, {sevens} of the sevens");
}

#[test]
fn a_sample_without_a_label_is_named() {
    let bucket = digits(64, 3);
    let uri = bucket.url("training/");
    let output = run(&format!("{uri} --decode 28x28x1 --eval-uri {uri}3/"));
    ends(&output, 2, &["sample 0 has no label", "put each sample in the folder of its class"]);
}

#[test]
fn frozen_parameters_stay_and_the_others_learn() {
    let bucket = digits(256, 3);
    let train = |frozen: &dyn Fn(&str) -> bool| -> fuelrail::Result<Vec<(bool, String)>> {
        let loader = Loader::builder(bucket.url("training/")).decode(Decode::exact(28, 28, 1)).shards(1).pin(false);
        let loader = loader.memory_limit(ByteSize(64 << 20)).build().unwrap();
        let variables = VarStore::new(Device::Cpu);
        let task = Classifier::new(lenet(&variables.root(), 1, 10), &[0.5], &[0.5], Device::Cpu);
        let values = |variables: &VarStore| variables.variables().into_iter().map(|(name, value)| (name, value.copy()));
        for (_, mut variable) in variables.variables().into_iter().filter(|(name, _)| frozen(name)) {
            let _ = variable.requires_grad_(false);
        }
        let before: Vec<(String, Tensor)> = values(&variables).collect();
        let config = TrainConfig { epoch_samples: loader.samples(), ..TrainConfig::default() };
        Trainer::new(&task, &variables, None, config)?.run(&mut HostFeed::new(loader))?;
        let after = variables.variables();
        Ok(before.into_iter().map(|(name, value)| (value == after[&name], name)).collect())
    };
    for (kept, name) in train(&|name| name.starts_with("conv")).unwrap() {
        assert_eq!(kept, name.starts_with("conv"), "{name}");
    }
    assert_eq!(train(&|_| true).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_no_reason_to_begin_anew() {
    let folder = tempfile::tempdir().unwrap();
    let source = || Source::Directory(folder.path().to_owned());
    let bucket = Bucket::start(BucketConfig { source: source(), writable: true, ..BucketConfig::default() }).unwrap();
    let samples = digits(64, 3);
    let train = |saved: &str| run(&format!("{} --decode 28x28x1 --checkpoint {saved}", samples.url("training/")));
    assert!(train(&bucket.url("saved/")).status.success());
    let script = "error=1,per_key_max=100,only=saved*".parse().unwrap();
    let failing = Bucket::start(BucketConfig { source: source(), script, ..BucketConfig::default() }).unwrap();
    let output = train(&failing.url("saved/"));
    ends(&output, 1, &["step-000000000001.safetensors", "name another --checkpoint to begin anew"]);
    // Nor are damaged ones, where there is no other.
    let saved = folder.path().join("saved");
    let file = saved.join("step-000000000001.safetensors");
    std::fs::write(&file, &std::fs::read(&file).unwrap()[..1000]).unwrap();
    ends(&train(&saved.display().to_string()), 1, &["none of 1 checkpoints is whole", "remove them"]);
}

#[test]
fn a_refused_upload_does_not_end_a_run_whose_checkpoint_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::Directory(folder.path().join("bucket"));
    std::fs::create_dir(folder.path().join("bucket")).unwrap();
    let bucket = Bucket::start(BucketConfig { source, ..BucketConfig::default() }).unwrap();
    let (samples, saved) = (digits(64, 3), folder.path().join("saved"));
    let to_both = format!("--checkpoint {} --checkpoint {}", saved.display(), bucket.url("saved/"));
    let output = run(&format!("{} --decode 28x28x1 {to_both}", samples.url("training/")));
    ends(&output, 0, &["notice: there is no checkpoint http://"]);
    assert_eq!(std::fs::read_dir(&saved).unwrap().count(), 1);
}

#[test]
fn one_checkpoint_that_cannot_be_written_does_not_cost_the_next() {
    let (samples, folder) = (digits(960, 3), tempfile::tempdir().unwrap());
    // A folder where the first file should be: its rename fails, as a full disk's write does.
    std::fs::create_dir(folder.path().join("step-000000000010.safetensors")).unwrap();
    let saved = format!("--checkpoint-every 10 --checkpoint {}", folder.path().display());
    let output = run(&format!("{} --decode 28x28x1 {saved}", samples.url("training/")));
    ends(&output, 0, &["notice: a checkpoint could not be written", "make room"]);
    assert!(folder.path().join("step-000000000015.safetensors").is_file());
}

#[test]
fn a_class_that_only_the_validation_set_has_is_refused_before_training() {
    let bucket = digits(640, 3);
    let all = bucket.url("training/");
    let output = run(&format!("{all}{{1,2}}/ --decode 28x28x1 --eval-uri {all}"));
    ends(&output, 2, &["has the class '0', which the training set lacks"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("step 1 "));
}

#[test]
fn what_nccl_cannot_do_is_refused_before_anything_is_waited_for() {
    let mut command = trainer(&words("http://127.0.0.1:1/none/ --backend nccl --switch-after 0.5"));
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    ends(&command.output().unwrap(), 2, &["asynchronous training over NCCL", "--backend gloo"]);
}

#[test]
fn judging_every_epoch_of_asynchronous_steps_is_refused() {
    let uri = "http://127.0.0.1:1/none/";
    let mut command = trainer(&words(&format!("{uri} --eval-uri {uri} --eval-every-epoch --switch-after 0.5")));
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    ends(&command.output().unwrap(), 2, &["--eval-every-epoch with steps", "leave --switch-after at 1"]);
}

#[test]
fn an_epoch_of_shards_has_their_records() {
    let folder = tempfile::tempdir().unwrap();
    let (shards, json) = (folder.path().join("shards"), folder.path().join("outcome.json"));
    // In folders, which are no classes of records.
    (0..2).for_each(|n| std::fs::create_dir_all(shards.join(n.to_string())).unwrap());
    // Forty windows of nine tokens in each.
    let tokens: Vec<u8> = (0..360_u16).flat_map(|n| (n % 64).to_le_bytes()).collect();
    (0..4).for_each(|n| std::fs::write(shards.join(format!("{}/{n}.bin", n % 2)), &tokens).unwrap());
    let bucket = Bucket::start(BucketConfig { source: Source::Directory(shards), ..BucketConfig::default() }).unwrap();
    for (more, samples) in [("", 160), ("--set drop_last=true", 144)] {
        let arguments = format!(
            "{} --model transformer --transformer 16,2,1 --tokens 9 --vocabulary 64 --batch-size 48 --json {} --set format=tokens \
             --set token_window=9 {more}",
            bucket.url(""),
            json.display()
        );
        ends(&run(&arguments), 0, &[]);
        let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(told["outcome"]["samples"], samples, "{more}: {told}");
    }
}

#[test]
fn a_manifest_names_what_is_trained_with_and_not_what_is_judged_by() {
    let (bucket, folder) = (digits(160, 3), tempfile::tempdir().unwrap());
    let (manifest, json) = (folder.path().join("half.tsv"), folder.path().join("outcome.json"));
    let uri = bucket.url("training/");
    let half: Vec<Listed> = fuelrail::list(&uri, |_| {}).unwrap().into_iter().step_by(2).collect();
    fuelrail::write_manifest(&manifest, &half).unwrap();
    let files = format!("--set manifest={} --json {}", manifest.display(), json.display());
    ends(&run(&format!("{uri} --eval-uri {uri} --decode 28x28x1 {files}")), 0, &[]);
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&told["outcome"]["samples"], &told["score"]["samples"]), (&80.into(), &160.into()));
}

#[test]
fn two_folders_for_checkpoints_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let places = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let error = Vault::open(&places, 2).unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("two folders"), "{error}");
}

#[test]
fn ranks_whose_buckets_differ_do_not_begin() {
    let (bucket, folder, port) = (digits(640, 3), tempfile::tempdir().unwrap(), meeting_port());
    let ranks = ["training/", "training/1"].into_iter().enumerate().map(|(rank, prefix)| {
        let mut command = trainer(&words(&format!("{} --decode 28x28x1 --timeout-s 60", bucket.url(prefix))));
        let variables = [("RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_RANK", rank), ("MASTER_PORT", port.into())];
        command.envs(variables.map(|(name, value)| (name, value.to_string()))).env("MASTER_ADDR", "127.0.0.1");
        start(command, folder.path().join(format!("rank{rank}.out")))
    });
    for ended in Job::of(ranks.collect()).wait() {
        assert_eq!(ended.status.code(), Some(2), "{}", ended.output);
        assert!(ended.output.contains("ranks differ in what the bucket lists: rank 0 has 640"), "{}", ended.output);
    }
}

#[test]
fn a_second_signal_ends_a_rank_that_waits() {
    let (bucket, folder) = (digits(64, 3), tempfile::tempdir().unwrap());
    let mut command = trainer(&words(&format!("{} --decode 28x28x1 --timeout-s 300", bucket.url("training/"))));
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    let port = meeting_port();
    command.env("MASTER_PORT", port.to_string());
    let (mut rank, _) = start(command, folder.path().join("rank0.out"));
    let begun = Instant::now();
    let pid = rustix::process::Pid::from_child(&rank);
    // It heeds signals before it waits for the others at its port.
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < PATIENCE, "no rank listens at the port");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Two that come together are one request.
    for _ in 0..2 {
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(rank.try_wait().unwrap().is_none(), "the first is a request");
    let status = loop {
        if let Some(status) = rank.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not heed a second signal");
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
    };
    assert_eq!(status.code(), Some(128 + 15));
}

#[test]
fn a_run_stops_with_a_checkpoint_at_its_time_or_cost_and_foresees_that() {
    let (bucket, folder) = (digits(2560, 3), tempfile::tempdir().unwrap());
    let run = |more: &str| {
        let (saved, json) = (folder.path().join("saved"), folder.path().join("outcome.json"));
        let uri = bucket.url("training/");
        let common = format!(
            "{uri} --decode 28x28x1 --batch-size 16 --checkpoint {} --json {}",
            saved.display(),
            json.display()
        );
        let output = run(&format!("{common} {more}"));
        let outcome: serde_json::Value =
            serde_json::from_slice(&std::fs::read(json).unwrap_or_default()).unwrap_or_default();
        (output, outcome)
    };
    let told = "after --finish-by; it will stop there with a checkpoint";
    let by = |time: &str| run(&format!("--epochs 2000 --finish-by {time}")).0;
    let mut output = by("3s");
    if !String::from_utf8_lossy(&output.stderr).contains(told) {
        // A machine with other work may come to no pace in so short a time.
        output = by("15s");
    }
    ends(&output, 4, &[told]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("the time of --finish-by is over"));
    let (output, _) = run("--epochs 2000 --price-per-hour 3600 --stop-at-cost 2");
    assert!(output.status.code() == Some(4) && String::from_utf8_lossy(&output.stdout).contains("2 is spent"));
    ends(&run("--stop-at-cost 2").0, 2, &["--price-per-hour"]);
    let folder_of_a_whole_run = tempfile::tempdir().unwrap();
    let json = folder_of_a_whole_run.path().join("outcome.json");
    let uri = bucket.url("training/");
    let output =
        trainer(&words(&format!("{uri} --decode 28x28x1 --epochs 2 --json {}", json.display()))).output().unwrap();
    ends(&output, 0, &[]);
    let outcome: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let of = |name: &str| outcome["forecast"][name].as_f64().unwrap();
    // How right it is depends on the machine; that it is of this run does not.
    assert!(of("predicted_s") > 0.0 && of("took_s") >= outcome["wall_s"].as_f64().unwrap(), "{outcome}");
}

#[test]
fn options_that_would_be_ignored_or_contradict_each_other_are_refused() {
    for (more, says) in [
        ("--checkpoint-every 5", "name a folder or a bucket's prefix as --checkpoint"),
        ("--checkpoint-every-s 5", "name a folder or a bucket's prefix as --checkpoint"),
        ("--batch-size 32 --set batch_size=4", "batch_size is set twice"),
        ("--decode 28x28x1 --set decode.shape=20x20x1", "leave it out of --set"),
        ("--set world=3", "leave it out of --set"),
    ] {
        ends(&run(&format!("http://127.0.0.1:1/none/ {more}")), 2, &[says]);
    }
}

#[test]
fn a_run_that_is_stopped_without_a_place_for_checkpoints_says_that_nothing_is_saved() {
    let (bucket, folder) = (digits(640, 3), tempfile::tempdir().unwrap());
    let log = folder.path().join("0.jsonl");
    let text = format!("{} --decode 28x28x1 --epochs 100000 --step-log {}", bucket.url("training/"), log.display());
    let job = Job::start(1, folder.path(), &words(&text));
    wait_for_steps(&log, 2);
    job.signal(0, Signal::TERM);
    let ended = job.wait().remove(0);
    assert_eq!(ended.status.code(), Some(4), "{}", ended.output);
    assert!(ended.output.contains("nothing is saved") && !ended.output.contains("start again"), "{}", ended.output);
}

/// A program of this package's examples.
fn example(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_fuelrail-train")).parent().unwrap();
    folder.join("examples").join(name)
}

#[test]
fn a_program_of_ones_own_is_killed_and_goes_on_with_the_same_losses() {
    let bucket = digits(1280, 3);
    let ranks = |folder: &Path, more: &str| {
        let port = meeting_port();
        let started = (0..2_usize).map(|rank| {
            let log = folder.join(format!("{rank}.jsonl"));
            let text = format!(
                "{} --decode 28x28x1 --batch-size 32 --optimiser adam --rate 1e-3 --device cpu --threads 1 --timeout-s 30 --set \
                 memory_limit=128MB --set shards=1 --set pin=false --step-log {} --checkpoint {} {more}",
                bucket.url("training/"),
                log.display(),
                folder.join("saved").display()
            );
            let mut command = Command::new(example("unet_digits"));
            let variables = [("RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_RANK", rank), ("MASTER_PORT", port.into())];
            command.args(words(&text)).envs(variables.map(|(name, value)| (name, value.to_string())));
            clean(command.env("MASTER_ADDR", "127.0.0.1"));
            start(command, folder.join(format!("rank{rank}.out")))
        });
        Job::of(started.collect())
    };
    let (unbroken, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    ranks(unbroken.path(), "").done();
    let expected = steps(unbroken.path(), "{rank}.jsonl", 2);
    assert!(expected.len() == 20 && expected[&20].loss < expected[&1].loss, "{expected:?}");
    let job = ranks(broken.path(), "--checkpoint-every 3 --slow 0=3");
    wait_for_steps(&broken.path().join("1.jsonl"), 7);
    job.signal(1, Signal::KILL);
    assert!(job.wait().iter().all(|one| !one.status.success()));
    let ended = ranks(broken.path(), "").done();
    assert!(ended[0].output.contains("goes on from step"), "{}", ended[0].output);
    for (number, step) in steps(broken.path(), "{rank}.jsonl", 2) {
        assert_eq!(step.ids, expected[&number].ids, "step {number}");
        assert_near(number, step.loss, expected[&number].loss);
    }
}
