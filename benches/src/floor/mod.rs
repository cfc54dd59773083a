//! Floors: what the kernel's copy out of a socket costs a program that does nothing else. Plain loops, as one would write
//! them in C, with no parsing beyond `Content-Length`, no batches, no retries.
//!
//! Owns the loops as contestants. A loader cannot cost less than they do for the same bytes by the same system calls; how near
//! it comes is what the harness measures.

mod arena;
mod copy;
mod epoll;
mod head;
mod kind;
mod pass;
mod recv;
mod requests;
mod ssl;

use std::io::{BufRead, Write};

use fuelrail::{Error, Kind, Result};

use crate::harness::protocol::serve;
use crate::harness::{Said, Task};

pub use kind::{Into, Loop};
pub use ssl::compiled as ssl_contestant;

use self::arena::Arena;
use self::kind::RECEIVE_BYTES;
use self::pass::Pass;
use self::requests::Requests;

/// A floor and how it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Floor {
    /// Which loop.
    pub looping: Loop,
    /// Where the bytes go.
    pub into: Into,
    /// Whether the arena's pages are touched before `ready`.
    pub touch: bool,
    /// Whether the bytes are hashed.
    pub hash: bool,
}

/// Connections tried when the number is to be found.
const CONNECTIONS_TRIED: [usize; 3] = [1, 8, 32];
/// Most connections.
const CONNECTIONS_MAX: usize = 1024;

/// Runs a floor as a contestant until its input ends.
///
/// # Errors
/// `Usage` for settings or a task that make no sense, `File` for the manifest, `Network` and `Protocol` for the server.
pub fn run(floor: &Floor, task: &Task, input: impl BufRead, output: impl Write) -> Result<()> {
    validate(floor)?;
    let requests = Requests::new(task)?;
    let mut lane = Lane::new(floor, task, &requests)?;
    serve(input, output, || lane.pass())
}

fn validate(floor: &Floor) -> Result<()> {
    let usage = |cause: &str| Err(Error::new(Kind::Usage, cause));
    match floor.looping {
        Loop::Epoll(Some(connections)) if !(1..=CONNECTIONS_MAX).contains(&connections) => {
            usage(&format!("connections = {connections} is outside 1 to {CONNECTIONS_MAX}"))
        }
        _ if floor.hash && floor.into == Into::Nowhere => usage("what is dropped cannot be hashed"),
        Loop::Copy if floor.hash || floor.into == Into::Nowhere => usage("a copy has no bytes of the bucket"),
        _ => Ok(()),
    }
}

/// A floor ready to run.
struct Lane<'a> {
    floor: &'a Floor,
    task: &'a Task,
    requests: &'a Requests,
    arena: Arena,
    open: Open,
}

/// What stays open between passes.
enum Open {
    Recv(recv::Line),
    Epoll(epoll::Lines),
    Copy,
}

impl<'a> Lane<'a> {
    fn new(floor: &'a Floor, task: &'a Task, requests: &'a Requests) -> Result<Lane<'a>> {
        let bytes = match floor.into {
            Into::Arena => usize::try_from(task.arena_bytes).unwrap_or(usize::MAX),
            Into::Hot | Into::Nowhere => RECEIVE_BYTES,
        };
        let arena = Arena::new(bytes, floor.touch)?;
        let open = match floor.looping {
            Loop::Recv => Open::Recv(recv::Line::open(requests)?),
            Loop::Epoll(Some(connections)) => Open::Epoll(epoll::Lines::open(requests, connections)?),
            Loop::Epoll(None) => Open::Epoll(epoll::Lines::open(requests, CONNECTIONS_TRIED[0])?),
            Loop::Copy => Open::Copy,
        };
        let mut lane = Lane { floor, task, requests, arena, open };
        if floor.looping == Loop::Epoll(None) {
            lane.choose_connections()?;
        }
        Ok(lane)
    }

    fn pass(&mut self) -> Result<Said> {
        self.pass_over(self.requests)
    }

    fn pass_over(&mut self, requests: &Requests) -> Result<Said> {
        let (into, arena) = (self.floor.into, &mut self.arena);
        let mut pass = Pass::new(self.task.batch_size, self.floor.hash);
        match &mut self.open {
            Open::Recv(line) => line.run(requests, into, arena, &mut pass)?,
            Open::Epoll(lines) => lines.run(requests, into, arena, &mut pass)?,
            Open::Copy => copy::run(requests, into, arena, &mut pass),
        }
        let into = match self.floor.into {
            Into::Arena => format!("into {}", fuelrail::ByteSize(self.task.arena_bytes)),
            Into::Hot => "into a hot 1 MiB".to_owned(),
            Into::Nowhere => "dropped by the kernel".to_owned(),
        };
        let how = match &self.open {
            Open::Recv(_) => "blocking recv, 1 connection".to_owned(),
            Open::Epoll(lines) => format!("epoll, {} connections", lines.count()),
            Open::Copy => "memcpy".to_owned(),
        };
        Ok(pass.said(format!("{how}, 1 MiB at a time {into}")))
    }

    /// The number of connections that costs the least processor time, each tried once on a part of the set, after once for warmth.
    fn choose_connections(&mut self) -> Result<()> {
        let trial = self.requests.trial();
        self.pass_over(&trial)?;
        let mut best: Option<(std::time::Duration, epoll::Lines)> = None;
        for connections in CONNECTIONS_TRIED {
            self.open = Open::Epoll(epoll::Lines::open(self.requests, connections)?);
            let before = fuelrail::process_cpu();
            self.pass_over(&trial)?;
            let after = fuelrail::process_cpu();
            let cost = (after.0 + after.1).saturating_sub(before.0 + before.1);
            if let Open::Epoll(lines) = std::mem::replace(&mut self.open, Open::Copy)
                && best.as_ref().is_none_or(|(least, _)| cost < *least)
            {
                best = Some((cost, lines));
            }
        }
        let (_, lines) = best.expect("several numbers were tried");
        self.open = Open::Epoll(lines);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let good = Floor { looping: Loop::Recv, into: Into::Arena, touch: true, hash: false };
        assert!(validate(&good).is_ok());
        for bad in [
            Floor { looping: Loop::Epoll(Some(0)), ..good.clone() },
            Floor { looping: Loop::Epoll(Some(5_000)), ..good.clone() },
            Floor { into: Into::Nowhere, hash: true, ..good.clone() },
            Floor { looping: Loop::Copy, hash: true, ..good.clone() },
        ] {
            assert_eq!(validate(&bad).unwrap_err().kind(), Kind::Usage, "{bad:?}");
        }
    }
}
