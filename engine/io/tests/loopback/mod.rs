//! The suite's harness with real sockets on the loopback interface and real files, for any ring.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use fuelrail_base::{Duration, Result};
use fuelrail_io::conformance::{Harness, ScratchFiles, Script, TcpPeers, suite};
use fuelrail_io::{Arena, FileFacts, FileOptions, Op, Opening, Ring, UringConfig};

/// Real sockets and files, and how a ring on them is made.
struct Loopback<F> {
    peers: TcpPeers,
    files: ScratchFiles,
    register: bool,
    make: F,
}

impl<R: Ring, F: Fn(&UringConfig) -> Result<R>> Harness for Loopback<F> {
    type Ring = R;

    fn ring(&mut self, entries: u32, arena: &Arena) -> R {
        let register = self.register.then(|| arena.clone());
        (self.make)(&UringConfig { entries, sockets: 64, register }).expect("a ring on the testing machine")
    }

    fn peer(&mut self, script: Script) -> SocketAddr {
        self.peers.listen(script)
    }

    fn closed_addr(&mut self) -> SocketAddr {
        TcpPeers::closed_addr()
    }

    fn file(&mut self) -> PathBuf {
        self.files.path()
    }

    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Runs the whole suite, every check in a harness of its own.
pub(crate) fn loopback_passes<R: Ring>(register: bool, make: impl Fn(&UringConfig) -> Result<R> + Copy) {
    for (name, check) in suite() {
        eprintln!("{name}");
        check(&mut Loopback { peers: TcpPeers, files: ScratchFiles::default(), register, make });
    }
    let mut files = ScratchFiles::default();
    pipes_are_not_waited_for(&mut make(&UringConfig::default()).unwrap(), &files.path());
}

/// Nobody writes to the pipe: whoever waits for it waits for ever.
fn pipes_are_not_waited_for(ring: &mut impl Ring, path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    let refused = ring.open(path, &FileOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("not a regular file"), "{refused}");
    let opened = by_ring(ring, Op::Open(Opening::new(path.to_str().unwrap()).unwrap()));
    let Op::Open(opening) = opened else { panic!("{opened:?}") };
    let file = opening.file().unwrap();
    let examined = by_ring(ring, Op::Stat { file, facts: FileFacts::default() });
    assert!(matches!(&examined, Op::Stat { facts, .. } if !facts.is_regular()), "{examined:?}");
}

/// What came of an operation that works.
fn by_ring(ring: &mut impl Ring, op: Op) -> Op {
    ring.push(op, 7).unwrap();
    let deadline = ring.now().after(Duration::from_secs(5));
    loop {
        ring.wait(Some(deadline)).unwrap();
        if let Some(done) = ring.pop() {
            assert_eq!(done.result, Ok(0), "{:?}", done.op);
            return done.op;
        }
        assert!(ring.now() < deadline, "nothing came back");
    }
}
