//! The loop over connections: one that blocks, or several watched by `epoll`; one receive for every connection that is ready, the
//! next request as soon as an answer is whole.
//!
//! Connections are kept between passes. A server may close one between two answers, most of all while others have their turn: then
//! it is opened again, each once a pass. A server that closes more often is no server to measure with.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use fuelrail::{Error, Kind, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::{RecvFlags, recv};

use super::exchange::{Answer, Pass, Requests};
use super::{Arena, Into, RECEIVE_BYTES};

#[derive(Debug)]
pub(super) struct Connections {
    epoll: Option<OwnedFd>,
    streams: Vec<TcpStream>,
}

struct Work {
    place: usize,
    answer: Answer,
}

/// A pass, and which connections were opened again in it.
struct Round<'a> {
    requests: &'a Requests,
    into: Into,
    arena: &'a mut Arena,
    pass: &'a mut Pass,
    opened_again: Vec<bool>,
}

impl Connections {
    pub(super) fn blocking(requests: &Requests) -> Result<Connections> {
        Ok(Connections { epoll: None, streams: vec![requests.connect()?] })
    }

    pub(super) fn watched(requests: &Requests, count: usize) -> Result<Connections> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watching)?;
        let mut connections = Connections { epoll: Some(epoll), streams: Vec::new() };
        // More connections than requests would idle.
        for number in 0..count.min(requests.all().len()) {
            connections.streams.push(connections.connect(requests, number)?);
        }
        Ok(connections)
    }

    pub(super) fn count(&self) -> usize {
        self.streams.len()
    }

    fn connect(&self, requests: &Requests, number: usize) -> Result<TcpStream> {
        let stream = requests.connect()?;
        if let Some(epoll) = &self.epoll {
            stream.set_nonblocking(true).map_err(|error| broken(&error))?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(epoll, &stream, data, epoll::EventFlags::IN).map_err(watching)?;
        }
        Ok(stream)
    }

    pub(super) fn run(&mut self, requests: &Requests, into: Into, arena: &mut Arena, pass: &mut Pass) -> Result<()> {
        let mut round = Round { requests, into, arena, pass, opened_again: vec![false; self.count()] };
        let mut places = 0..requests.all().len();
        let mut works: Vec<Option<Work>> = Vec::new();
        for number in 0..self.count() {
            works.push(places.next().map(|place| self.begin(number, place, &mut round)).transpose()?);
        }
        let mut busy = works.iter().flatten().count();
        let mut ready = Vec::with_capacity(self.count());
        while busy > 0 {
            self.wait(&mut ready)?;
            for event in ready.drain(..) {
                let number = event.data.u64() as usize;
                let Some(work) = &mut works[number] else {
                    let idle = Error::new(Kind::Network, "an idle connection was closed or received data");
                    self.open_again(number, &mut round, idle)?;
                    continue;
                };
                match round.step(&self.streams[number], work) {
                    Ok(false) => {}
                    Ok(true) => {
                        works[number] = places.next().map(|place| self.begin(number, place, &mut round)).transpose()?;
                        busy -= usize::from(works[number].is_none());
                    }
                    Err(error) if is_lost(&error) && work.answer.is_untouched() => {
                        let place = work.place;
                        self.open_again(number, &mut round, error)?;
                        works[number] = Some(self.begin(number, place, &mut round)?);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The connections to receive from: all that are ready, or the one that blocks.
    fn wait(&self, ready: &mut Vec<epoll::Event>) -> Result<()> {
        let Some(epoll) = &self.epoll else {
            ready.push(epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(0) });
            return Ok(());
        };
        match epoll::wait(epoll, spare_capacity(ready), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(broken(&error.into())),
        }
    }

    fn begin(&mut self, number: usize, place: usize, round: &mut Round<'_>) -> Result<Work> {
        // A request fits the send buffer of a connection that has nothing else under way.
        let text = &round.requests.all()[place].text;
        if let Err(error) = self.streams[number].write_all(text) {
            self.open_again(number, round, broken(&error))?;
            self.streams[number].write_all(text).map_err(|error| broken(&error))?;
        }
        Ok(Work { place, answer: round.pass.begin() })
    }

    /// Opens a connection again that has nothing of an answer on it; returns the reason when that was done before.
    fn open_again(&mut self, number: usize, round: &mut Round<'_>, reason: Error) -> Result<()> {
        if std::mem::replace(&mut round.opened_again[number], true) {
            return Err(reason);
        }
        // The one before is closed by being dropped, and forgotten by `epoll` with that.
        self.streams[number] = self.connect(round.requests, number)?;
        Ok(())
    }
}

impl Round<'_> {
    /// One receive; whether the answer is whole.
    fn step(&mut self, stream: &TcpStream, work: &mut Work) -> Result<bool> {
        if let (Some(left), Into::Nowhere) = (work.answer.left_bytes, self.into) {
            let most = left.min(RECEIVE_BYTES as u64) as usize;
            let bytes = receive(stream, self.arena.room(most), RecvFlags::TRUNC)?;
            return self.pass.count(&mut work.answer, bytes as u64);
        }
        let room = self.arena.room(RECEIVE_BYTES);
        let bytes = receive(stream, room, RecvFlags::empty())?;
        let whole = self.pass.take(&mut work.answer, &self.requests.all()[work.place], &room[..bytes])?;
        if self.into == Into::Arena {
            self.arena.take(bytes);
        }
        Ok(whole)
    }
}

/// One `recv` of at least one byte.
fn receive(stream: &TcpStream, room: &mut [u8], flags: RecvFlags) -> Result<usize> {
    match recv(stream, room, flags) {
        Ok((_, 0)) => Err(closed()),
        Ok((_, bytes)) => Ok(bytes),
        Err(error) => Err(broken(&error.into())),
    }
}

pub(super) fn closed() -> Error {
    Error::new(Kind::Truncated, "the server closed the connection before the response was complete")
        .with_hint("configure it to keep connections open (nginx: keepalive_requests, keepalive_time)")
}

pub(super) fn broken(error: &std::io::Error) -> Error {
    Error::new(Kind::Network, format!("the connection broke: {error}"))
}

/// Whether the connection is gone, whatever was on it.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), Kind::Network | Kind::Truncated)
}

fn watching(error: rustix::io::Errno) -> Error {
    Error::new(Kind::Environment, format!("watching connections: {}", std::io::Error::from(error)))
}
