//! The suite's venue with real sockets on the loopback interface and real files, for any ring.

use std::net::SocketAddr;
use std::path::PathBuf;

use fuelrail_base::{Duration, Result};
use fuelrail_io::conformance::{ScratchFiles, Script, TcpPeers, Venue, suite};
use fuelrail_io::{Arena, Ring, UringConfig};

/// Real sockets and files, and how a ring on them is made.
struct Loopback<F> {
    peers: TcpPeers,
    files: ScratchFiles,
    register: bool,
    make: F,
}

impl<R: Ring, F: Fn(&UringConfig) -> Result<R>> Venue for Loopback<F> {
    type Ring = R;

    fn ring(&mut self, entries: u32, arena: &Arena) -> R {
        let register = self.register.then(|| arena.clone());
        (self.make)(&UringConfig { entries, sockets: 64, register, ..UringConfig::default() })
            .expect("a ring on the testing machine")
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

/// Runs the whole suite, every check in a venue of its own.
pub(crate) fn loopback_passes<R: Ring>(register: bool, make: impl Fn(&UringConfig) -> Result<R> + Copy) {
    for (name, check) in suite() {
        let mut venue = Loopback { peers: TcpPeers::default(), files: ScratchFiles::default(), register, make };
        check(&mut venue).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
}
