//! The bucket of a soak, in its own process, so that the soak process's memory is the loader's alone. It prints its
//! address, plays every script it receives, and prints its counters on request, as JSON lines.
//!
//! The bucket listens on an address that no local client is assigned as its own: while the bucket is away, a client could
//! otherwise connect to its own socket, or be assigned the bucket's port.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use fuelrail::{Error, Kind, Result, Tls};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::FaultKind::{self, Changed, WrongEtag};
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use serde::{Deserialize, Serialize};

const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 2], 0);
/// Over TLS the bucket never goes away, and its certificate is issued for this address.
const LISTEN_TLS: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// The bucket's counters, over all its restarts.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) requests: u64,
    pub(super) absences: u64,
    pub(super) faults: BTreeMap<String, u64>,
}

/// A message to the bucket's process: the script to play and how long to stop listening first; `None` asks for the served counts.
type Message = Option<(String, Option<Duration>)>;

/// The first line of the bucket's process: its URL, and the file of its CA certificate.
type Address = (String, Option<PathBuf>);

/// Runs the bucket's process: serves a folder until the input ends.
pub fn serve(folder: &Path, tls: bool, input: impl BufRead, mut output: impl Write) -> Result<()> {
    let broken = |error: std::io::Error| Error::new(Kind::File, format!("the soak's bucket: {error}"));
    let mut say = |line: String| writeln!(output, "{line}").and_then(|()| output.flush()).map_err(broken);
    let mut config = BucketConfig {
        listen: SocketAddr::from(if tls { LISTEN_TLS } else { LISTEN }),
        source: Source::Directory(folder.to_owned()),
        tls: tls.then_some(fuelrail_bucket::Tls::SelfSigned),
        ..BucketConfig::default()
    };
    let mut bucket = crate::harness::tool::embedded(config.clone())?;
    config.listen = bucket.addr();
    // Beside the served folder, not in it.
    let ca_file = bucket.authority().map(|pem| {
        let path = folder.with_extension("pem");
        std::fs::write(&path, pem).map_err(broken).map(|()| path)
    });
    let address: Address = (bucket.url(""), ca_file.transpose()?);
    say(json(&address))?;
    let mut before = Served::default();
    for line in input.lines() {
        match serde_json::from_str(&line.map_err(broken)?).map_err(|error| broken(error.into()))? {
            Message::None => say(json(&served(&bucket, &before)))?,
            Message::Some((script, away)) => {
                let strange = |error: fuelrail_bucket::Error| Error::new(Kind::Environment, error.to_string());
                config.script = script.parse().map_err(strange)?;
                let Some(away) = away else {
                    bucket.set_script(config.script.clone()).map_err(strange)?;
                    continue;
                };
                before = served(&bucket, &before);
                before.absences += 1;
                drop(bucket);
                std::thread::sleep(away);
                bucket = crate::harness::tool::embedded(config.clone())?;
            }
        }
    }
    Ok(())
}

fn served(bucket: &Bucket, before: &Served) -> Served {
    let (mut sum, counters) = (before.clone(), bucket.counters());
    sum.requests += counters.requests();
    for (kind, count) in &counters.faults {
        *sum.faults.entry(kind.to_string()).or_default() += count;
    }
    sum
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structures serialise")
}

/// The bucket's process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) url: String,
    pub(super) tls: Tls,
}

impl Server {
    /// Starts `PROGRAM soak-bucket`.
    pub(super) fn start(program: &Path, folder: &Path, tls: bool) -> Result<Server> {
        let mut command = Command::new(program);
        command.args(["soak-bucket", "--folder"]).arg(folder).args(tls.then_some("--tls"));
        // Its own process group: Ctrl-C reaches only this process, which then ends it in order. It also exits when its
        // input closes, as when this process dies.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut server =
            Server { child, input, output: BufReader::new(output), url: String::new(), tls: Tls::default() };
        (server.url, server.tls.ca_file) = server.line::<Address>()?;
        Ok(server)
    }

    pub(super) fn play(&mut self, phase: &Phase) -> Result<()> {
        self.send(&Some((phase.script.clone(), phase.away)))
    }

    pub(super) fn served(&mut self) -> Result<Served> {
        self.send(&None)?;
        self.line()
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        writeln!(self.input, "{}", json(message)).map_err(|error| failed(&error))
    }

    fn line<T: for<'d> Deserialize<'d>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| failed(&error))?;
        serde_json::from_str(&line).map_err(|_| failed(&format!("it has ended, or said '{}'", line.trim())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = (self.child.kill(), self.child.wait());
    }
}

fn failed(why: &impl ToString) -> Error {
    Error::new(Kind::Environment, format!("the soak's bucket: {}", why.to_string()))
}

/// The kinds of phases: no fault, so that the loader reaches full speed; a few faults of many kinds; 500 and 503 for most
/// requests; stalls in bodies, short, long or for ever; low bandwidth on every connection; connections that end in a body
/// or between responses; wrong entity tags and stale replicas; no listener for a moment.
const KINDS: [&str; 8] = ["calm", "mixed", "burst", "stalls", "trickle", "cuts", "stray", "away"];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Phase {
    pub(super) kind: &'static str,
    pub(super) script: String,
    /// How long the port has no listener at the phase's start; `None` when it always has one.
    pub(super) away: Option<Duration>,
    pub(super) lasts: Duration,
}

/// The bucket's faults over time, drawn from a seed. Every round holds each kind of phase once, in a new order, so that a short soak runs
/// all of them. All faults can be recovered from within the loader's default number of attempts: that is part of the test.
#[derive(Debug)]
pub(super) struct Phases {
    draw: Prng,
    mean: Duration,
    kinds: Vec<&'static str>,
    round: Vec<&'static str>,
    number: u64,
    strays: u64,
}

impl Phases {
    /// Phases of this mean length. `faults`: whether any are injected; `returns`: whether the bucket can go away and return unchanged.
    pub(super) fn new(seed: u64, mean: Duration, faults: bool, returns: bool) -> Phases {
        let can = |kind: &&str| if faults { returns || *kind != "away" } else { *kind == "calm" };
        let kinds = KINDS.into_iter().filter(can).collect();
        Phases { draw: Prng::new(seed ^ 0x50AC), mean, kinds, round: Vec::new(), number: 0, strays: 0 }
    }

    pub(super) fn next_phase(&mut self) -> Phase {
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
        }
        let at = self.draw.below(self.round.len() as u64) as usize;
        let kind = self.round.swap_remove(at);
        self.number += 1;
        let faults = self.faults(kind);
        let away = (kind == "away").then(|| Duration::from_millis(20 + self.draw.below(180)));
        let latency = ["", ",latency=uniform:0ms..4ms", ",latency=lognormal:2ms/0.8", ",latency=pareto:1ms/1.5"];
        let latency = latency[self.draw.below(latency.len() as u64) as usize];
        let script = format!("seed={}{faults}{latency}", self.number);
        Phase { kind, script, away, lasts: self.mean.mul_f64(0.5 + self.draw.unit()) }
    }

    /// The kind's settings, each after a comma.
    fn faults(&mut self, kind: &str) -> String {
        let draw = &mut self.draw;
        match kind {
            "mixed" => {
                let mut text = ",per_key_max=2".to_owned();
                for fault in FaultKind::reading().filter(|kind| !matches!(kind, WrongEtag | Changed)) {
                    if draw.chance(0.6) {
                        let lasts = if fault == FaultKind::Stall { "/200ms" } else { "" };
                        text += &format!(",{fault}={:.4}{lasts}", 0.005 + draw.unit() * 0.02);
                    }
                }
                text
            }
            "burst" => ",slowdown=0.1,error=0.5,per_key_max=2".to_owned(),
            "stalls" => format!(",stall=0.02/{}ms,stall=0.001,per_key_max=2", 50 + draw.below(1000)),
            // Bytes keep coming, slowly: the deadline of a batch may pass, no read times out.
            "trickle" => format!(",bandwidth={}MiB", 1 << draw.below(3)),
            "cuts" => {
                let way = if draw.chance(0.5) { "close_after" } else { "drop_after" };
                format!(",{way}={},reset=0.03,truncate=0.03,per_key_max=2", 3 + draw.below(12))
            }
            "stray" => {
                // A second wrong response to one request would mean that the object did change. With one digit of the
                // key's number per phase, no object gets two within ten rounds, however long a request is retried.
                let digit = self.strays % 10;
                self.strays += 1;
                format!(",wrong_etag=0.3,changed=0.3,per_key_max=1,only=*{digit}.*")
            }
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fuelrail_bucket::Script;

    use super::*;

    #[test]
    fn a_bucket_goes_away_comes_back_as_the_same_and_says_what_it_served() {
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("served");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("one"), "1").unwrap();
        let (input, mut send) = std::io::pipe().unwrap();
        let (hear, output) = std::io::pipe().unwrap();
        let serving = std::thread::spawn(move || serve(&folder, false, BufReader::new(input), output));
        let mut lines = BufReader::new(hear).lines().map(|line| line.unwrap());
        let (url, _): Address = serde_json::from_str(&lines.next().unwrap()).unwrap();
        let get = || fuelrail::get(&format!("{url}one"), &mut Vec::new());
        let mut say = |message: Message| writeln!(send, "{}", json(&message)).unwrap();
        let mut hear = || serde_json::from_str::<Served>(&lines.next().unwrap()).unwrap();
        get().unwrap();
        say(Some(("error=1.0,per_key_max=9".to_owned(), Some(Duration::from_millis(5)))));
        say(None);
        let served = hear();
        assert_eq!((served.absences, served.requests), (1, 1));
        get().unwrap_err();
        // A client retries a failed request.
        say(None);
        let served = hear();
        let errors = served.faults["error"];
        assert!(errors > 0 && served.requests == 1 + errors, "the script outlives the absence: {served:?}");
        say(Some(("nonsense".to_owned(), None)));
        assert_eq!(serving.join().unwrap().unwrap_err().kind(), Kind::Environment);
    }

    fn drawn(seed: u64, count: usize) -> Vec<Phase> {
        let mut phases = Phases::new(seed, Duration::from_secs(4), true, true);
        (0..count).map(|_| phases.next_phase()).collect()
    }

    #[test]
    fn every_script_is_one_and_all_faults_come() {
        let parsed = |phase: Phase| (phase.script.parse::<Script>().unwrap(), phase);
        let all: Vec<(Script, Phase)> = drawn(3, 200).into_iter().map(parsed).collect();
        for kind in FaultKind::reading() {
            assert!(all.iter().any(|(script, _)| script.faults.iter().any(|fault| fault.kind == kind)), "{kind}");
        }
        for (script, phase) in &all {
            // The faults of two adjacent phases, and those of a bucket that is away, stay below the default of ten attempts.
            assert!(script.faults_per_key_max <= 3, "{phase:?}");
            assert!(phase.lasts >= Duration::from_secs(2) && phase.lasts < Duration::from_secs(6), "{phase:?}");
        }
    }

    #[test]
    fn a_round_holds_every_kind_and_a_seed_repeats() {
        for round in drawn(5, 80).chunks(8) {
            let mut names: Vec<&str> = round.iter().map(|phase| phase.kind).collect();
            names.sort_unstable();
            assert_eq!(names, ["away", "burst", "calm", "cuts", "mixed", "stalls", "stray", "trickle"]);
        }
        assert_eq!(drawn(5, 40), drawn(5, 40));
        assert_ne!(drawn(5, 40), drawn(6, 40));
        let mut stays = Phases::new(5, Duration::from_secs(1), true, false);
        assert!((0..40).all(|_| stays.next_phase().away.is_none()));
        let mut calm = Phases::new(5, Duration::from_secs(1), false, true);
        assert!((0..40).all(|_| calm.next_phase().kind == "calm"));
    }
}
