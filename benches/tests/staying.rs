//! Contestants that stay over many passes: the loader is measured from rest to rest, floors open again what a server closed
//! between two answers.
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use fuelrail::{Kind, Listed, write_manifest};
use fuelrail_benches::floor::{self, Floor, Into, Loop};
use fuelrail_benches::harness::{Said, SetHash, Task};
use fuelrail_benches::own::{self, Own};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Latency, Script, Source};

const OBJECTS: u64 = 300;
const OBJECT_BYTES: u64 = 20_000;

/// A bucket, and the task of reading all of it. The folder holds the manifest.
fn serve(script: Script) -> (Bucket, Task, tempfile::TempDir, String) {
    let set = DataSet::tokens(OBJECTS, 3, OBJECT_BYTES);
    let (mut listing, mut hash) = (Vec::new(), SetHash::default());
    for index in 0..set.len() {
        let content = set.content(index);
        hash.add(&content);
        listing.push(Listed { key: set.key(index), size: content.len() as u64, etag: None });
    }
    listing.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("set.tsv");
    write_manifest(&manifest, &listing).unwrap();
    let bucket = Bucket::start(BucketConfig { source: Source::Generated(set), script, ..BucketConfig::default() });
    let bucket = bucket.unwrap();
    let task = Task { uri: bucket.url(""), manifest, batch_size: 16, arena_bytes: 32 << 20, seed: 5 };
    (bucket, task, folder, hash.to_string())
}

/// The harness's end of a conversation.
struct Talk {
    say: UnixStream,
    hear: BufReader<UnixStream>,
}

impl Talk {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.hear.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn pass(&mut self) -> Said {
        self.say.write_all(b"go\n").unwrap();
        Said::parse(&self.line()).unwrap()
    }
}

/// Talks to the loader as the harness does, one line at a time.
fn with_loader(once: bool, task: &Task, talk: impl FnOnce(&mut Talk)) -> fuelrail::Result<()> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // Requests are counted: none is sent twice because the machine is busy.
    let settings = [("shards", "1"), ("pin", "false"), ("connections_max", "4"), ("hedge_percent", "0")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let own = Own { settings, hash: true, once };
    std::thread::scope(|scope| {
        let input = BufReader::new(theirs.try_clone().unwrap());
        let loader = scope.spawn(move || own::run(&own, task, input, theirs));
        let mut end = Talk { say: ours.try_clone().unwrap(), hear: BufReader::new(ours) };
        assert_eq!(end.line(), "ready");
        talk(&mut end);
        drop(end);
        loader.join().unwrap()
    })
}

#[test]
fn the_loader_stays_and_rests_between_passes() {
    // An answer takes long enough for a look-ahead that is not waited for to show.
    let script = Script { latency: Latency::Fixed { us: 5_000 }, ..Script::default() };
    let (bucket, task, _folder, hash) = serve(script);
    with_loader(false, &task, |talk| {
        let mut requests = 0.0;
        for pass in 0..4 {
            let said = talk.pass();
            assert_eq!((said.bytes, said.objects), (OBJECTS * OBJECT_BYTES, OBJECTS), "one epoch, each object once");
            assert_eq!(said.hash.as_ref(), Some(&hash), "pass {pass}");
            assert_eq!(said.facts.contains_key("start_cpu_s"), pass == 0, "it starts once: {said:?}");
            let asked = bucket.counters().get_requests;
            requests += said.facts["requests"];
            assert_eq!(asked as f64, requests, "pass {pass}: what it tells is what it asked for");
            sleep(Duration::from_millis(40));
            assert_eq!(bucket.counters().get_requests, asked, "pass {pass}: nothing is fetched out of turn");
        }
        assert_eq!(bucket.counters().body_bytes as f64, requests * OBJECT_BYTES as f64);
    })
    .unwrap();
}

#[test]
fn the_only_pass_fetches_nothing_of_a_next_one() {
    let (bucket, task, _folder, hash) = serve(Script::default());
    let end = with_loader(true, &task, |talk| {
        let said = talk.pass();
        assert_eq!((said.hash.as_ref(), said.facts["received_bytes_per_byte"]), (Some(&hash), 1.0));
        assert_eq!((said.facts["requests"], bucket.counters().get_requests), (OBJECTS as f64, OBJECTS));
        talk.say.write_all(b"go\n").unwrap();
        assert_eq!(talk.line(), "", "there is no second one");
    });
    assert_eq!(end.unwrap_err().kind(), Kind::Protocol);
    assert_eq!(bucket.counters().get_requests, OBJECTS);
}

#[test]
fn floors_open_again_what_was_closed_between_answers() {
    let run = |looping: Loop, script: Script| {
        let (bucket, task, _folder, hash) = serve(script);
        let floor = Floor { looping, into: Into::Arena, touch: false, hash: true };
        let mut output = Vec::new();
        floor::run(&floor, &task, &b"go\ngo\ngo\ngo\n"[..], &mut output)?;
        for line in String::from_utf8(output).unwrap().lines().skip(1) {
            assert_eq!(Said::parse(line).unwrap().hash.as_ref(), Some(&hash), "{looping:?}");
        }
        Ok(bucket.counters().connections_opened)
    };
    let silent = |answers| Script { drop_after_requests: Some(answers), ..Script::default() };
    let told = |answers| Script { close_after_requests: Some(answers), ..Script::default() };
    for script in [silent, told] {
        // At the end of every pass, so that the next begins on a closed connection; and in the middle.
        for (looping, answers, opened) in
            [(Loop::Recv, 300, 4..=4), (Loop::Recv, 250, 5..=5), (Loop::Epoll(Some(3)), 300, 4..=7)]
        {
            let found = run(looping, script(answers)).unwrap();
            assert!(opened.contains(&found), "{looping:?}, {answers} answers a connection: {found} connections");
        }
        for looping in [Loop::Recv, Loop::Epoll(Some(2))] {
            let error: fuelrail::Error = run(looping, script(20)).unwrap_err();
            assert!([Kind::Truncated, Kind::Network].contains(&error.kind()), "no server to measure with: {error}");
        }
    }
}
