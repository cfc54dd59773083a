//! `serve`: data sets as a bucket and as files, until told to end.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fuelrail_bucket::DataSet;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{PROGRAM, bench_read, cleared, fuelrail, key_order_hash, program, utf8};

/// A serving program and the first line it said.
struct Served {
    child: Child,
    first: String,
    rest: BufReader<std::process::ChildStdout>,
}

impl Served {
    fn start(args: &[&str]) -> Served {
        let child = program().arg("serve").args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap();
        let mut rest = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        rest.read_line(&mut first).unwrap();
        Served { child, first: first.trim_end().to_owned(), rest }
    }

    /// Ends it with a signal; the lines after the first.
    fn end(mut self, signal: &str) -> String {
        let told = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let mut text = String::new();
        self.rest.read_to_string(&mut text).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        text
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // For a test that fails half-way; a program that has ended cannot be killed, and need not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_without_descriptors_says_so_and_goes_on() {
    let script = "ulimit -n 40; exec \"$0\" serve digits --count 3";
    let mut command = Command::new("sh");
    command.args(["-c", script, PROGRAM]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = cleared(command).spawn().unwrap();
    let (mut rest, mut first) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    rest.read_line(&mut first).unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let served = Served { child, first: first.trim_end().to_owned(), rest };
    let held: Vec<TcpStream> =
        (0..60).map(|_| TcpStream::connect(served.first.split('/').nth(2).unwrap()).unwrap()).collect();
    assert!(lines.any(|line| line.unwrap().contains("raise the limit of open files")));
    drop(held);
    assert_eq!(fuelrail(&["ls", &served.first]).done().lines().count(), 3);
    served.end("TERM");
}

#[test]
fn the_first_line_is_the_url_and_the_last_words_are_the_counters() {
    // Few enough that none is late enough, against the others, to be asked for twice.
    let set = DataSet::digits(40, 11);
    let served = Served::start(&["digits", "--count", "40", "--seed", "11", "--bucket", "my set"]);
    assert!(served.first.starts_with("http://127.0.0.1:") && served.first.ends_with("/my%20set/"), "{}", served.first);
    let read = bench_read(&served.first.clone(), &["--shuffle", "false", "--json"]).json();
    assert_eq!(read["content_hash"], key_order_hash(&set));
    let counters = served.end("TERM");
    let line = counters.lines().find(|line| line.trim_start().starts_with("get ")).unwrap();
    assert!(line.ends_with(" 40"), "{counters}");
}

#[test]
fn json_says_where_and_then_what_was_counted() {
    let served = Served::start(&["digits", "--count", "9", "--script", "slowdown=1,per_key_max=1", "--json"]);
    let start: Value = serde_json::from_str(&served.first).unwrap();
    let url = start["url"].as_str().unwrap().to_owned();
    bench_read(&url, &[]).done();
    let end: Value = serde_json::from_str(&served.end("INT")).unwrap();
    assert_eq!(
        (&end["url"], &end["counters"]["faults"]["slowdown"]),
        (&url.into(), &10.into()),
        "nine objects, one listing"
    );
}

#[test]
fn it_ends_by_itself_when_told_how_long() {
    let text = fuelrail(&["serve", "tokens", "--count", "1", "--for", "0.05"]).done();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("http://127.0.0.1:"), "{text}");
    assert!(lines.next().unwrap().starts_with("requests"), "{text}");
}

#[test]
fn a_set_written_to_files_and_served_from_there_is_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["serve", "photos", "--count", "40", "--seed", "12", "--write-to", utf8(dir.path()), "--json"];
    let set = DataSet::photos(40, 12);
    let written = fuelrail(&args).json();
    assert_eq!((&written["objects"], &written["bytes"]), (&40.into(), &set.total_bytes().into()));
    let served = Served::start(&[utf8(dir.path()), "--threads", "1"]);
    let read = bench_read(&served.first, &["--shuffle", "false", "--json"]).json();
    assert_eq!(read["content_hash"], key_order_hash(&set));
    let copy = tempfile::tempdir().unwrap();
    let fetched = copy.path().join("7.jpg");
    fuelrail(&["get", &format!("{}{}", served.first, set.key(7)), "-o", utf8(&fetched)]).done();
    assert_eq!(sha256(&fetched), sha256(&dir.path().join(set.key(7))));
    served.end("TERM");
}

#[test]
fn served_over_tls_it_is_the_same_bytes_for_clients_that_trust_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let served = Served::start(&["digits", "--count", "50", "--seed", "3", "--tls", "--tls-ca", utf8(&ca)]);
    assert!(served.first.starts_with("https://127.0.0.1:"), "{}", served.first);
    let set = DataSet::digits(50, 3);
    let trust = ["--ca-file", utf8(&ca)];
    let read = bench_read(&served.first, &[&trust[..], &["--shuffle", "false", "--json"]].concat()).json();
    assert_eq!(read["content_hash"], key_order_hash(&set));
    let listed = fuelrail(&[&["ls", &served.first, "--json"], &trust[..]].concat()).json();
    assert_eq!(listed["count"], 50);
    let (key, file) = (format!("{}{}", served.first, set.key(7)), dir.path().join("7.png"));
    fuelrail(&[&["get", &key, "-o", utf8(&file)], &trust[..]].concat()).done();
    assert_eq!(std::fs::read(&file).unwrap(), set.content(7));
    // Without the authority the client is refused with a hint; with verification disabled it is warned.
    let refused = fuelrail(&["ls", &served.first]);
    assert!(refused.code != 0 && refused.err.contains("ca_file"), "{}", refused.err);
    let warned = fuelrail(&["ls", &served.first, "--tls-insecure"]);
    assert!(warned.code == 0 && warned.err.contains("warning: tls_insecure is set"), "{}", warned.err);
    assert!(served.end("INT").contains("TLS handshakes"));
}

fn sha256(path: &Path) -> Vec<u8> {
    Sha256::digest(std::fs::read(path).unwrap()).to_vec()
}
