//! Several connections on one thread: `epoll`, one receive for every connection that is ready, the next request as soon as an
//! answer is whole.
//!
//! Owns the connections, which are kept between passes. What a server closes between two answers is opened again, each once a
//! pass, as in `recv.rs`.

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
use super::requests::{Requests, broken, is_lost};

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
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watching)?;
        // More connections than requests would idle.
        let numbers = 0..connections.min(requests.len());
        let streams: Result<Vec<TcpStream>> = numbers.map(|number| connect(&epoll, requests, number)).collect();
        Ok(Lines { streams: streams?, epoll })
    }

    pub(super) fn count(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn run(&mut self, requests: &Requests, into: Into, arena: &mut Arena, pass: &mut Pass) -> Result<()> {
        let mut round = Round { requests, opened_again: vec![false; self.streams.len()] };
        let mut places = 0..requests.len();
        let mut works: Vec<Option<Work>> = Vec::new();
        for number in 0..self.streams.len() {
            let work = places.next().map(|place| self.begin(number, place, &mut round, pass)).transpose()?;
            works.push(work);
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
                let Some(work) = &mut works[number] else {
                    let idle = Error::new(Kind::Network, "an idle connection was closed or babbles");
                    self.open_again(number, &mut round, idle)?;
                    continue;
                };
                match step(&self.streams[number], work, requests, into, arena, pass) {
                    Ok(Came::Part) => {}
                    Ok(Came::Whole) => {
                        works[number] =
                            places.next().map(|place| self.begin(number, place, &mut round, pass)).transpose()?;
                        busy -= usize::from(works[number].is_none());
                    }
                    Err(error) if is_lost(&error) && work.answer.is_untouched() => {
                        let place = work.place;
                        self.open_again(number, &mut round, error)?;
                        works[number] = Some(self.begin(number, place, &mut round, pass)?);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Sends a request on a connection.
    fn begin(&mut self, number: usize, place: usize, round: &mut Round<'_>, pass: &Pass) -> Result<Work> {
        // A request fits the send buffer of a connection that has nothing else under way.
        let text = &round.requests.all()[place].text;
        if let Err(error) = self.streams[number].write_all(text) {
            self.open_again(number, round, broken(&error))?;
            self.streams[number].write_all(text).map_err(|error| broken(&error))?;
        }
        Ok(Work { place, answer: pass.begin() })
    }

    /// Opens a connection again that has nothing of an answer on it; returns the reason when that was done before.
    fn open_again(&mut self, number: usize, round: &mut Round<'_>, reason: Error) -> Result<()> {
        if std::mem::replace(&mut round.opened_again[number], true) {
            return Err(reason);
        }
        // The one before is closed by being dropped, and forgotten by `epoll` with that.
        self.streams[number] = connect(&self.epoll, round.requests, number)?;
        Ok(())
    }
}

/// A pass's requests, and which connections were opened again in it.
struct Round<'a> {
    requests: &'a Requests,
    opened_again: Vec<bool>,
}

fn connect(epoll: &OwnedFd, requests: &Requests, number: usize) -> Result<TcpStream> {
    let stream = requests.connect()?;
    stream.set_nonblocking(true).map_err(|error| broken(&error))?;
    epoll::add(epoll, &stream, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN).map_err(watching)?;
    Ok(stream)
}

fn watching(error: rustix::io::Errno) -> Error {
    Error::new(Kind::Environment, format!("watching connections: {}", std::io::Error::from(error)))
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
