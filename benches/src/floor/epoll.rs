//! Several connections on one thread: `epoll`, one receive for every connection that is ready, the next request as soon as an
//! answer is whole.
//!
//! Owns the connections, which are kept between passes.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use fuelrail::{Error, Kind, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::RecvFlags;

use super::arena::Arena;
use super::kind::{Into, RECEIVE_BYTES};
use super::pass::{Answer, Came, Pass};
use super::recv::receive;
use super::requests::{Requests, broken};

/// Connections and who watches them.
#[derive(Debug)]
pub(super) struct Lines {
    epoll: OwnedFd,
    streams: Vec<TcpStream>,
}

/// What one connection does.
struct Work {
    place: usize,
    answer: Answer,
}

impl Lines {
    pub(super) fn open(requests: &Requests, connections: usize) -> Result<Lines> {
        let watching = |error: rustix::io::Errno| {
            Error::new(Kind::Environment, format!("watching connections: {}", std::io::Error::from(error)))
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watching)?;
        let mut streams = Vec::new();
        // More connections than requests would idle.
        for number in 0..connections.min(requests.len()) {
            let stream = requests.connect()?;
            stream.set_nonblocking(true).map_err(|error| broken(&error))?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).map_err(watching)?;
            streams.push(stream);
        }
        Ok(Lines { epoll, streams })
    }

    pub(super) fn count(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn run(&mut self, requests: &Requests, into: Into, arena: &mut Arena, pass: &mut Pass) -> Result<()> {
        let mut next = 0;
        let mut works: Vec<Option<Work>> = Vec::new();
        for stream in &mut self.streams {
            works.push(begin(stream, requests, &mut next, pass)?);
        }
        let mut busy = works.iter().flatten().count();
        let mut ready = Vec::with_capacity(self.streams.len());
        while busy > 0 {
            match epoll::wait(&self.epoll, spare_capacity(&mut ready), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(broken(&error.into())),
            }
            for event in ready.drain(..) {
                let number = event.data.u64() as usize;
                let stream = &mut self.streams[number];
                let Some(work) = &mut works[number] else {
                    return Err(Error::new(Kind::Network, "an idle connection was closed or babbles"));
                };
                if step(stream, work, requests, into, arena, pass)? == Came::Whole {
                    works[number] = begin(stream, requests, &mut next, pass)?;
                    busy -= usize::from(works[number].is_none());
                }
            }
        }
        Ok(())
    }
}

/// Sends the next request on a connection, if there is one.
fn begin(stream: &mut TcpStream, requests: &Requests, next: &mut usize, pass: &Pass) -> Result<Option<Work>> {
    if *next == requests.len() {
        return Ok(None);
    }
    let place = *next;
    *next += 1;
    // A request fits the send buffer of a connection that has nothing else under way.
    stream.write_all(&requests.all()[place].text).map_err(|error| broken(&error))?;
    Ok(Some(Work { place, answer: pass.begin() }))
}

/// One receive.
fn step(
    stream: &TcpStream,
    work: &mut Work,
    requests: &Requests,
    into: Into,
    arena: &mut Arena,
    pass: &mut Pass,
) -> Result<Came> {
    if let (Some(left), Into::Nowhere) = (work.answer.left_bytes(), into) {
        let most = left.min(RECEIVE_BYTES as u64) as usize;
        let bytes = receive(stream, arena.room(most), RecvFlags::TRUNC)?;
        return pass.count(&mut work.answer, bytes as u64);
    }
    let room = arena.room(RECEIVE_BYTES);
    let bytes = receive(stream, room, RecvFlags::empty())?;
    let came = pass.take(&mut work.answer, &requests.all()[work.place], &room[..bytes])?;
    if into == Into::Arena {
        arena.take(bytes);
    }
    Ok(came)
}
