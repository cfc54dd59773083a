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
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use serde::{Deserialize, Serialize};

use super::phases::Phase;

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

#[cfg(test)]
mod tests {
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
}
