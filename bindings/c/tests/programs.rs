//! Programs in C and C++, compiled against the library and run on a bucket; what they print is held against the engine's own loader.
//!
//! `TEST_C_FLAGS` are further flags of the compiler, `TEST_C_RUNNER` is what runs the programs, `TEST_C_RING` their ring: `cargo x prove c`
//! sets them.

use crate::skip::skip_or_fail;
use fuelrail::{Config, Loader, LoaderBuilder};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub(crate) const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");
/// Of version 0.1.
const SONAME: &str = "libfuelrail.so.0.1";
const CHECK: &str = include_str!("check.c");

/// The library, which cargo has put beside this program.
pub(crate) fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libfuelrail_c.so")
}

/// A compiled program, and the folder that it goes with.
pub(crate) struct Program(PathBuf, TempDir);

/// Compiles without a warning, or fails the test with what the compiler says.
pub(crate) fn compiled(file: &str, text: &str, flags: &[&str]) -> Program {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, program) = (place.path().join(file), place.path().join("program"));
    std::fs::write(&source, text).unwrap();
    let compiler = if file.ends_with(".cpp") { "c++" } else { "cc" };
    let mut command = Command::new(compiler);
    command.args(["-g", "-Wall", "-Werror"]).args(words("TEST_C_FLAGS")).arg("-I").arg(format!("{PACKAGE}/include"));
    // Under the name that programs look for; another build of it may lie where LD_LIBRARY_PATH points.
    std::os::unix::fs::symlink(library(), place.path().join(SONAME)).unwrap();
    command.arg(&source).arg("-o").arg(&program).arg(library()).args(flags).arg("-Wl,-rpath,$ORIGIN");
    let output = command.output().unwrap_or_else(|e| panic!("{compiler} (Debian: gcc, g++): {e}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    Program(program, place)
}

fn words(variable: &str) -> Vec<String> {
    std::env::var(variable).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

impl Program {
    /// What it prints. It must end well. Settings of the environment are these only.
    fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>, environment: &[(&str, &str)]) -> String {
        let (ended_well, printed) = self.end(args, environment);
        assert!(ended_well, "{printed}");
        printed
    }

    /// Whether it ends well, and what it prints; else the command, too.
    fn end<'a>(&self, args: impl IntoIterator<Item = &'a str>, environment: &[(&str, &str)]) -> (bool, String) {
        let runner = words("TEST_C_RUNNER");
        let mut command = Command::new(runner.first().map_or(self.0.as_path(), Path::new));
        if !runner.is_empty() {
            command.args(&runner[1..]).arg(&self.0);
        }
        for name in std::env::vars_os().map(|(name, _)| name) {
            if name.to_string_lossy().starts_with("FUELRAIL_") {
                command.env_remove(name);
            }
        }
        let ring = std::env::var("TEST_C_RING").unwrap_or_else(|_| "auto".to_owned());
        command.env("FUELRAIL_RING", ring).envs(environment.iter().copied()).args(args).current_dir(self.1.path());
        let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        match output.status.success() {
            true => (true, out),
            false => (false, format!("{command:?}: {}\n{out}\n{err}", output.status)),
        }
    }
}

fn digits(count: u64) -> Bucket {
    let source = Source::Generated(DataSet::digits(count, 3));
    Bucket::start(BucketConfig { source, ..BucketConfig::default() }).expect("loopback can be listened on")
}

/// The engine's own loader with these settings.
fn loader(settings: &[(&str, &str)]) -> Loader {
    let settings: Vec<_> = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    LoaderBuilder::new(Config::load(None, [], &settings).unwrap()).build().unwrap()
}

/// What `check list` prints, by the engine's own loader.
fn listed(settings: &[(&str, &str)]) -> String {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let (mut loader, mut text) = (loader(settings), String::new());
    writeln!(text, "{} batches {} samples", loader.batches(), loader.samples()).unwrap();
    loader.classes().iter().for_each(|class| writeln!(text, "class {class}").unwrap());
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        if let Some(shape) = batch.shape() {
            writeln!(text, "shape {} {} {} {}", shape.samples, shape.height, shape.width, shape.channels).unwrap();
        }
        for (i, sample) in batch.samples().enumerate() {
            let (label, bytes) = (sample.label.cast_signed(), sample.bytes);
            write!(text, "{} {} {} {label} {}", batch.epoch(), batch.step(), sample.id.0, batch.key(i)).unwrap();
            writeln!(text, " {} {}", bytes.len(), sum(bytes)).unwrap();
            if let Some(field) = batch.field(i, "bin") {
                writeln!(text, "bin {} {}", field.len(), sum(&field)).unwrap();
            }
        }
    }
    text
}

/// The C program and the engine's own loader, with the same settings, of which C reads some from the environment.
fn agree(settings: &[(&str, &str)], environment: &[(&str, &str)]) -> String {
    let more = settings[1..].iter().flat_map(|&(name, value)| [name, value]);
    let check = compiled("check.c", CHECK, &["-pthread"]);
    let printed = check.run(["list", settings[0].1].into_iter().chain(more), environment);
    let names: Vec<_> = environment.iter().map(|(name, _)| name["FUELRAIL_".len()..].to_lowercase()).collect();
    let read = names.iter().zip(environment).map(|(name, &(_, value))| (name.as_str(), value));
    assert_eq!(printed, listed(&settings.iter().copied().chain(read).collect::<Vec<_>>()));
    printed
}

#[test]
fn c_reads_what_the_engine_reads() {
    let bucket = digits(100);
    let url = bucket.url("training/");
    let common = [("uri", &*url), ("batch_size", "16"), ("memory_limit", "64MB"), ("seed", "5")];
    let objects = agree(&common, &[("FUELRAIL_EPOCHS", "2")]);
    assert!(objects.starts_with("14 batches 100 samples\nclass ") && objects.lines().count() == 211);
    let decoded = agree(&[&common[..], &[("decode", "28x28x1")]].concat(), &[]);
    assert!(decoded.contains("shape 16 28 28 1\n") && decoded.contains("shape 4 28 28 1\n"));
}

#[test]
fn c_reads_fields_of_records() {
    let (files, shards) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..40 {
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(files.path().join(format!("{n:03}.{name}")), bytes).unwrap();
        write("cls", format!("{}", n % 7).as_bytes());
        if n % 4 != 0 {
            write("bin", &vec![n; usize::from(n) * 100]);
        }
    }
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "-cf"]).arg(shards.path().join("0.tar")).arg("-C").arg(files.path()).arg(".");
    assert!(tar.status().unwrap().success());
    let settings = [("uri", shards.path().to_str().unwrap()), ("format", "webdataset"), ("label_field", "cls")];
    let printed = agree(&settings, &[("FUELRAIL_MEMORY_LIMIT", "64MB")]);
    assert_eq!(printed.matches("\nbin ").count(), 30);
}

#[test]
fn two_loaders_are_read_by_two_threads_each() {
    let bucket = digits(200);
    let url = bucket.url("training/");
    let args = ["threads", &url, "batch_size", "10", "memory_limit", "64MB", "shards", "1", "pin", "false"];
    let printed = compiled("check.c", CHECK, &["-pthread"]).run(args, &[]);
    let sum = (0..200u64).sum::<u64>();
    assert_eq!(printed, format!("{sum} {sum}\n"));
}

#[test]
fn errors_have_kind_and_hint_and_nothing_crashes() {
    let bucket = digits(40);
    let (url, nowhere) = (bucket.url("training/"), "http://127.0.0.1:9/bucket/");
    let check = compiled("check.c", CHECK, &["-pthread"]);
    let printed = check.run(["errors", &url, "batch_size", "8", "memory_limit", "64MB", nowhere], &[]);
    let mut lines = printed.lines();
    let wrong = lines.next().unwrap();
    assert!(wrong.starts_with("usage|") && wrong.contains("batch_sise"), "{wrong}");
    let unreachable = lines.find(|line| line.starts_with("network|")).unwrap();
    let attempts = unreachable.rsplit('|').next().unwrap().parse::<u32>().unwrap();
    assert!(unreachable.contains("127.0.0.1:9") && attempts > 0, "{unreachable}");
    assert!(printed.contains("\nenvironment|") && printed.lines().count() == 18, "{printed}");
}

/// What `cargo x prove c` looks with sees what it must.
#[test]
fn what_is_not_freed_is_found_by_what_looks_for_it() {
    let is_looked_for = !words("TEST_C_FLAGS").is_empty() || !words("TEST_C_RUNNER").is_empty();
    let (ended_well, printed) = compiled("check.c", CHECK, &["-pthread"]).end(["leak", "no-such-folder"], &[]);
    assert_eq!(!ended_well, is_looked_for, "{printed}");
}

#[test]
fn the_example_reads_with_poll_and_resumes() {
    let bucket = digits(300);
    let url = bucket.url("training/");
    let example = std::fs::read_to_string(Path::new(PACKAGE).join("examples/read.c")).unwrap();
    let printed = compiled("read.c", &example, &["-std=c99", "-pedantic", "-Wextra"]).run([&*url], &[]);
    let (mut samples, mut bytes, mut labels) = (0u64, 0u64, 0u64);
    for batch in loader(&[("uri", &url)]) {
        for sample in batch.unwrap().samples() {
            samples += 1;
            bytes += sample.bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            labels += u64::from(sample.label);
        }
    }
    assert_eq!(printed, format!("{samples} samples, sum of bytes {bytes}, sum of labels {labels}\n"));
}

/// The programs of C.md, each as it stands there.
#[test]
fn the_programs_of_the_docs_run() {
    let bucket = digits(100);
    let page = std::fs::read_to_string(Path::new(PACKAGE).join("../../engine/docs/C.md")).unwrap();
    let programs: Vec<_> = page.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!programs.is_empty());
    for program in programs {
        let printed =
            compiled("page.c", program, &["-std=c99", "-pedantic", "-Wextra"]).run([&*bucket.url("training/")], &[]);
        assert_eq!(printed.lines().last(), Some("100 samples"), "{printed}");
    }
}

/// `cargo x prove c` leaves it out: torch frees little at its end.
#[test]
fn the_example_trains() {
    let Ok(torch) = std::env::var("LIBTORCH") else {
        return skip_or_fail("libtorch", "LIBTORCH is not set: eval \"$(./scripts/libtorch)\"");
    };
    let bucket = digits(2000);
    let example = std::fs::read_to_string(Path::new(PACKAGE).join("examples/train.cpp")).unwrap();
    let include = format!("-isystem{torch}/include");
    let api = format!("{include}/torch/csrc/api/include");
    let (place, found) = (format!("-L{torch}/lib"), format!("-Wl,-rpath,{torch}/lib"));
    let flags = ["-std=c++17", &include, &api, &place, &found, "-ltorch_cpu", "-lc10"];
    let printed = compiled("train.cpp", &example, &flags).run([&*bucket.url("training/")], &[]);
    let mut losses = printed.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    let (first, last) = (losses.next().unwrap(), losses.next().unwrap());
    assert!(last < first / 2.0, "{printed}");
}
