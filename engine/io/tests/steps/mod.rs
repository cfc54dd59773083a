//! What tests that drive a ring by hand begin with: memory, a connection, and the next operation that completes.

use fuelrail_io::conformance::{Script, TcpPeers};
use fuelrail_io::{Arena, ArenaConfig, Done, HugePages, Op, Region, Ring, SockId};

pub(crate) fn memory(bytes: u64) -> (Arena, Region) {
    let config =
        ArenaConfig { bytes, regions: 1, huge_pages: HugePages::Off, slots_per_region: 64, ..ArenaConfig::default() };
    let (arena, mut regions) = Arena::new(&config).unwrap();
    (arena, regions.pop().unwrap())
}

pub(crate) fn next(ring: &mut impl Ring) -> Done {
    loop {
        if let Some(done) = ring.pop() {
            return done;
        }
        ring.wait(None).unwrap();
    }
}

pub(crate) fn connect(ring: &mut impl Ring, peers: &mut TcpPeers, script: Script) -> SockId {
    let addr = peers.listen(script);
    let sock = ring.socket(&addr).unwrap();
    ring.push(Op::Connect { sock, addr }, 0).unwrap();
    assert_eq!(next(ring).result, Ok(0));
    sock
}
