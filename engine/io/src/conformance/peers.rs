//! Peers that follow a script: threads on real sockets, and a simulated host; and a place for files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use fuelrail_base::{Duration, Instant};

use super::fixture::{Script, pattern};
use crate::ring::sim::{Host, Replies};

/// Real peers on the loopback interface, each a listener with a thread per connection. Threads of connections end when these do, those of
/// listeners with the process.
#[derive(Debug, Default)]
pub struct TcpPeers;

impl TcpPeers {
    /// A listener that follows this script on every connection.
    ///
    /// # Panics
    /// When the loopback interface gives no port.
    pub fn listen(&mut self, script: Script) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on the loopback interface");
        let addr = listener.local_addr().expect("a bound listener has an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // An I/O error ends the script; the client sees its effect.
                std::thread::spawn(move || drop(play(script, stream)));
            }
        });
        addr
    }

    /// An address without a listener.
    pub fn closed_addr() -> SocketAddr {
        // Port 1 has no listener, and unlike a port that was free a moment ago it is never assigned.
        SocketAddr::from(([127, 0, 0, 1], 1))
    }
}

fn play(script: Script, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 << 10];
    match script {
        Script::Echo => loop {
            let n = stream.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..n])?;
        },
        Script::Pattern { seed, len, chunk, pause } => {
            stream.read_exact(&mut buffer[..1])?;
            std::thread::sleep(pause);
            let bytes: Vec<u8> = (0..len).map(|i| pattern(seed, i)).collect();
            for part in bytes.chunks(chunk) {
                stream.write_all(part)?;
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            // Closing with unread bytes would reset the connection.
            while stream.read(&mut buffer)? > 0 {}
        }
        Script::Silent => while stream.read(&mut buffer)? > 0 {},
        Script::Reset => {
            stream.read_exact(&mut buffer[..1])?;
            rustix::net::sockopt::set_socket_linger(&stream, Some(core::time::Duration::ZERO))?;
        }
    }
    Ok(())
}

thread_local! {
    /// What simulated hosts do, by port.
    static SCRIPTS: RefCell<Vec<Script>> = const { RefCell::new(Vec::new()) };
}

/// The same peers in a simulated world: one host, a script per port.
#[derive(Debug, Default)]
pub struct ScriptedHost {
    conns: BTreeMap<u64, (Script, bool)>,
    latency: Duration,
}

impl ScriptedHost {
    /// Answers take this long.
    pub fn new(latency: Duration) -> ScriptedHost {
        ScriptedHost { conns: BTreeMap::new(), latency }
    }

    /// The address that stands for a script, on this thread.
    pub fn addr(script: Script) -> SocketAddr {
        let port = SCRIPTS.with_borrow_mut(|scripts| {
            let at = scripts.iter().position(|known| *known == script).unwrap_or_else(|| {
                scripts.push(script);
                scripts.len() - 1
            });
            at as u16
        });
        SocketAddr::from(([127, 0, 0, 2], port))
    }

    /// An address without a listener.
    pub fn closed_addr() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 9))
    }
}

impl Host for ScriptedHost {
    fn connect(&mut self, conn: u64, addr: SocketAddr, _now: Instant) -> (Duration, Result<(), i32>) {
        if addr == ScriptedHost::closed_addr() {
            return (self.latency, Err(libc::ECONNREFUSED));
        }
        let script = SCRIPTS.with_borrow(|scripts| scripts[usize::from(addr.port())]);
        self.conns.insert(conn, (script, false));
        (self.latency, Ok(()))
    }

    fn receive(&mut self, conn: u64, bytes: &[u8], _now: Instant, out: &mut Replies) {
        let Some((script, begun)) = self.conns.get_mut(&conn) else { return };
        let first = !core::mem::replace(begun, true);
        match *script {
            Script::Echo => out.send(self.latency, bytes.to_vec()),
            Script::Pattern { seed, len, chunk, pause } if first => {
                let bytes: Vec<u8> = (0..len).map(|i| pattern(seed, i)).collect();
                for part in bytes.chunks(chunk) {
                    out.send(self.latency + pause, part.to_vec());
                }
                out.finish(self.latency + pause);
            }
            Script::Reset if first => out.reset(self.latency),
            Script::Pattern { .. } | Script::Silent | Script::Reset => {}
        }
    }

    fn closed(&mut self, conn: u64, _now: Instant) {
        self.conns.remove(&conn);
    }
}

/// A directory of its own, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct ScratchFiles {
    pub(crate) dir: PathBuf,
    given: u32,
}

impl Default for ScratchFiles {
    /// A new directory, in the one for temporary files.
    ///
    /// # Panics
    /// When it cannot be made.
    fn default() -> ScratchFiles {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fuelrail-ring-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory for temporary files");
        ScratchFiles { dir, given: 0 }
    }
}

impl ScratchFiles {
    /// The path of a file that does not exist, each time another.
    pub fn path(&mut self) -> PathBuf {
        self.given += 1;
        self.dir.join(self.given.to_string())
    }
}

impl Drop for ScratchFiles {
    fn drop(&mut self) {
        // What cannot be removed is the owner's of the directory to find; the check has its verdict.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
