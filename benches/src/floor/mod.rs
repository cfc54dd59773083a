//! Floors: what the kernel's copy out of a socket costs a program that does nothing else. Plain loops, as one would write
//! them in C, with no parsing beyond `Content-Length`, no batches, no retries.
//!
//! A loader cannot cost less than they do for the same bytes by the same system calls; how near it comes is what the harness
//! measures.

mod connections;
mod exchange;
mod tls;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fuelrail::{ByteSize, Error, Kind, Result};

use self::connections::Connections;
use self::exchange::{Pass, Requests};
pub use self::tls::run_tls;
use crate::harness::protocol::serve;
use crate::harness::{Contestant, Said, Task, tool};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loop {
    /// Blocking `recv` on one connection.
    Recv,
    /// `epoll` over so many connections; none tries 1, 8 and 32 before it is ready and keeps the cheapest.
    Epoll(Option<u16>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Floor {
    pub looping: Loop,
    pub into: Into,
    /// Whether the arena's pages are touched before `ready`.
    pub touch: bool,
    pub hash: bool,
}

/// Connections tried when the number is to be found.
pub(crate) const CONNECTIONS_TRIED: [u16; 3] = [1, 8, 32];

/// Runs a floor as a contestant until its input ends.
///
/// # Errors
/// `Usage` for settings or a task that make no sense, `File` for the manifest, `Network` and `Protocol` for the server.
pub fn run(floor: &Floor, task: &Task, input: impl BufRead, output: impl Write) -> Result<()> {
    validate(floor)?;
    let requests = Requests::new(task, "http://")?;
    let bytes = match floor.into {
        Into::Arena => usize::try_from(task.arena_bytes).unwrap_or(usize::MAX),
        Into::Nowhere => RECEIVE_BYTES,
    };
    let mut arena = Arena::new(bytes, floor.touch)?;
    let mut connections = match floor.looping {
        Loop::Recv => Connections::blocking(&requests)?,
        Loop::Epoll(Some(count)) => Connections::watched(&requests, count.into())?,
        Loop::Epoll(None) => cheapest(floor, task, &requests, &mut arena)?,
    };
    serve(input, output, || pass(floor, task, &requests, &mut connections, &mut arena))
}

fn validate(floor: &Floor) -> Result<()> {
    if floor.hash && floor.into == Into::Nowhere {
        return Err(Error::new(Kind::Usage, "what is dropped cannot be hashed"));
    }
    Ok(())
}

fn pass(
    floor: &Floor,
    task: &Task,
    requests: &Requests,
    connections: &mut Connections,
    arena: &mut Arena,
) -> Result<Said> {
    let mut pass = Pass::new(task.batch_size, floor.hash);
    let how = match floor.looping {
        Loop::Recv => "blocking recv, 1 connection".to_owned(),
        Loop::Epoll(_) => format!("epoll, {} connections", connections.count()),
    };
    connections.run(requests, floor.into, arena, &mut pass)?;
    let into = match floor.into {
        Into::Arena => format!("into {}", ByteSize(task.arena_bytes)),
        Into::Nowhere => "dropped by the kernel".to_owned(),
    };
    Ok(pass.said(format!("{how}, 1 MiB at a time {into}")))
}

/// The number of connections that costs the least processor time, each tried once on a part of the set, after once for warmth.
fn cheapest(floor: &Floor, task: &Task, requests: &Requests, arena: &mut Arena) -> Result<Connections> {
    let trial = requests.trial();
    let mut try_once = |count: u16| -> Result<(Duration, Connections)> {
        let mut connections = Connections::watched(requests, count.into())?;
        let before = fuelrail::internal::process_cpu();
        pass(floor, task, &trial, &mut connections, arena)?;
        let after = fuelrail::internal::process_cpu();
        Ok(((after.0 + after.1).saturating_sub(before.0 + before.1), connections))
    };
    try_once(CONNECTIONS_TRIED[0])?;
    let tried: Result<Vec<_>> = CONNECTIONS_TRIED.into_iter().map(try_once).collect();
    Ok(tried?.into_iter().min_by_key(|(cost, _)| *cost).expect("several numbers were tried").1)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Into {
    /// Through an arena of the task's size, from end to end and round again.
    Arena,
    /// Nowhere: the kernel drops them (`MSG_TRUNC`). All of a receive but its copy.
    Nowhere,
}

/// Bytes asked for by one system call.
const RECEIVE_BYTES: usize = 1 << 20;
/// Least room a receive is given; shorter ends of the stretch are skipped. Every head must fit.
const ROOM_BYTES_MIN: usize = 64 << 10;

/// The memory that payload moves through: one stretch, written from end to end and round again. Bytes are never looked at again: a floor
/// assembles nothing.
#[derive(Debug)]
struct Arena {
    memory: Vec<u8>,
    at: usize,
}

const PAGE_BYTES: usize = 4096;

impl Arena {
    /// A stretch of `bytes`. Memory from the allocator this large is fresh from the kernel: touching every page takes the
    /// page faults before the first pass.
    fn new(bytes: usize, touch: bool) -> Result<Arena> {
        if bytes < ROOM_BYTES_MIN {
            let cause = format!("an arena of {bytes} bytes is below {ROOM_BYTES_MIN}");
            return Err(Error::new(Kind::Usage, cause).with_hint("give more with --arena"));
        }
        let mut memory = vec![0u8; bytes];
        if touch {
            // A value, not zero: a page that only holds zeroes may stay unmapped.
            memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        }
        Ok(Arena { memory, at: 0 })
    }

    /// Room for one receive of at most `most` bytes, where the last one ended.
    fn room(&mut self, most: usize) -> &mut [u8] {
        if self.memory.len() - self.at < ROOM_BYTES_MIN {
            self.at = 0;
        }
        let end = (self.at + most).min(self.memory.len());
        &mut self.memory[self.at..end]
    }

    fn take(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

const SOURCE: &str = include_str!("../../floor/ssl_read.c");
const CURE: &str = "install a C compiler and OpenSSL's headers (apt-get install gcc libssl-dev)";

/// The floor over TLS: a blocking `SSL_read` loop in C on the system's OpenSSL, compiled into `folder`. Without a compiler or OpenSSL, an
/// error: nothing else takes its place. `authority` is what the server's certificate is checked against; with
/// `read_ahead` OpenSSL asks the kernel for more than one record at a time.
pub fn ssl_contestant(folder: &Path, authority: &Path, read_ahead: bool) -> Result<Contestant> {
    let (source, program) = (folder.join("ssl_read.c"), folder.join("ssl_read"));
    if !program.exists() {
        tool::write(&source, SOURCE)?;
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-o"]).arg(&program).arg(&source);
        tool::run(compile.args(["-lssl", "-lcrypto"]), "the TLS floor cannot be compiled", CURE)?;
    }
    let name = if read_ahead { "floor-ssl-ahead" } else { "floor-ssl" };
    let mut contestant = Contestant::new(name, program, ["--ca"]);
    contestant.args.push(authority.into());
    contestant.args.extend(read_ahead.then(|| "--read-ahead".into()));
    Ok(contestant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let good = Floor { looping: Loop::Recv, into: Into::Arena, touch: true, hash: false };
        assert!(validate(&good).is_ok());
        let bad = Floor { into: Into::Nowhere, hash: true, ..good };
        assert_eq!(validate(&bad).unwrap_err().kind(), Kind::Usage, "{bad:?}");
    }

    #[test]
    fn goes_round_and_never_gives_less_than_a_head_needs() {
        let mut arena = Arena::new(3 * ROOM_BYTES_MIN, true).unwrap();
        let mut given = 0;
        for _ in 0..100 {
            let room = arena.room(ROOM_BYTES_MIN + 17).len();
            assert!((ROOM_BYTES_MIN..=ROOM_BYTES_MIN + 17).contains(&room), "{room}");
            arena.take(room.min(50_000));
            given += room.min(50_000);
        }
        assert!(given > 10 * ROOM_BYTES_MIN && arena.at <= arena.memory.len());
        assert!(Arena::new(100, false).is_err());
    }
}
