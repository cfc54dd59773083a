//! `cargo x prove`: the checks that take longer than a change may: the listing of public items, builds without features, model checking,
//! sanitizers, fuzzing, mutation testing, the large swarm of simulated worlds, the soak. Runs them one after the other, also when one
//! fails, and keeps the latest outcome of each.

use crate::steps::{Log, cargo_in, say, target};
use clap::ValueEnum;
use page::{PAGE, page};
use serde_json::{Map, Value, json};
use session::{Finding, Session, finding, host, now_s, passes, read};
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

mod api;
mod c;
mod features;
mod formats;
mod fuzz;
mod k8s;
mod mutants;
mod page;
mod publish;
mod python;
mod session;

/// One kind of proof.
#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// The public items, against those listed in the tree (cargo-public-api).
    Api,
    /// The engine without its features and with each of them alone.
    Features,
    /// C programs against the library, under the address sanitizer and under valgrind.
    C,
    /// The wheel of the Python package, and its tests (pytest).
    Python,
    /// Every public crate, compiled from its package, and the wheel from its source distribution.
    Publish,
    /// The documentation site: it can be built, and no link or anchor in it is broken (mdBook).
    Site,
    /// The package for a GPU machine, and a rehearsal of its five runs here (scripts/gpu).
    Gpu,
    /// Packed shards, read by webdataset, mosaicml-streaming and tfrecord (pip).
    Formats,
    /// The operator's manifests against the schemas that Kubernetes publishes (kubectl, pip).
    K8s,
    /// Every interleaving of the code that passes data between threads, by a model checker (loom).
    Models,
    /// Tests of the crates with unsafe code under the address sanitizer, memory leaks included.
    Sanitizers,
    /// Every parser of bytes from outside, by a fuzzer (cargo-fuzz).
    Fuzz,
    /// Mutation testing: which changes of the code the tests notice (cargo-mutants).
    Mutants,
    /// The simulator's tests with ten times as many seeds, new ones among them, and property tests drawn anew.
    Worlds,
    /// A loader at full speed under faults: `cargo x bench soak`.
    Soak,
    /// A job whose nodes come, go and are killed every ten seconds.
    Nodes,
}

/// What to prove, and how thoroughly.
#[derive(clap::Args)]
pub(crate) struct Wanted {
    /// What to run [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// Minutes for each part that can go on for ever [default: fuzz 60, soak 30, nodes 10, mutants until all are drawn]
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Seed of what is drawn at random [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Mutants to try in each area, at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    draws: u64,
    /// Areas to mutate [default: all]
    #[arg(long = "area", value_name = "AREA", value_parser = mutants::NAMES)]
    areas: Vec<String>,
    /// Fuzz targets to run [default: all]
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
}

/// Runs the parts and records each outcome as soon as it is there. Whether all passed.
pub(crate) fn prove(root: &Path, wanted: &Wanted) -> bool {
    let drawn = RandomState::new().hash_one("prove") >> 32;
    let session = Session { root, seed: wanted.seed.unwrap_or(drawn), minutes: wanted.minutes };
    say(&format!("prove: seed {}", session.seed));
    let parts = if wanted.parts.is_empty() { Part::value_variants() } else { &wanted.parts };
    let mut log = Log::default();
    for &part in parts {
        let found = match part {
            Part::Api => api::prove,
            Part::Features => features::prove,
            Part::C => c::prove,
            Part::Python => python::prove,
            Part::Publish => publish::prove,
            Part::Site => site,
            Part::Gpu => gpu,
            Part::Formats => formats::prove,
            Part::K8s => k8s::prove,
            Part::Models => models,
            Part::Sanitizers => sanitizers,
            Part::Fuzz => {
                log.step("fuzz", || fuzz::run(&session, &wanted.targets));
                continue;
            }
            Part::Mutants => {
                log.step("mutants", || mutants::run(&session, wanted.draws, &wanted.areas));
                continue;
            }
            Part::Worlds => worlds,
            Part::Soak => soak,
            Part::Nodes => nodes,
        };
        log.step(&name(part), || session.record(&name(part), || found(&session)));
    }
    log.step(PAGE, || std::fs::write(root.join(PAGE), page(&described(), &read(root)?)).map_err(|e| e.to_string()));
    log.close()
}

/// One line: how old the latest outcome of every part is, and which failed or was never there.
pub(crate) fn ages(root: &Path) -> String {
    let ages = read(root).map(|records| {
        let ages = Part::value_variants().iter().map(|&part| age(&name(part), &records, now_s()));
        ages.collect::<Vec<_>>().join(", ")
    });
    format!("proofs (cargo x prove): {}", ages.unwrap_or_else(|why| why))
}

/// The age of a part, which is that of its oldest subject.
fn age(part: &str, records: &Map<String, Value>, now_s: u64) -> String {
    let mine = records.iter().filter(|(key, _)| key.split(' ').next() == Some(part)).map(|(_, record)| record);
    let Some(oldest) = mine.clone().map(|record| record["time_s"].as_u64().unwrap_or(0)).min() else {
        return format!("{part} never");
    };
    let failed = if mine.clone().all(|record| record["passed"] == true) { "" } else { ", FAILED" };
    let days = now_s.saturating_sub(oldest) / 86_400;
    format!("{part} {days} {} old{failed}", if days == 1 { "day" } else { "days" })
}

/// A part as the command line and the record name it.
fn name(part: Part) -> String {
    part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// All parts, each with what it checks.
fn described() -> Vec<(String, String)> {
    let about = |part: Part| Some(part.to_possible_value()?.get_help()?.to_string());
    Part::value_variants().iter().map(|&part| (name(part), about(part).unwrap_or_default())).collect()
}

/// The tests named `models`, with our own crates compiled under `cfg(loom)`.
fn models(session: &Session<'_>) -> Finding {
    // Between cargo and the compiler, for our own crates only: the others stay compiled as they are, and some of them would mean
    // their own models by `cfg(loom)`.
    let compiler = session.target("models/rustc")?;
    let written = compiler.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = written.and_then(|()| std::fs::write(&compiler, "#!/bin/sh\nexec \"$@\" --cfg loom\n"));
    let written = written.and_then(|()| std::fs::set_permissions(&compiler, PermissionsExt::from_mode(0o755)));
    written.map_err(|e| format!("{}: {e}", compiler.display()))?;
    session.tests(&["fuelrail-io", "fuelrail-flow"], |command| {
        command.args(["--no-tests", "fail", "--lib", "--filterset", "test(/(^|::)models::/)"]);
        command.env("RUSTC_WORKSPACE_WRAPPER", compiler)
    })
}

/// Tests that leave memory behind on purpose: it is not the process's to free while a device may still use it, or the test plants a leak.
const LEAKING: &str = "test(/memory_left_registered|a_copy_that_hangs_is_named|a_copy_whose_event_is_refused|\
    a_lost_device_is_an_error|every_call_that_fails_once|every_plant_is_caught/)";
/// A test of glibc's allocator, which the sanitizer replaces.
const OF_GLIBC: &str = "test(what_is_freed_is_gone)";

/// The address sanitizer, leaks included, over the crates with unsafe code that run without an accelerator: the rings, and the copies
/// to cards against the driver of the tests. With libtorch there, over the trainer's shim as well.
fn sanitizers(session: &Session<'_>) -> Finding {
    let mut packages = vec!["fuelrail-io", "fuelrail-cuda", "fuelrail-cuda-driver"];
    packages.extend(std::env::var_os("LIBTORCH").map(|_| "fuelrail-tch"));
    let sanitized = |filter: &str, leaks: &str| {
        session.tests(&packages, |command| {
            command.args(["--target", &host()]).env("CARGO_TARGET_DIR", target(session.root).join("sanitizers"));
            // The compiler that is there has the sanitizer, but calls it unstable. Libraries that a test opens, such as the driver, find
            // the sanitizer in the test's executable.
            command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address -Clink-arg=-rdynamic");
            command.env("CXXFLAGS", "-fsanitize=address").env("ASAN_OPTIONS", leaks).args(["--filterset", filter])
        })
    };
    let (clean, counts) = sanitized(&format!("not ({LEAKING} or {OF_GLIBC})"), "detect_leaks=1")?;
    Ok((sanitized(LEAKING, "detect_leaks=0")?.0 && clean, counts))
}

/// `scripts/gpu pack`, and the five runs under the driver of the tests and torch's CPU part.
fn gpu(session: &Session<'_>) -> Finding {
    let script = || Command::new(session.root.join("scripts/gpu"));
    Ok((passes(script().arg("pack"))? && passes(script().arg("rehearse"))?, json!({})))
}

/// `scripts/site`, which looks for links that lead nowhere.
fn site(session: &Session<'_>) -> Finding {
    finding(&mut Command::new(session.root.join("scripts/site")), json!({}))
}

fn worlds(session: &Session<'_>) -> Finding {
    let seed = session.seed.to_string();
    let packages = [
        "fuelrail-sim",
        "fuelrail-cost",
        "fuelrail-format",
        "fuelrail-io",
        "fuelrail-plan",
        "fuelrail-wire",
        "fuelrail",
    ];
    session.tests(&packages, |command| {
        command.args(["--filterset", "not package(fuelrail) or test(/^properties::/)"]);
        command.env("FUELRAIL_PROVE", "1").env("FUELRAIL_SEED", &seed);
        command.env("PROPTEST_CASES", "2560").env("PROPTEST_RNG_SEED", &seed)
    })
}

fn soak(session: &Session<'_>) -> Finding {
    let minutes = session.minutes.unwrap_or(30);
    // Until the slope of memory can be judged, but not for ever.
    let times = [minutes, 4 * minutes].map(|minutes| minutes.to_string());
    let mut command = cargo_in(session.root, ["run", "--release", "--quiet", "--package", "fuelrail-benches"]);
    command.args(["--", "soak", "--minutes", &times[0], "--max-minutes", &times[1]]);
    command.args(["--seed", &session.seed.to_string()]);
    finding(&mut command, json!({ "minutes": minutes }))
}

/// The test of nodes that come and go, for longer.
fn nodes(session: &Session<'_>) -> Finding {
    let minutes = session.minutes.unwrap_or(10);
    session.tests(&["fuelrail"], |command| {
        command.args(["--release", "--no-tests", "fail", "--success-output", "immediate"]);
        command.args(["--filterset", "test(every_sample_comes_once_an_epoch_while_nodes_come_go_and_are_killed)"]);
        command.env("FUELRAIL_NODES_SECONDS", format!("{},10", 60 * minutes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_as_old_as_its_oldest_subject() {
        let record = |days: u64, passed: bool| json!({ "time_s": 86_400 * days, "passed": passed });
        let records = [
            ("fuzz", record(9, true)),
            ("models", record(8, false)),
            ("mutants flow", record(9, true)),
            ("mutants wire/tls", record(3, true)),
        ];
        let records = records.into_iter().map(|(key, record)| (key.to_owned(), record)).collect();
        let said = |part| age(part, &records, 86_400 * 10 - 1);
        assert_eq!(said("fuzz"), "fuzz 0 days old");
        assert_eq!(said("models"), "models 1 day old, FAILED");
        assert_eq!(said("mutants"), "mutants 6 days old");
        assert_eq!(said("soak"), "soak never");
    }

    /// `FUELRAIL_BLESS=1` writes it.
    #[test]
    fn the_page_is_that_of_the_record() {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(|root| (root, root.join(PAGE)));
        let (root, place) = place.expect("the workspace is one above");
        let made = page(&described(), &read(root).expect("the record is JSON"));
        if std::env::var_os("FUELRAIL_BLESS").is_some() {
            std::fs::write(&place, &made).expect("the tree can be written to");
        }
        assert_eq!(std::fs::read_to_string(place).unwrap_or_default(), made, "set FUELRAIL_BLESS=1 to write it anew");
    }
}
