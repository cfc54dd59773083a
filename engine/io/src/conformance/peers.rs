//! Peers that follow a script: threads on real sockets, and a simulated host.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use fuelrail_base::{Duration, Instant};

use super::venue::{Script, recital};
use crate::ring::sim::{Host, Replies};

/// Real peers on the loopback interface, each a listener with a thread per connection. Their threads end when the
/// connections do; the listeners when this is dropped.
#[derive(Debug, Default)]
pub struct TcpPeers {
    listeners: Vec<(SocketAddr, Arc<AtomicBool>, JoinHandle<()>)>,
}

impl TcpPeers {
    /// A listener that follows this script on every connection.
    ///
    /// # Panics
    /// When the loopback interface gives no port.
    pub fn listen(&mut self, script: Script) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on the loopback interface");
        let addr = listener.local_addr().expect("a bound listener has an address");
        let closing = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let closing = closing.clone();
            move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if closing.load(Ordering::Acquire) {
                        return;
                    }
                    // The peer's trouble is the client's business; a script just ends.
                    std::thread::spawn(move || drop(play(script, stream)));
                }
            }
        });
        self.listeners.push((addr, closing, thread));
        addr
    }

    /// An address where nobody listens.
    #[must_use]
    pub fn nobody() -> SocketAddr {
        // The first port is nobody's, and unlike one that was free a moment ago it is never given to anybody.
        SocketAddr::from(([127, 0, 0, 1], 1))
    }
}

impl Drop for TcpPeers {
    fn drop(&mut self) {
        for (addr, closing, thread) in self.listeners.drain(..) {
            closing.store(true, Ordering::Release);
            if TcpStream::connect(addr).is_ok() {
                let _ = thread.join();
            }
        }
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
        Script::Recite { seed, len, chunk, pause } => {
            stream.read_exact(&mut buffer[..1])?;
            std::thread::sleep(pause);
            let bytes: Vec<u8> = (0..len).map(|i| recital(seed, i)).collect();
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
            let abrupt = libc::linger { l_onoff: 1, l_linger: 0 };
            // SAFETY: the kernel reads `abrupt`, which lives until after the call.
            unsafe {
                let value = (&raw const abrupt).cast();
                let len = size_of_val(&abrupt) as libc::socklen_t;
                libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len);
            }
        }
    }
    Ok(())
}

/// The same peers in a simulated world: one host, a script per port.
#[derive(Debug, Default)]
pub struct ScriptedHost {
    conns: BTreeMap<u64, (Script, bool)>,
    latency: Duration,
}

impl ScriptedHost {
    /// Answers take this long.
    #[must_use]
    pub fn new(latency: Duration) -> ScriptedHost {
        ScriptedHost { conns: BTreeMap::new(), latency }
    }

    /// The address that stands for a script. Recitals keep seed below 256, length below 2^32, chunk below 2^16 and pause
    /// in whole milliseconds.
    #[must_use]
    pub fn addr(script: Script) -> SocketAddr {
        let (kind, numbers) = match script {
            Script::Echo => (1, [0; 4]),
            Script::Recite { seed, len, chunk, pause } => {
                (2, [seed as u32, len as u32, chunk as u32, pause.as_millis() as u32])
            }
            Script::Silent => (3, [0; 4]),
            Script::Reset => (4, [0; 4]),
        };
        let mut octets = [0u8; 16];
        octets[0] = 0xfd;
        octets[1] = numbers[0] as u8;
        octets[2..6].copy_from_slice(&numbers[1].to_be_bytes());
        octets[6..8].copy_from_slice(&(numbers[2] as u16).to_be_bytes());
        octets[8..12].copy_from_slice(&numbers[3].to_be_bytes());
        SocketAddr::from((octets, kind))
    }

    /// An address where nobody listens.
    #[must_use]
    pub fn nobody() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 9))
    }

    fn script(addr: SocketAddr) -> Option<Script> {
        let SocketAddr::V6(v6) = addr else { return None };
        let octets = v6.ip().octets();
        let word = |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        match v6.port() {
            1 => Some(Script::Echo),
            2 => Some(Script::Recite {
                seed: u64::from(octets[1]),
                len: word(2) as usize,
                chunk: usize::from(u16::from_be_bytes([octets[6], octets[7]])),
                pause: Duration::from_millis(u64::from(word(8))),
            }),
            3 => Some(Script::Silent),
            4 => Some(Script::Reset),
            _ => None,
        }
    }
}

impl Host for ScriptedHost {
    fn connect(&mut self, conn: u64, addr: SocketAddr, _now: Instant) -> (Duration, Result<(), i32>) {
        let Some(script) = ScriptedHost::script(addr) else { return (self.latency, Err(libc::ECONNREFUSED)) };
        self.conns.insert(conn, (script, false));
        (self.latency, Ok(()))
    }

    fn receive(&mut self, conn: u64, bytes: &[u8], _now: Instant, out: &mut Replies) {
        let Some((script, begun)) = self.conns.get_mut(&conn) else { return };
        let first = !core::mem::replace(begun, true);
        match *script {
            Script::Echo => out.send(self.latency, bytes.to_vec()),
            Script::Recite { seed, len, chunk, pause } if first => {
                let recited: Vec<u8> = (0..len).map(|i| recital(seed, i)).collect();
                for part in recited.chunks(chunk) {
                    out.send(self.latency + pause, part.to_vec());
                }
                out.finish(self.latency + pause);
            }
            Script::Reset if first => out.reset(self.latency),
            Script::Recite { .. } | Script::Silent | Script::Reset => {}
        }
    }

    fn closed(&mut self, conn: u64, _now: Instant) {
        self.conns.remove(&conn);
    }
}
