//! Ports for what a test starts later.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// A free port of this address. Two tests that run at the same time get different ones, as long as none asks for more than eight; and no
/// server or client that lets the kernel choose gets one of them, because they lie below the ephemeral ports.
pub(crate) fn free_port(host: Ipv4Addr) -> SocketAddr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    loop {
        let nth = std::process::id() * 8 + TAKEN.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from((host, 18_000 + (nth % 14_000) as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
