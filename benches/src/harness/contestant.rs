//! A contestant as a process: started in its place, asked for passes, ended; what it used is read from outside.
//!
//! Owns the process, its cgroup and its pipes. Whatever a contestant does (die, babble, hang, ignore the end of its input),
//! the harness gets an error in bounded time and leaves no process behind. The protocol is in `protocol.rs`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::account::{Account, Cpu, Leaf, Place};
use super::protocol::{GO, READY, Said, Task, quoted};
use fuelrail_cli::failure::Stop;

/// Who takes part: a program and its own arguments. The harness adds the tail of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contestant {
    pub name: String,
    pub program: PathBuf,
    /// Its own arguments, before the tail.
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// Arguments with which it hashes what it gets; empty when it cannot. A pass with them proves the bytes and is not
    /// measured.
    pub proof_args: Vec<OsString>,
    /// Arguments that tell it that one pass is all this process will be asked for; empty when that makes no difference to it.
    pub once_args: Vec<OsString>,
}

impl Contestant {
    pub fn new<A: Into<OsString>>(
        name: impl Into<String>,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = A>,
    ) -> Contestant {
        let args = args.into_iter().map(Into::into).collect();
        Contestant { name: name.into(), program: program.into(), args, ..Contestant::default() }
    }

    /// With arguments that make it hash what it gets.
    pub fn proved_by<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Contestant {
        self.proof_args = args.into_iter().map(Into::into).collect();
        self
    }

    /// The contestant as it hashes; none when it cannot.
    pub fn proving(&self) -> Option<Contestant> {
        let args = self.args.iter().chain(&self.proof_args).cloned().collect();
        (!self.proof_args.is_empty()).then(|| Contestant { args, ..self.clone() })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// From its start to `ready`.
    pub ready: Duration,
    pub pass: Duration,
    /// From the end of its input to its end; then it is killed.
    pub end: Duration,
}

impl Default for Patience {
    /// Three minutes to start (some import half a machine-learning stack), ten for a pass, ten seconds to end.
    fn default() -> Patience {
        Patience { ready: Duration::from_mins(3), pass: Duration::from_mins(10), end: Duration::from_secs(10) }
    }
}

/// One pass, as the contestant told it and as the harness saw it. GB are 10⁹ bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pass {
    pub bytes: u64,
    pub objects: u64,
    /// From `go` to the last byte as the contestant measured it; of a cold pass, from the start of the process to its
    /// answer. Seconds.
    pub wall_s: f64,
    /// Processor time of its process tree in user mode, s.
    pub cpu_user_s: f64,
    /// Processor time of its process tree in the kernel, s.
    pub cpu_system_s: f64,
    /// From `go` to the first batch, µs; of a cold pass, from the start of the process.
    pub first_batch_us: Option<u64>,
    /// Most memory its process tree held so far.
    pub peak_memory_bytes: u64,
    /// The [`SetHash`] over what it got, where it computed one.
    pub hash: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, f64>,
}

impl Pass {
    pub fn cpu_s(&self) -> f64 {
        self.cpu_user_s + self.cpu_system_s
    }

    /// Processor time per payload, s/GB; none without payload.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        let bytes = self.bytes as f64 * self.received_share();
        (bytes > 0.0).then(|| self.cpu_s() / (bytes / 1e9))
    }

    /// Processor time per object, µs; none without objects.
    pub fn cpu_us_per_object(&self) -> Option<f64> {
        let objects = self.objects as f64 * self.received_share();
        (objects > 0.0).then(|| self.cpu_s() * 1e6 / objects)
    }

    /// Payload per wall time, GB/s; none when no time passed.
    pub fn gb_per_s(&self) -> Option<f64> {
        (self.wall_s > 0.0).then(|| self.bytes as f64 * self.received_share() / 1e9 / self.wall_s)
    }

    /// What was received in this pass per byte delivered in it, where the contestant tells: rates are of what was received. The
    /// rest of what was delivered came in an earlier pass and was paid for there, and what came too early is delivered free later.
    fn received_share(&self) -> f64 {
        self.facts.get(RECEIVED).map_or(1.0, |share| share.max(0.0))
    }
}

/// The fact that tells how many bytes a pass brought from the source, per byte delivered in it.
pub const RECEIVED: &str = "received_bytes_per_byte";

#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<std::io::Result<String>>,
    complaint: Receiver<String>,
    pub account: Account,
    patience: Patience,
    stop: Stop,
    pub settings: String,
    started: Instant,
}

/// Longest line a contestant may say.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Lines that may wait to be read: one that babbles is held up by its pipe.
const LINES_WAITING_MAX: usize = 16;
/// What is kept of its standard error: the end, where the reason is.
const COMPLAINT_BYTES_MAX: usize = 4 << 10;
/// How long the end of its standard error is waited for once it is gone: a grandchild that fled may hold the pipe.
const COMPLAINT_PATIENCE: Duration = Duration::from_secs(1);
/// How often a wait looks whether to go on.
const LOOK: Duration = Duration::from_millis(50);

impl Running {
    /// Starts it, without waiting for `ready`.
    pub fn spawn(who: &Contestant, task: &Task, place: &Place, patience: Patience, stop: &Stop) -> Result<Running> {
        let args: Vec<OsString> = who.args.iter().cloned().chain(task.args()).collect();
        let leaf = Leaf::new().ok();
        let mut command = place.command(leaf.as_ref(), &who.program, &args);
        command.envs(who.env.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its own group: Ctrl-C reaches the harness alone, which ends all contestants in order.
        command.process_group(0);
        let started = Instant::now();
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().display().to_string();
            Error::new(Kind::Environment, format!("starting contestant {} ({program}): {error}", who.name))
                .with_hint("install it, or skip the contestant")
        })?;
        let output = child.stdout.take().expect("its standard output is a pipe");
        let errors = child.stderr.take().expect("its standard error is a pipe");
        let (say, lines) = sync_channel(LINES_WAITING_MAX);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            while let Some(line) = next_line(&mut reader) {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        let (complain, complaint) = sync_channel(1);
        std::thread::spawn(move || {
            // The receiver may be gone when all went well.
            let _ = complain.send(end_of(errors));
        });
        let account = leaf.map_or_else(|| Account::Tree(child.id()), Account::Leaf);
        Ok(Running {
            name: who.name.clone(),
            input: child.stdin.take(),
            child,
            lines,
            complaint,
            account,
            patience,
            stop: stop.clone(),
            settings: String::new(),
            started,
        })
    }

    pub fn start(who: &Contestant, task: &Task, place: &Place, patience: Patience, stop: &Stop) -> Result<Running> {
        let mut running = Running::spawn(who, task, place, patience, stop)?;
        running.await_ready()?;
        Ok(running)
    }

    pub fn pass(&mut self) -> Result<Pass> {
        let before = self.account.settled_cpu()?;
        self.go();
        let line = self.line(self.patience.pass, "its result")?;
        let used = self.account.settled_cpu()?.since(before);
        let said = self.said(&line)?;
        Ok(self.told_pass(said, used))
    }

    /// A pass from nothing: everything since its process was started counts, reading of libraries and connecting included.
    pub fn cold(
        who: &Contestant,
        task: &Task,
        place: &Place,
        patience: Patience,
        stop: &Stop,
    ) -> Result<(Pass, String)> {
        let args = who.args.iter().chain(&who.once_args).cloned().collect();
        let mut running = Running::spawn(&Contestant { args, ..who.clone() }, task, place, patience, stop)?;
        running.go();
        running.await_ready()?;
        let ready = running.started.elapsed();
        let line = running.line(patience.pass, "its result")?;
        let wall = running.started.elapsed();
        let used = running.account.settled_cpu()?;
        let mut said = running.said(&line)?;
        said.wall_s = wall.as_secs_f64();
        said.first_batch_us = said.first_batch_us.map(|us| us + ready.as_micros() as u64);
        let pass = running.told_pass(said, used);
        let settings = running.settings.clone();
        running.finish()?;
        Ok((pass, settings))
    }

    pub fn finish(mut self) -> Result<()> {
        self.input = None;
        let deadline = Instant::now() + self.patience.end;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(self.died("at its end")),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => {
                    let text = "did not exit at the end of its input";
                    return Err(self.wrong(Kind::Stalled, text, "exit at the end of standard input"));
                }
                Err(error) => return Err(Error::new(Kind::Environment, format!("waiting for {}: {error}", self.name))),
            }
        }
    }

    fn go(&mut self) {
        // When it has gone, waiting for its answer says so with its reason.
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{GO}").and_then(|()| input.flush());
        }
    }

    fn await_ready(&mut self) -> Result<()> {
        let line = self.line(self.patience.ready, "`ready`")?;
        if line == READY {
            return Ok(());
        }
        let text = format!("printed `{}`, expected `ready`", quoted(&line));
        Err(self.wrong(Kind::Protocol, &text, "print `ready` and nothing else on standard output"))
    }

    fn line(&mut self, patience: Duration, what: &str) -> Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            self.stop.check()?;
            match self.lines.recv_timeout(LOOK.min(patience)) {
                Ok(Ok(line)) => return Ok(line),
                Ok(Err(error)) => {
                    let text = format!("printed unreadable output: {error}");
                    return Err(self.wrong(Kind::Protocol, &text, "print lines of UTF-8"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.died(&format!("before {what}"))),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let text = format!("printed nothing for {} s before {what}", patience.as_secs_f64());
                    return Err(self.wrong(Kind::Stalled, &text, "allow more time, or find out what it waits for"));
                }
            }
        }
    }

    fn said(&self, line: &str) -> Result<Said> {
        let cure = "print one JSON line per `go` and nothing else on standard output";
        Said::parse(line).map_err(|error| self.wrong(error.kind(), error.cause(), cure))
    }

    fn wrong(&self, kind: Kind, text: &str, cure: &str) -> Error {
        Error::new(kind, format!("contestant {} {text}", self.name)).with_hint(cure)
    }

    fn told_pass(&mut self, said: Said, used: Cpu) -> Pass {
        self.settings = said.settings;
        Pass {
            bytes: said.bytes,
            objects: said.objects,
            wall_s: said.wall_s,
            cpu_user_s: used.user_s,
            cpu_system_s: used.system_s,
            first_batch_us: said.first_batch_us,
            peak_memory_bytes: self.account.peak_memory_bytes(),
            hash: said.hash,
            facts: said.facts,
        }
    }

    /// Why it is no longer there, in its own words.
    fn died(&mut self, when: &str) -> Error {
        self.end();
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let told = self.complaint.recv_timeout(COMPLAINT_PATIENCE).unwrap_or_default();
        let last: Vec<&str> = told.lines().filter(|line| !line.trim().is_empty()).collect();
        let words =
            last.last().map_or_else(|| "it says nothing".to_owned(), |line| format!("it says: {}", line.trim()));
        let text = format!("ends {when} ({status}); {words}");
        self.wrong(Kind::Protocol, &text, "run it by hand with the same arguments")
    }

    /// Takes everything of it away. Its whole group and cgroup go, so that no grandchild holds the pipes open.
    fn end(&mut self) {
        self.input = None;
        self.account.kill();
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // An error means that the group has ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        let _ = self.child.wait();
    }
}

/// The next line without its end, or what is wrong with it; none at the end.
fn next_line(reader: &mut impl BufRead) -> Option<std::io::Result<String>> {
    let mut line = Vec::new();
    let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    let wrong = |why: &str| Some(Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why)));
    match read {
        Err(error) => Some(Err(error)),
        Ok(0) => None,
        Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 == LINE_BYTES_MAX => wrong("a line without end"),
        Ok(_) => match String::from_utf8(line) {
            Ok(line) => Some(Ok(line.trim_end().to_owned())),
            Err(_) => wrong("it is not UTF-8"),
        },
    }
}

/// The last bytes of a stream, as text. Reads it to its end, so that its writer is never held up.
fn end_of(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    let mut step = [0u8; 4096];
    while let Ok(count @ 1..) = stream.read(&mut step) {
        kept.extend_from_slice(&step[..count]);
        let over = kept.len().saturating_sub(COMPLAINT_BYTES_MAX);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
