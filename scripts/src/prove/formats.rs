//! Shards that `fuelrail pack` writes, as the packages read them whose formats they are: webdataset, mosaicml-streaming, tfrecord and
//! pyarrow, each field compared with the file that it was packed from.

use super::session::{Finding, Session, passes};
use crate::steps::{cargo_in, printed, run, say};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;

/// Packages of Python; streaming brings torch, gigabytes.
const PACKAGES: [&str; 4] = ["webdataset", "mosaicml-streaming", "tfrecord", "pyarrow"];
const FORMATS: [&str; 4] = ["webdataset", "mds", "tfrecord", "parquet"];
/// Records of each class.
const RECORDS: u64 = 300;

pub(super) fn prove(session: &Session<'_>) -> Finding {
    let work = session.target("formats-shards")?;
    if work.exists() {
        std::fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    }
    let source = work.join("source");
    write_source(&source, session.seed).map_err(|e| format!("{}: {e}", source.display()))?;
    run(&mut cargo_in(session.root, ["build", "--package", "fuelrail-cli"]))?;
    let python = session.python("formats", &PACKAGES)?;
    let mut found = Map::new();
    for format in FORMATS {
        let target = work.join(format);
        let mut pack = Command::new(session.target("debug/fuelrail")?);
        pack.arg("pack").arg(&source).arg(&target).args(["--format", format, "--shard-size", "1MiB", "--shuffle"]);
        if !passes(pack.args(["--memory-limit", "128MiB", "--seed", &session.seed.to_string()]))? {
            return Ok((false, json!(found)));
        }
        let script = session.root.join("scripts/src/prove/formats.py");
        let mut read = Command::new(&python);
        let read = printed(read.arg(script).arg(&source).arg(&target).arg(format));
        let Ok(text) = read.inspect_err(|why| say(why)) else {
            return Ok((false, json!(found)));
        };
        let counts: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).map_err(|e| e.to_string())?;
        found.insert(format.to_owned(), counts);
    }
    Ok((true, json!(found)))
}

/// Files of three fields below three folders: pictures of any bytes, a JSON document, and a text whose names are long or not ASCII in one.
fn write_source(source: &Path, mut state: u64) -> std::io::Result<()> {
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for class in ["ant".to_owned(), "bäe".to_owned(), "c".repeat(110)] {
        let folder = source.join(class);
        std::fs::create_dir_all(&folder)?;
        for n in 0..RECORDS {
            let picture: Vec<u8> = (0..random() % 20_000).map(|_| random() as u8).collect();
            std::fs::write(folder.join(format!("{n:05}.jpg")), picture)?;
            std::fs::write(folder.join(format!("{n:05}.json")), format!("{{\"n\": {n}}}"))?;
            std::fs::write(folder.join(format!("{n:05}.Txt")), "é".repeat((random() % 9) as usize))?;
        }
    }
    Ok(())
}
