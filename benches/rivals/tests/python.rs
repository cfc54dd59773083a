//! The Python rivals: their conversation with the harness with the standard library alone, and each of them against the
//! embedded bucket where their environment is installed.

use crate::skip::skip_or_fail;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use serde_json::Value;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

/// Names the interpreter of an environment made from `python/requirements.txt`.
const INTERPRETER: &str = "FUELRAIL_RIVALS_PYTHON";

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

fn python(interpreter: &Path) -> Command {
    let mut command = Command::new(interpreter);
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(scripts());
    command
}

#[test]
fn the_conversation_holds_with_the_standard_library_alone() {
    let asked = python(Path::new("python3")).args(["-m", "unittest", "test_protocol"]).output();
    let Ok(Output { status, stderr, .. }) = asked else {
        skip_or_fail("python3", "it is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains("Ran 8 tests"), "{said}");
}

#[test]
fn every_python_rival_delivers_every_byte() {
    let Some(interpreter) = std::env::var_os(INTERPRETER).map(PathBuf::from) else {
        skip_or_fail(
            "python-rivals",
            format_args!("{INTERPRETER} names no Python with the rivals (see benches/rivals/README.md)"),
        );
        return;
    };
    // A bucket of files: shards are packed into it after it started.
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("root");
    let set = DataSet::digits(100, 12);
    let mut lines = String::new();
    let mut hash = 0u128;
    for n in 0..set.len() {
        let (key, content) = (set.key(n), set.content(n));
        let path = root.join("set").join(&key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &content).unwrap();
        lines.push_str(&format!("{key}\t{}\n", content.len()));
        hash = hash.wrapping_add(xxh3_128(&content));
    }
    let manifest = folder.path().join("set.tsv");
    std::fs::write(&manifest, lines).unwrap();
    let config = BucketConfig { source: Source::Directory(root.clone()), ..BucketConfig::default() };
    let bucket = Bucket::start(config).unwrap();
    for kind in ["tar", "mds"] {
        let mut pack = python(&interpreter);
        pack.arg("packing.py").arg(kind).arg(&manifest).arg(root.join("set")).arg(root.join(format!("set-{kind}")));
        let Output { status, stderr, .. } = pack.output().unwrap();
        assert!(status.success(), "packing {kind}: {}", String::from_utf8_lossy(&stderr));
    }
    for (script, packed) in [
        ("boto3_loop.py", ""),
        ("dataloader_boto3.py", ""),
        ("s3torchconnector_map.py", ""),
        ("s3dlio_get_many.py", ""),
        ("runai_streamer.py", ""),
        ("webdataset_http.py", "set-tar/"),
        ("mosaicml_s3.py", "set-mds/"),
    ] {
        let mut rival = python(&interpreter);
        rival.arg(script).args(["--uri", &bucket.url("set/"), "--packed", &bucket.url(packed), "--hash"]);
        rival.args(["--batch-size", "8", "--arena", "67108864", "--seed", "5", "--manifest"]).arg(&manifest);
        rival.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = rival.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"go\ngo\n").unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let (said, complaint) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{script}: {said} {complaint}");
        let told: Vec<&str> = said.lines().collect();
        assert_eq!((told.len(), told[0]), (3, "ready"), "{script}: {said}");
        for line in &told[1..] {
            let passed: Value = serde_json::from_str(line).unwrap();
            assert_eq!(passed["hash"], format!("{hash:032x}"), "{script}: {line}");
            assert_eq!((&passed["bytes"], &passed["objects"]), (&set.total_bytes().into(), &100.into()), "{script}");
        }
    }
}
