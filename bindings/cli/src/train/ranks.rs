//! The ranks of one run: a process each, found by its number and a port, with its words kept in a file.
//!
//! Owns the processes: when this is dropped none of them is left. Knows nothing of what they do.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::stop::Stop;

/// Processes that belong together.
#[derive(Debug)]
pub struct Ranks {
    children: Vec<Child>,
    folder: PathBuf,
}

/// How often is looked whether one has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// When one has failed, the others may fail of it and say so; then they are ended.
const GRACE: Duration = Duration::from_secs(1);
/// Lines of a failed rank's words that are shown.
const LINES_MAX: usize = 30;

impl Ranks {
    /// Starts `count` ranks of `program`; what they say goes to files in `folder`.
    ///
    /// # Errors
    /// `Environment` when the program cannot be started, `File` when the folder cannot be written to.
    pub fn start(program: &Path, words: &[String], count: u32, folder: &Path) -> Result<Ranks> {
        let port = free_port()?;
        let mut ranks = Ranks { children: Vec::new(), folder: folder.to_owned() };
        for rank in 0..count {
            let out = File::create(ranks.out(rank as usize));
            let out = out.and_then(|out| Ok((out.try_clone()?, out)));
            let (out, err) = out.map_err(|error| Error::from_io(Kind::File, "writing what ranks say", error))?;
            let mut command = Command::new(program);
            // What is set for the loader of this process is not meant for theirs: a result names all that counts.
            for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FUELRAIL_")) {
                command.env_remove(name);
            }
            command.args(words).env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", count.to_string()).env("LOCAL_WORLD_SIZE", count.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            // Its own group: Ctrl-C reaches this process alone, which ends them in order, with what they may have started.
            command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(err);
            let child = command.spawn().map_err(|error| {
                Error::from_io(Kind::Environment, format_args!("starting {}", program.display()), error)
            })?;
            ranks.children.push(child);
        }
        Ok(ranks)
    }

    /// Waits until all have ended well.
    ///
    /// # Errors
    /// `Environment` with the last words of the rank that failed first; `Stalled` beyond the limit; `Cancelled` on a stop.
    pub fn wait(&mut self, limit: Duration, stop: &Stop) -> Result<()> {
        let begun = Instant::now();
        let mut failed: Option<(usize, ExitStatus, Instant)> = None;
        loop {
            stop.check()?;
            let mut running = 0;
            for rank in 0..self.children.len() {
                match self.children[rank].try_wait() {
                    Ok(None) => running += 1,
                    Ok(Some(status)) if !status.success() && failed.is_none() => {
                        failed = Some((rank, status, Instant::now()));
                    }
                    Ok(Some(_)) => {}
                    Err(error) => {
                        return Err(Error::from_io(Kind::Environment, format_args!("waiting for rank {rank}"), error));
                    }
                }
            }
            match failed {
                Some((rank, status, at)) if running == 0 || at.elapsed() > GRACE => {
                    return Err(Error::new(
                        Kind::Environment,
                        format!("rank {rank} failed ({status}){}", self.words(rank)),
                    ));
                }
                None if running == 0 => return Ok(()),
                _ => {}
            }
            if begun.elapsed() > limit {
                let words: String = (0..self.children.len()).map(|rank| self.words(rank)).collect();
                let cause = format!("the ranks have not ended within {:.0} s{words}", limit.as_secs_f64());
                return Err(Error::new(Kind::Stalled, cause));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends one rank, with what it may have started, as a power cut would.
    pub fn kill(&mut self, rank: usize) {
        kill(&mut self.children[rank]);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self, rank: usize) -> bool {
        self.children[rank].try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for all, however they end: each one's status and all it said.
    ///
    /// # Errors
    /// `Environment` when one cannot be waited for, `File` when its words cannot be read.
    pub fn ended(mut self) -> Result<Vec<(ExitStatus, String)>> {
        let mut ended = Vec::new();
        for rank in 0..self.children.len() {
            let status = self.children[rank]
                .wait()
                .map_err(|error| Error::from_io(Kind::Environment, format_args!("waiting for rank {rank}"), error))?;
            let said = std::fs::read_to_string(self.out(rank))
                .map_err(|error| Error::from_io(Kind::File, format_args!("reading what rank {rank} said"), error))?;
            ended.push((status, said));
        }
        Ok(ended)
    }

    fn out(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("out-{rank}"))
    }

    /// The last lines of what a rank said.
    fn words(&self, rank: usize) -> String {
        let said = std::fs::read(self.out(rank)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n  ");
        if last.is_empty() { format!("\nrank {rank} said nothing") } else { format!("\nrank {rank} said:\n  {last}") }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(kill);
    }
}

/// Ends a process and its group, if it has not ended.
fn kill(child: &mut Child) {
    // One that has been waited for has no number any more, and its group may be another's by now.
    if matches!(child.try_wait(), Ok(None)) {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let found = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let found = found.map_err(|error| Error::from_io(Kind::Environment, "looking for a free port", error));
    found.map(|address| address.port())
}
