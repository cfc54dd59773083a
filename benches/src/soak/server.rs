//! The bucket of a soak, in a process of its own, so that this process's memory is the loader's alone. It plays its phases by
//! itself and says, a JSON line each, where it listens and then which phase it is in and what it has served so far.
//!
//! Owns the bucket's process. The bucket listens on an address that no client of this machine is given as its own: a client
//! that connects while the bucket is away could otherwise connect to its own socket, or be assigned the bucket's port.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write, copy, sink};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{Error, Kind, Result, Tls};
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use serde::{Deserialize, Serialize};

use super::phases::{Phase, Phases};

const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 2], 0);
/// Over TLS it never goes away, and its certificate is made out for this address.
const LISTEN_TLS: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
/// The ending of its authority's certificate, which lies beside the folder that is served and has its name.
const AUTHORITY: &str = "pem";
/// How often the bucket says what it has served.
const LOOK: Duration = Duration::from_millis(250);

/// What a bucket has served, over all the times it was away.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// Requests.
    pub requests: u64,
    /// Times nobody listened for a while.
    pub absences: u64,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
}

/// What is known of the bucket.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    /// The phase it is in.
    pub(super) phase: String,
    pub(super) served: Served,
    /// Whether it has ended.
    pub(super) ended: bool,
}

/// Where a bucket listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) url: String,
    pub(super) ca_file: Option<PathBuf>,
}

impl Address {
    /// How its certificate is judged.
    pub(super) fn tls(&self) -> Tls {
        Tls { ca_file: self.ca_file.clone(), insecure: false }
    }
}

/// What a bucket serves, and how it misbehaves: the arguments of its process.
#[derive(Args, Clone, Debug)]
pub struct Serving {
    /// What to serve
    #[arg(long, value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Over TLS
    #[arg(long)]
    pub tls: bool,
    /// Without any fault
    #[arg(long)]
    pub calm: bool,
    /// Chooses the phases
    #[arg(long)]
    pub seed: u64,
    /// Mean length of a phase
    #[arg(long, value_name = "MS")]
    pub phase_ms: u64,
}

/// Plays phases and says what happens until the input ends.
///
/// # Errors
/// `Environment` when the bucket cannot be started, or started again; `File` when its words cannot be written.
pub fn serve(serving: &Serving, mut input: impl Read + Send + 'static, mut output: impl Write) -> Result<()> {
    let (mut stand, address) = Stand::start(&serving.folder, serving.tls)?;
    let mean = Duration::from_millis(serving.phase_ms);
    let mut phases = match serving.calm {
        true => Phases::calm(serving.seed, mean),
        false => Phases::new(serving.seed, mean, !serving.tls),
    };
    let (end, ended) = channel::<()>();
    std::thread::spawn(move || {
        // Only the end of the input matters, and an error is one, too.
        let _ = copy(&mut input, &mut sink());
        drop(end);
    });
    let mut say = |line: String| {
        let said = writeln!(output, "{line}").and_then(|()| output.flush());
        said.map_err(|error| Error::new(Kind::File, format!("the soak's bucket: {error}")))
    };
    say(json(&address))?;
    loop {
        let phase = phases.next_phase();
        let until = Instant::now() + phase.lasts;
        stand.play(&phase)?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let over = ended.recv_timeout(left.min(LOOK)) != Err(RecvTimeoutError::Timeout);
            say(json(&Seen { phase: phase.name.to_owned(), served: stand.served(), ended: over }))?;
            if over {
                return Ok(());
            }
            if left.is_zero() {
                break;
            }
        }
    }
}

/// A bucket that goes away and comes back.
struct Stand {
    config: BucketConfig,
    /// None only while it is away.
    bucket: Option<Bucket>,
    /// What was served before it went away.
    before: Served,
}

impl Stand {
    fn start(folder: &Path, tls: bool) -> Result<(Stand, Address)> {
        let mut config = BucketConfig {
            listen: SocketAddr::from(if tls { LISTEN_TLS } else { LISTEN }),
            source: Source::Directory(folder.to_owned()),
            tls: tls.then_some(fuelrail_bucket::Tls::SelfSigned),
            ..BucketConfig::default()
        };
        let bucket = Bucket::start(config.clone()).map_err(|error| of_bucket(&error))?;
        config.listen = bucket.addr();
        let write = |pem: &str| -> Result<PathBuf> {
            let path = folder.with_extension(AUTHORITY);
            std::fs::write(&path, pem)
                .map_err(|error| Error::new(Kind::File, format!("writing {}: {error}", path.display())))?;
            Ok(path)
        };
        let address = Address { url: bucket.url(""), ca_file: bucket.authority().map(write).transpose()? };
        Ok((Stand { config, bucket: Some(bucket), before: Served::default() }, address))
    }

    /// Plays a phase's script, and goes away first where the phase says so: closes all connections, stops listening for
    /// a while, and listens at the same address again.
    fn play(&mut self, phase: &Phase) -> Result<()> {
        self.config.script = phase.script.parse().map_err(|error| of_bucket(&error))?;
        if let Some(away) = phase.away {
            self.before = Served { absences: self.before.absences + 1, ..self.served() };
            self.bucket = None;
            std::thread::sleep(away);
            self.bucket = Some(Bucket::start(self.config.clone()).map_err(|error| of_bucket(&error))?);
        } else if let Some(bucket) = &self.bucket {
            bucket.set_script(self.config.script.clone()).map_err(|error| of_bucket(&error))?;
        }
        Ok(())
    }

    fn served(&self) -> Served {
        let mut sum = self.before.clone();
        let Some(bucket) = &self.bucket else { return sum };
        let counters = bucket.counters();
        sum.requests += counters.requests();
        for (kind, count) in &counters.faults {
            *sum.faults.entry(kind.to_string()).or_default() += count;
        }
        sum
    }
}

/// The bucket's process and what it says. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    seen: Arc<Mutex<Seen>>,
    listener: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts `PROGRAM soak-bucket`.
    ///
    /// # Errors
    /// `Environment` when it cannot be started or does not say where it listens.
    pub(super) fn start(program: &Path, serving: &Serving) -> Result<(Server, Address)> {
        let failed = |why: String| Error::new(Kind::Environment, format!("starting the soak's bucket: {why}"));
        let mut command = Command::new(program);
        command.args(["soak-bucket", "--folder"]).arg(&serving.folder);
        command.args(serving.tls.then_some("--tls")).args(serving.calm.then_some("--calm"));
        command.args(["--seed", &serving.seed.to_string(), "--phase-ms", &serving.phase_ms.to_string()]);
        // Its own group: Ctrl-C reaches this process alone, which ends it in order. It ends when its input does, so also when
        // this process dies.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let mut said = BufReader::new(child.stdout.take().expect("its standard output is a pipe"));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut server = Server { child, seen: Arc::clone(&seen), listener: None };
        let mut line = String::new();
        said.read_line(&mut line).map_err(|error| failed(error.to_string()))?;
        let address = serde_json::from_str(&line).map_err(|_| failed(format!("it said '{}'", line.trim())))?;
        server.listener = Some(std::thread::spawn(move || {
            let lines = said.lines().map_while(std::result::Result::ok);
            for now in lines.filter_map(|line| serde_json::from_str::<Seen>(&line).ok()) {
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
            }
            seen.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        }));
        Ok((server, address))
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the bucket and tells what it has served.
    ///
    /// # Errors
    /// `Environment` when it did not end as it should.
    pub(super) fn stop(mut self) -> Result<Served> {
        drop(self.child.stdin.take());
        let gone = |why: String| Error::new(Kind::Environment, format!("the soak's bucket: {why}"));
        let status = self.child.wait().map_err(|error| gone(error.to_string()))?;
        if !status.success() {
            return Err(gone(status.to_string()));
        }
        self.join();
        Ok(self.seen().served)
    }

    fn join(&mut self) {
        if let Some(listener) = self.listener.take() {
            // A panic there was printed when it happened.
            let _ = listener.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = (self.child.kill(), self.child.wait());
        self.join();
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structures serialise")
}

fn of_bucket(error: &fuelrail_bucket::Error) -> Error {
    Error::new(Kind::Environment, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder to serve in one that goes.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("served");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("one"), "1").unwrap();
        (around, folder)
    }

    #[test]
    fn a_bucket_goes_away_and_comes_back_as_the_same() {
        let (_around, folder) = folder();
        let (mut stand, address) = Stand::start(&folder, false).unwrap();
        let get = |url: &str| fuelrail::get(&format!("{url}one"), &mut Vec::new()).map(|_| ());
        get(&address.url).unwrap();
        assert_eq!(stand.served().requests, 1);
        let away = Some(Duration::from_millis(5));
        let mut phase =
            Phase { name: "away", script: "error=1.0,per_key_max=9".to_owned(), away, lasts: Duration::ZERO };
        stand.play(&phase).unwrap();
        assert_eq!((stand.served().absences, stand.served().requests), (1, 1));
        get(&address.url).unwrap_err();
        // A get tries more than once.
        let (served, errors) = (stand.served(), stand.served().faults["error"]);
        assert!(errors > 0 && served.requests == 1 + errors, "the script outlives the absence: {served:?}");
        phase.script = "nonsense".to_owned();
        stand.play(&phase).unwrap_err();
    }

    #[test]
    fn it_says_where_it_listens_and_what_it_served_until_its_input_ends() {
        let (_around, folder) = folder();
        let serving = Serving { folder, tls: true, calm: true, seed: 1, phase_ms: 1 };
        let mut output = Vec::new();
        serve(&serving, std::io::empty(), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let address: Address = serde_json::from_str(lines[0]).unwrap();
        assert!(address.url.starts_with("https://127.0.0.1:") && address.ca_file.unwrap().is_file());
        let last: Seen = serde_json::from_str(lines[lines.len() - 1]).unwrap();
        assert!(last.ended && last.phase == "calm" && last.served == Served::default(), "{text}");
    }
}
