//! The ring on tokio-uring: the one suite, and the fault of the runtime it guards against.
#![cfg(feature = "tokio-uring")]

use std::net::SocketAddr;
use std::path::PathBuf;

use fuelrail_base::Duration;
use fuelrail_io::conformance::{ScratchFiles, Script, TcpPeers, Venue, suite};
use fuelrail_io::{Arena, TokioUringRing, UringConfig};

/// Real sockets.
struct Loopback {
    peers: TcpPeers,
    files: ScratchFiles,
    register: bool,
}

impl Venue for Loopback {
    type Ring = TokioUringRing;

    fn ring(&mut self, entries: u32, arena: &Arena) -> TokioUringRing {
        let register = self.register.then(|| arena.clone());
        TokioUringRing::new(&UringConfig { entries, sockets: 64, register }).expect("io_uring on the testing machine")
    }

    fn peer(&mut self, script: Script) -> SocketAddr {
        self.peers.listen(script)
    }

    fn nobody(&mut self) -> SocketAddr {
        TcpPeers::nobody()
    }

    fn file(&mut self) -> PathBuf {
        self.files.path()
    }

    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn passes(register: bool) {
    for (name, check) in suite::<Loopback>() {
        let mut venue = Loopback { peers: TcpPeers::default(), files: ScratchFiles::default(), register };
        eprintln!("{name}");
        check(&mut venue).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
}

#[test]
fn tokio_uring_passes() {
    passes(false);
}

#[test]
fn tokio_uring_passes_with_registered_memory() {
    passes(true);
}
