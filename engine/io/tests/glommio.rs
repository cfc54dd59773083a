//! The ring on glommio: the one suite, and the fault of the executor it guards against.
#![cfg(feature = "glommio")]

use std::net::SocketAddr;
use std::path::PathBuf;

use fuelrail_base::Duration;
use fuelrail_io::conformance::{ScratchFiles, Script, TcpPeers, Venue, suite};
use fuelrail_io::{Arena, GlommioRing, UringConfig};

/// Real sockets.
struct Loopback {
    peers: TcpPeers,
    files: ScratchFiles,
    register: bool,
}

impl Venue for Loopback {
    type Ring = GlommioRing;

    fn ring(&mut self, entries: u32, arena: &Arena) -> GlommioRing {
        let register = self.register.then(|| arena.clone());
        GlommioRing::new(&UringConfig { entries, sockets: 64, register }).expect("io_uring on the testing machine")
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
fn glommio_passes() {
    passes(false);
}

#[test]
fn glommio_passes_with_registered_memory() {
    passes(true);
}
