//! What stands between a rank and those that ask it for blocks: passes bytes on, and from some moment on does something else. Owns its threads,
//! which end with their connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fuelrail::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// How long a connection may take to be there.
const PATIENCE: Duration = Duration::from_secs(1);

/// What becomes of answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    /// They pass.
    None,
    /// One bit of every piece is another one.
    Corrupt,
    /// Connections are closed, and new ones, too.
    Cut,
    /// Every piece comes a tenth of a second late.
    Slow,
}

/// Listens at one address, and passes what comes on to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Between {
    at: SocketAddr,
    to: SocketAddr,
    does: Fault,
}

/// Dropping it closes its socket and its connections.
pub(super) struct Standing {
    now: Arc<Now>,
    at: SocketAddr,
}

#[derive(Default)]
struct Now {
    begun: AtomicBool,
    over: AtomicBool,
}

impl Now {
    fn of(&self, does: Fault) -> Fault {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if is(&self.over) {
            Fault::Cut
        } else if is(&self.begun) {
            does
        } else {
            Fault::None
        }
    }
}

impl Between {
    pub(super) fn stand(&self) -> Result<Standing> {
        let failed = |error| Error::from_io(Kind::Environment, format_args!("listening at {}", self.at), error);
        let socket = TcpListener::bind(self.at).map_err(failed)?;
        let standing = Standing { now: Arc::default(), at: self.at };
        let (now, to, does) = (Arc::clone(&standing.now), self.to, self.does);
        thread::spawn(move || {
            for from in socket.incoming().map_while(std::io::Result::ok) {
                if now.over.load(Ordering::Relaxed) {
                    return;
                }
                let now = Arc::clone(&now);
                // One that is stopped accepts nothing, and holds up nobody else.
                thread::spawn(move || {
                    let Ok(to) = TcpStream::connect_timeout(&to, PATIENCE) else { return };
                    thread::scope(|both| {
                        both.spawn(|| pass(&from, &to, &|| now.of(Fault::None)));
                        pass(&to, &from, &|| now.of(does));
                    });
                });
            }
        });
        Ok(standing)
    }
}

impl Standing {
    /// From now on.
    pub(super) fn begin(&self) {
        self.now.begun.store(true, Ordering::Relaxed);
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.now.over.store(true, Ordering::Relaxed);
        // Its thread waits for a connection.
        drop(TcpStream::connect_timeout(&self.at, PATIENCE));
    }
}

/// Passes bytes on until either side has enough.
fn pass(mut from: &TcpStream, mut to: &TcpStream, does: &dyn Fn() -> Fault) {
    let mut piece = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        match does() {
            Fault::None => {}
            Fault::Corrupt => piece[length - 1] ^= 1,
            Fault::Cut => break,
            Fault::Slow => thread::sleep(Duration::from_millis(100)),
        }
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
