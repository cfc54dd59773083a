//! Archives by GNU tar itself.

use crate::golden::{index, ranges};
use fuelrail_base::Kind;
use fuelrail_format::{Format, IndexBuilder, scan_whole, tar, write};
use std::path::Path;
use std::process::Command;

fn archive(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("tar").args(["-C", &folder.display().to_string(), "-c"]).args(arguments).output();
    let output = output.expect("tar runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn names(index: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let parts: Vec<&str> = line.split('\t').collect();
        (format!("{}.{}", parts[1], parts[2]), parts[3].parse().expect("a length"))
    };
    index.lines().map(line).collect()
}

#[test]
fn every_format_of_gnu_tar_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let deep = format!("{}/{}", "d".repeat(90), "e".repeat(90));
    std::fs::create_dir_all(folder.path().join(&deep)).unwrap();
    let long = format!("{deep}/{}.txt", "f".repeat(90));
    for (name, bytes) in [("1.jpg", 700), ("1.json", 0), ("é.txt", 512), (long.as_str(), 5)] {
        std::fs::write(folder.path().join(name), vec![b'x'; bytes]).unwrap();
    }
    std::fs::hard_link(folder.path().join("1.jpg"), folder.path().join("1.png")).unwrap();
    std::os::unix::fs::symlink("1.jpg", folder.path().join("2.jpg")).unwrap();
    let all = ["1.jpg", "1.json", "1.png", "2.jpg", "é.txt", deep.split('/').next().unwrap()];
    for format in ["gnu", "oldgnu", "pax", "posix"] {
        let format = format!("--format={format}");
        let object = archive(folder.path(), &[&[&*format, "--xattrs", "--numeric-owner"], &all[..]].concat());
        let index = index(Format::WebDataset, &object, tar::Scan::new(0, object.len() as u64), 0);
        let expected = [("1.jpg", 700), ("1.json", 0), ("é.txt", 512), (long.as_str(), 5)];
        assert_eq!(names(&ranges(&index, &object)), expected.map(|(name, bytes)| (name.to_owned(), bytes)), "{format}");
    }
}

#[test]
fn ustar_and_v7_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("{}/a.txt", "d".repeat(95));
    std::fs::create_dir_all(folder.path().join(&name[..95])).unwrap();
    std::fs::write(folder.path().join(&name), b"abc").unwrap();
    std::fs::write(folder.path().join("b.txt"), b"").unwrap();
    for (format, members) in [("ustar", &[&name[..95], "b.txt"][..]), ("v7", &["b.txt"])] {
        let object = archive(folder.path(), &[&[&*format!("--format={format}")], members].concat());
        let index = index(Format::WebDataset, &object, tar::Scan::new(0, object.len() as u64), 0);
        let found = names(&ranges(&index, &object));
        assert_eq!(found.last(), Some(&("b.txt".to_owned(), 0)), "{format}");
        assert!(found.len() == 1 || found[0] == (name.clone(), 3), "{format}");
    }
}

#[test]
fn sparse_files_and_compressed_archives_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("hole.bin")).unwrap();
    file.set_len(1 << 20).unwrap();
    for arguments in [
        &["--sparse", "--format=gnu"][..],
        &["--sparse", "--format=pax", "--sparse-version=0.0"],
        &["--sparse", "--format=pax", "--sparse-version=0.1"],
        &["--sparse", "--format=pax", "--sparse-version=1.0"],
        &["--gzip"],
    ] {
        let object = archive(folder.path(), &[arguments, &["hole.bin"]].concat());
        let mut builder = IndexBuilder::new(Format::WebDataset, [0; 16], 1);
        let error = scan_whole(&mut tar::Scan::new(0, object.len() as u64), &object, &mut builder).unwrap_err();
        let says = if arguments == ["--gzip"] { "compressed with gzip" } else { "hole.bin' is a sparse file" };
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{arguments:?}: {error}");
    }
}

#[test]
fn gnu_tar_lists_and_unpacks_what_is_written() {
    let long = format!("{}/é", "d".repeat(120));
    let mut writer = write::Writer::new(Format::WebDataset, 1 << 20, None).unwrap();
    for (key, bytes) in [("a/1", 700), (long.as_str(), 0)] {
        let fields = [("cls", write::Value::Int(7)), ("seg.png", write::Value::Bytes(&vec![b'x'; bytes]))];
        assert!(writer.push(Some(key), &fields).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("shard.tar");
    std::fs::write(&archive, writer.finish()).unwrap();
    let tar = |arguments: &[&str]| {
        let mut tar = Command::new("tar");
        tar.env("TZ", "UTC").env("LC_ALL", "C.UTF-8").arg("-C").arg(folder.path()).arg("-f").arg(&archive);
        let output = tar.args(arguments).output().expect("tar runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let members = ["a/1.cls", "a/1.seg.png", &format!("{long}.cls"), &format!("{long}.seg.png")];
    let listed = tar(&["-t", "-v", "--numeric-owner", "--quoting-style=literal"]);
    for (line, (member, bytes)) in listed.lines().zip(members.iter().zip([1, 700, 1, 0])) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["-rw-r--r--", "0/0", &bytes.to_string(), "1970-01-01", "00:00", member]);
    }
    assert_eq!(listed.lines().count(), members.len());
    tar(&["-x"]);
    assert_eq!(std::fs::read(folder.path().join(members[2])).unwrap(), b"7");
    assert_eq!(std::fs::read(folder.path().join(members[1])).unwrap(), vec![b'x'; 700]);
}
