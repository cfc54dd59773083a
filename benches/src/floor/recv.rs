//! The plainest loop: one blocking connection, one request after the other, `recv` until the answer is whole.
//!
//! Owns the connection, which is kept between passes.

use std::io::Write;
use std::net::TcpStream;

use fuelrail::Result;
use rustix::net::{RecvFlags, recv};

use super::arena::Arena;
use super::kind::{Into, RECEIVE_BYTES};
use super::pass::{Came, Pass};
use super::requests::{Requests, broken, closed};

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
        for request in requests.all() {
            self.stream.write_all(&request.text).map_err(|error| broken(&error))?;
            let mut answer = pass.begin();
            loop {
                let came = match answer.left_bytes() {
                    Some(left) if into == Into::Nowhere => {
                        let most = left.min(RECEIVE_BYTES as u64) as usize;
                        let bytes = receive(&self.stream, &mut arena.room(most)[..], RecvFlags::TRUNC)?;
                        pass.count(&mut answer, bytes as u64)?
                    }
                    _ => {
                        let room = arena.room(RECEIVE_BYTES);
                        let bytes = receive(&self.stream, room, RecvFlags::empty())?;
                        let came = pass.take(&mut answer, request, &room[..bytes])?;
                        if into == Into::Arena {
                            arena.take(bytes);
                        }
                        came
                    }
                };
                if came == Came::Whole {
                    break;
                }
            }
        }
        Ok(())
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
