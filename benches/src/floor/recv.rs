//! The plainest loop: one blocking connection, one request after the other, `recv` until the answer is whole.
//!
//! Owns the connection, which is kept between passes. A server may close it between two answers, most of all while others
//! have their turn: then it is opened again, once a pass. A server that closes more often is no server to measure with.

use std::io::Write;
use std::net::TcpStream;

use fuelrail::Result;
use rustix::net::{RecvFlags, recv};

use super::arena::Arena;
use super::kind::{Into, RECEIVE_BYTES};
use super::pass::{Answer, Came, Pass};
use super::requests::{Request, Requests, broken, closed, is_lost};

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
}

impl Line {
    pub(super) fn open(requests: &Requests) -> Result<Line> {
        Ok(Line { stream: requests.connect()? })
    }

    pub(super) fn run(&mut self, requests: &Requests, into: Into, arena: &mut Arena, pass: &mut Pass) -> Result<()> {
        let mut opened_again = false;
        for request in requests.all() {
            let mut answer = pass.begin();
            match self.fetch(request, into, arena, pass, &mut answer) {
                Err(error) if is_lost(&error) && answer.is_untouched() && !opened_again => {
                    self.stream = requests.connect()?;
                    opened_again = true;
                    self.fetch(request, into, arena, pass, &mut answer)?;
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        request: &Request,
        into: Into,
        arena: &mut Arena,
        pass: &mut Pass,
        answer: &mut Answer,
    ) -> Result<()> {
        self.stream.write_all(&request.text).map_err(|error| broken(&error))?;
        loop {
            let came = match answer.left_bytes() {
                Some(left) if into == Into::Nowhere => {
                    let most = left.min(RECEIVE_BYTES as u64) as usize;
                    let bytes = receive(&self.stream, &mut arena.room(most)[..], RecvFlags::TRUNC)?;
                    pass.count(answer, bytes as u64)?
                }
                _ => {
                    let room = arena.room(RECEIVE_BYTES);
                    let bytes = receive(&self.stream, room, RecvFlags::empty())?;
                    let came = pass.take(answer, request, &room[..bytes])?;
                    if into == Into::Arena {
                        arena.take(bytes);
                    }
                    came
                }
            };
            if came == Came::Whole {
                return Ok(());
            }
        }
    }
}

/// One `recv` of at least one byte.
pub(super) fn receive(stream: &TcpStream, room: &mut [u8], flags: RecvFlags) -> Result<usize> {
    match recv(stream, room, flags) {
        Ok((_, 0)) => Err(closed()),
        Ok((_, bytes)) => Ok(bytes),
        Err(error) => Err(broken(&error.into())),
    }
}
