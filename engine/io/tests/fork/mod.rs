//! A fork while a ring is at work, for any ring.

use crate::steps::next;
use fuelrail_base::{Duration, Kind};
use fuelrail_io::conformance::{Script, TcpPeers, in_fork};
use fuelrail_io::{Arena, ArenaConfig, HugePages, Op, Ring, Scatter};

/// The child's ring refuses to work, whatever is asked of it, and the parent's goes on with what was in flight.
pub(crate) fn fork_at_work(mut ring: impl Ring) {
    let config = ArenaConfig { bytes: 1 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
    let mut region = Arena::new(&config).unwrap().1.pop().unwrap();
    let mut peers = TcpPeers;
    let addr = peers.listen(Script::Echo);
    let sock = ring.socket(&addr).unwrap();
    ring.push(Op::Connect { sock, addr }, 0).unwrap();
    assert_eq!(next(&mut ring).result, Ok(0));
    let window = region.alloc(100).unwrap().fill().carve(100).unwrap();
    let mut into = Scatter::new(region.alloc(64).unwrap());
    into.push_body(window, 100).unwrap();
    let receive = ring.push(Op::Recv { sock, into }, 5).unwrap();
    ring.wait(Some(ring.now())).unwrap();
    let mut ring = Some(ring);
    let code = in_fork(Duration::from_secs(60), || {
        let mut ring = ring.take().expect("the child has its copy");
        let refused = matches!(ring.wait(None), Err(error) if error.kind() == Kind::Environment);
        ring.cancel(receive);
        ring.close(sock);
        drop(ring);
        if refused { 42 } else { 1 }
    });
    assert_eq!(code, Some(42), "the child's ring must refuse to work");
    let mut ring = ring.expect("the child took its own");
    ring.push(Op::Send { sock, bytes: b"still here".to_vec(), from: 0 }, 6).unwrap();
    let results: Vec<_> = (0..2).map(|_| next(&mut ring)).map(|done| (done.token, done.result)).collect();
    assert!(results.contains(&(5, Ok(10))) && results.contains(&(6, Ok(10))), "{results:?}");
}
