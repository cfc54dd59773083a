//! A TCP proxy between a rank and those that request blocks of it, which injects a fault into the answers from some moment on. Owns its threads,
//! which end with their connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuelrail::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// Longest time to connect.
const PATIENCE: Duration = Duration::from_secs(1);

/// A fault of answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    /// None: they are forwarded.
    None,
    /// One bit of every piece is flipped.
    Corrupt,
    /// Connections are closed, new ones at their first answer.
    Cut,
    /// Every piece is delayed by a tenth of a second.
    Slow,
}

/// Listens at `at` and forwards to `to`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Between {
    at: SocketAddr,
    to: SocketAddr,
    does: Fault,
}

/// What is done with answers now; `None` when the run is over.
type Now = Arc<Mutex<Option<Fault>>>;

fn lock(now: &Now) -> MutexGuard<'_, Option<Fault>> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running proxy. Dropping it closes its socket and its connections.
pub(super) struct Standing {
    now: Now,
    does: Fault,
    at: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

impl Between {
    pub(super) fn stand(&self) -> Result<Standing> {
        let failed = |error| Error::from_io(Kind::Environment, format_args!("listening at {}", self.at), error);
        let socket = TcpListener::bind(self.at).map_err(failed)?;
        let (now, to) = (Now::new(Mutex::new(Some(Fault::None))), self.to);
        let told = Arc::clone(&now);
        let accepting = thread::spawn(move || {
            for from in socket.incoming().map_while(std::io::Result::ok) {
                if lock(&now).is_none() {
                    return;
                }
                let now = Arc::clone(&now);
                // On a thread of its own: a stopped process does not accept, and the connect would block the others.
                thread::spawn(move || {
                    let Ok(to) = TcpStream::connect_timeout(&to, PATIENCE) else { return };
                    thread::scope(|both| {
                        both.spawn(|| pass(&from, &to, &|| lock(&now).map(|_| Fault::None)));
                        pass(&to, &from, &|| *lock(&now));
                    });
                });
            }
        });
        Ok(Standing { now: told, does: self.does, at: self.at, accepting: Some(accepting) })
    }
}

impl Standing {
    /// From now on answers meet the fault.
    pub(super) fn begin(&self) {
        *lock(&self.now) = Some(self.does);
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        *lock(&self.now) = None;
        // Its thread is blocked in accept. The next run listens at the same address.
        if let (Ok(_), Some(accepting)) = (TcpStream::connect_timeout(&self.at, PATIENCE), self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}

/// Copies bytes from one connection to the other until either side is closed.
fn pass(mut from: &TcpStream, mut to: &TcpStream, now: &dyn Fn() -> Option<Fault>) {
    let mut piece = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        match now() {
            Some(Fault::None) => {}
            Some(Fault::Corrupt) => piece[length - 1] ^= 1,
            Some(Fault::Cut) | None => break,
            Some(Fault::Slow) => thread::sleep(Duration::from_millis(100)),
        }
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
