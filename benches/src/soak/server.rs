//! The bucket of a soak: in a process of its own, so that this process's memory is the loader's alone, or in this one. It takes
//! orders, one JSON line each, and answers each with what it has served so far.
//!
//! Owns the bucket and, when apart, its process. It listens on an address that no client of this machine is given as its own:
//! a client that connects while nobody listens could else meet itself, or be given the port meanwhile.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use fuelrail::{Error, Kind, Result, Tls};
use fuelrail_bucket::{Bucket, BucketConfig, Counters, Source};
use serde::{Deserialize, Serialize};

const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 2], 0);
/// Over TLS it never goes away, and its certificate is made out for this address.
const LISTEN_TLS: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
/// The ending of its authority's certificate, which lies beside the folder that is served and has its name.
const AUTHORITY: &str = "pem";

/// What a bucket has served, over all the times it was away.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// Requests.
    pub requests: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Times nobody listened for a while.
    pub absences: u64,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
}

impl Served {
    /// All faults, absences included.
    #[must_use]
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum::<u64>() + self.absences
    }

    fn and(&self, counters: &Counters) -> Served {
        let mut sum = self.clone();
        sum.requests += counters.requests();
        sum.connections += counters.connections_opened;
        for (kind, count) in &counters.faults {
            *sum.faults.entry(kind.to_string()).or_default() += count;
        }
        sum
    }
}

/// What a bucket is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Play this script from now on.
    Play(String),
    /// Cut all connections, listen to nobody for so many milliseconds, and come back at the same address.
    Away(u64),
    /// Just tell.
    Tell,
}

/// Where a bucket stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) url: String,
    pub(super) ca_file: Option<PathBuf>,
}

/// A bucket that obeys.
#[derive(Debug)]
pub(super) struct Stand {
    config: BucketConfig,
    /// None only while it is away.
    bucket: Option<Bucket>,
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

    fn obey(&mut self, order: &Order) -> Result<Served> {
        match order {
            Order::Tell => {}
            Order::Play(text) => {
                let script = text.parse().map_err(|error| of_bucket(&error))?;
                self.config.script = script;
                if let Some(bucket) = &self.bucket {
                    bucket.set_script(self.config.script.clone()).map_err(|error| of_bucket(&error))?;
                }
            }
            Order::Away(ms) => {
                self.before = self.served();
                self.before.absences += 1;
                self.bucket = None;
                std::thread::sleep(Duration::from_millis(*ms));
                self.bucket = Some(Bucket::start(self.config.clone()).map_err(|error| of_bucket(&error))?);
            }
        }
        Ok(self.served())
    }

    fn served(&self) -> Served {
        self.bucket.as_ref().map_or_else(|| self.before.clone(), |bucket| self.before.and(&bucket.counters()))
    }
}

/// Serves a folder and obeys until the input ends: the other half of a server apart.
///
/// # Errors
/// `Environment` when the bucket cannot be started, `File` when nobody reads the answers.
pub fn serve(folder: &Path, tls: bool, input: impl BufRead, mut output: impl Write) -> Result<()> {
    let (mut stand, address) = Stand::start(folder, tls)?;
    let mut say = |line: String| {
        let said = writeln!(output, "{line}").and_then(|()| output.flush());
        said.map_err(|error| Error::new(Kind::File, format!("answering: {error}")))
    };
    say(json(&address))?;
    for line in input.lines() {
        let line = line.map_err(|error| Error::new(Kind::File, format!("reading an order: {error}")))?;
        let order: Order = serde_json::from_str(&line)
            .map_err(|error| Error::new(Kind::Usage, format!("'{line}' is no order: {error}")))?;
        let answer: std::result::Result<Served, String> = stand.obey(&order).map_err(|error| error.to_string());
        say(json(&answer))?;
    }
    Ok(())
}

/// A bucket to read from and to order about. Dropping it ends it.
#[derive(Debug)]
pub(super) enum Server {
    /// In this process.
    Here(Box<Stand>),
    /// In a process of its own.
    Apart { child: Child, orders: ChildStdin, answers: BufReader<ChildStdout> },
}

impl Server {
    /// Starts one: `program bench soak-bucket --folder FOLDER`, or in this process when there is no program.
    ///
    /// # Errors
    /// `Environment` when it cannot be started or does not say where it stands.
    pub(super) fn start(folder: &Path, tls: bool, program: Option<&Path>) -> Result<(Server, Address)> {
        let Some(program) = program else {
            return Stand::start(folder, tls).map(|(stand, address)| (Server::Here(Box::new(stand)), address));
        };
        let failed = |why: String| Error::new(Kind::Environment, format!("starting the soak's bucket: {why}"));
        let mut command = Command::new(program);
        command.args(["soak-bucket", "--folder"]).arg(folder).args(tls.then_some("--tls"));
        // Its own group: Ctrl-C reaches this process alone, which ends it in order. It ends when its input does, so also when
        // this process dies.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let orders = child.stdin.take().expect("its standard input is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("its standard output is a pipe"));
        let mut server = Server::Apart { child, orders, answers };
        let address = server.line().and_then(|line| {
            serde_json::from_str(&line).map_err(|_| failed(format!("it said '{line}' instead of its address")))
        })?;
        Ok((server, address))
    }

    /// Tells it something.
    ///
    /// # Errors
    /// `Environment` when it is gone or cannot obey.
    pub(super) fn order(&mut self, order: &Order) -> Result<Served> {
        let gone = |why: String| Error::new(Kind::Environment, format!("the soak's bucket: {why}"));
        if let Server::Here(stand) = self {
            return stand.obey(order);
        }
        if let Server::Apart { orders, .. } = self {
            writeln!(orders, "{}", json(order))
                .and_then(|()| orders.flush())
                .map_err(|error| gone(error.to_string()))?;
        }
        let line = self.line()?;
        let answer: std::result::Result<Served, String> =
            serde_json::from_str(&line).map_err(|error| gone(format!("it said '{line}': {error}")))?;
        answer.map_err(gone)
    }

    fn line(&mut self) -> Result<String> {
        let Server::Apart { answers, .. } = self else { return Ok(String::new()) };
        let mut line = String::new();
        match answers.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line.trim_end().to_owned()),
            outcome => Err(Error::new(Kind::Environment, format!("the soak's bucket has ended ({outcome:?})"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Server::Apart { child, .. } = self {
            // It may have ended by itself.
            let _ = (child.kill(), child.wait());
        }
    }
}

impl Address {
    /// How its certificate is judged.
    pub(super) fn tls(&self) -> Tls {
        Tls { ca_file: self.ca_file.clone(), insecure: false }
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
        let (mut server, address) = Server::start(&folder, false, None).unwrap();
        let get = |url: &str| fuelrail::get(&format!("{url}one"), &mut Vec::new()).map(|_| ());
        get(&address.url).unwrap();
        assert_eq!(server.order(&Order::Tell).unwrap().requests, 1);
        server.order(&Order::Play("error=1.0,per_key_max=9".to_owned())).unwrap();
        let served = server.order(&Order::Away(5)).unwrap();
        assert_eq!((served.absences, served.requests), (1, 1));
        get(&address.url).unwrap_err();
        let served = server.order(&Order::Tell).unwrap();
        // A get tries more than once.
        let errors = served.faults["error"];
        assert!(errors > 0 && served.requests == 1 + errors, "the script outlives the absence: {served:?}");
        server.order(&Order::Play("nonsense".to_owned())).unwrap_err();
    }

    #[test]
    fn orders_are_lines_and_every_one_is_answered() {
        let (_around, folder) = folder();
        let input = b"\"tell\"\n{\"play\":\"reset=0.5\"}\n{\"play\":\"reset=2\"}\n{\"away\":1}\n";
        let mut output = Vec::new();
        serve(&folder, true, &input[..], &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        let address: Address = serde_json::from_str(lines[0]).unwrap();
        assert!(address.url.starts_with("https://127.0.0.1:") && address.ca_file.unwrap().is_file());
        assert!(lines[3].contains("Err") && lines[4].contains("\"absences\":1"), "{text}");
        assert_eq!(serve(&folder, false, &b"dance\n"[..], &mut Vec::new()).unwrap_err().kind(), Kind::Usage);
    }
}
