//! Streams against a kernel that is made up, and completions of mixed sizes from the real one.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// An operation as its caller sees it.
#[derive(Default)]
struct Asked {
    socket: usize,
    asked: usize,
    patient: bool,
    copied: usize,
    landed: Option<i32>,
    plain: bool,
}

/// A request the made-up kernel works on.
struct Request {
    socket: Socket,
    left: u32,
    cancelled: bool,
}

/// What the kernel lent: the socket's generation, and where in its stream the bytes belong.
struct Lent {
    socket: Name,
    position: usize,
    len: usize,
}

/// The kernel and the caller's books in one.
#[derive(Default)]
struct World {
    requests: HashMap<u64, Request>,
    lent: HashMap<u32, Lent>,
    next_offset: u32,
    asked: HashMap<u64, Asked>,
    /// Bytes of each socket's stream brought into the area, and copied out of it.
    brought: HashMap<u64, usize>,
    copied: HashMap<u64, usize>,
    /// How streams ended that did.
    ended: HashMap<u64, i32>,
}

impl World {
    fn lent_to(&self, socket: Name) -> usize {
        self.lent.values().filter(|lent| lent.socket == socket).map(|lent| lent.len).sum()
    }
}

impl Effects for World {
    fn copy(&mut self, op: Name, at: usize, chunk: &Chunk, from: usize, len: usize) {
        let lent = &self.lent[&(chunk.range().start as u32)];
        let asked = self.asked.get_mut(&op.to_bits()).expect("an operation that was asked for");
        assert!(asked.landed.is_none() && !asked.plain, "bytes for an operation that is done");
        assert!(at == asked.copied && at + len <= asked.asked && from + len <= lent.len && len > 0);
        assert_eq!(asked.socket, lent.socket.index as usize, "bytes of another socket");
        let copied = self.copied.entry(lent.socket.to_bits()).or_default();
        assert_eq!(lent.position + from, *copied, "bytes out of order");
        *copied += len;
        asked.copied += len;
    }

    fn give_back(&mut self, chunk: Chunk) {
        let (offset, len) = chunk.end();
        let lent = self.lent.remove(&offset).expect("a chunk goes back once");
        assert_eq!(lent.len, len as usize);
    }

    fn land(&mut self, op: Name, result: i32) {
        let asked = self.asked.get_mut(&op.to_bits()).expect("an operation that was asked for");
        assert!(asked.landed.replace(result).is_none() && !asked.plain, "an operation is done once");
        if result >= 0 {
            assert_eq!(result as usize, asked.copied);
        }
    }

    fn receive_plainly(&mut self, op: Name) {
        let asked = self.asked.get_mut(&op.to_bits()).expect("an operation that was asked for");
        assert!(asked.landed.is_none() && asked.copied == 0 && !asked.plain);
        asked.plain = true;
    }

    fn arm(&mut self, stream: Name, socket: Socket) {
        assert!(!self.ended.contains_key(&socket.name.to_bits()), "a request on a stream that has ended");
        let request = Request { socket, left: CREDIT_BYTES, cancelled: false };
        assert!(self.requests.insert(stream.to_bits(), request).is_none(), "one request at a time");
    }

    fn disarm(&mut self, stream: Name) {
        self.requests.get_mut(&stream.to_bits()).expect("a request that is out").cancelled = true;
    }

    fn release(&mut self, socket: Socket) {
        assert!(self.requests.values().all(|request| request.socket != socket), "released while a request needs it");
    }
}

const SOCKETS: usize = 3;

/// Sockets and operations as a caller has them.
struct Play {
    streams: Streams,
    world: World,
    sockets: [Name; SOCKETS],
    closing: Vec<Name>,
    ops: u32,
}

impl Play {
    fn new() -> Play {
        let sockets = core::array::from_fn(|index| Name { index: index as u32, generation: 0 });
        Play { streams: Streams::new(4), world: World::default(), sockets, closing: Vec::new(), ops: 0 }
    }

    fn receive(&mut self, at: usize, asked: usize, patient: bool) {
        let socket = self.sockets[at];
        // A closed socket's place is free again when its request has ended.
        if self.world.requests.values().any(|r| r.socket.name.index == socket.index && r.socket.name != socket) {
            return;
        }
        self.ops += 1;
        let op = Name { index: self.ops, generation: 0 };
        self.world.asked.insert(op.to_bits(), Asked { socket: at, asked, patient, ..Asked::default() });
        let socket = Socket { name: socket, descriptor: 0 };
        self.streams.receive(socket, op, (asked, patient), &mut self.world);
    }

    fn waiting(&self, at: usize) -> Vec<Name> {
        let waits = |asked: &Asked| asked.socket == at && asked.landed.is_none() && !asked.plain;
        let mut ops: Vec<Name> =
            self.world.asked.iter().filter(|(_, a)| waits(a)).map(|(bits, _)| Name::from_bits(*bits)).collect();
        ops.sort_by_key(|op| op.index);
        ops
    }

    fn cancel(&mut self, at: usize, newest: bool) {
        let ops = self.waiting(at);
        let Some(op) = (if newest { ops.last() } else { ops.first() }) else { return };
        assert!(self.streams.cancel(self.sockets[at], *op, &mut self.world));
        let asked = &self.world.asked[&op.to_bits()];
        let wanted = if asked.copied > 0 { asked.copied as i32 } else { -libc::ECANCELED };
        assert_eq!(asked.landed, Some(wanted));
        assert!(!self.streams.cancel(self.sockets[at], *op, &mut self.world), "an operation is asked back once");
    }

    fn close(&mut self, at: usize) {
        while !self.waiting(at).is_empty() {
            self.cancel(at, true);
        }
        let socket = self.sockets[at];
        self.streams.close(socket, &mut self.world);
        self.streams.close(socket, &mut self.world);
        assert_eq!(self.world.lent_to(socket), 0, "closing gives every chunk back");
        self.closing.push(socket);
        self.sockets[at] = Name { generation: socket.generation + 1, ..socket };
    }

    /// The requests of the socket at this place, also of one that is closing.
    fn request_of(&self, at: usize) -> Option<u64> {
        self.world.requests.iter().find(|(_, r)| r.socket.name.index as usize == at).map(|(bits, _)| *bits)
    }

    fn bring(&mut self, at: usize, len: u32) {
        let Some(bits) = self.request_of(at) else { return };
        let request = self.world.requests.get_mut(&bits).unwrap();
        let len = len.min(request.left);
        if len == 0 {
            return self.end(at, 0);
        }
        request.left -= len;
        let socket = request.socket.name;
        let offset = self.world.next_offset;
        self.world.next_offset += len;
        let brought = self.world.brought.entry(socket.to_bits()).or_default();
        self.world.lent.insert(offset, Lent { socket, position: *brought, len: len as usize });
        *brought += len as usize;
        self.streams.bring(Name::from_bits(bits), Chunk::new(offset, len), &mut self.world);
    }

    fn end(&mut self, at: usize, errno: i32) {
        let Some(bits) = self.request_of(at) else { return };
        let request = self.world.requests.remove(&bits).unwrap();
        let goes_on = (errno == 0 && request.left == 0) || errno == libc::ENOSPC || request.cancelled;
        if !goes_on {
            self.world.ended.insert(request.socket.name.to_bits(), errno);
        }
        let result = if request.cancelled { -libc::ECANCELED } else { -errno };
        self.streams.end(Name::from_bits(bits), result, &mut self.world);
    }

    fn settle(&mut self) {
        self.streams.settle(&mut self.world);
        for at in 0..SOCKETS {
            let socket = self.sockets[at];
            let (lent, ended) = (self.world.lent_to(socket), self.world.ended.get(&socket.to_bits()));
            let waiting = self.waiting(at);
            if let Some(first) = waiting.first() {
                let first = &self.world.asked[&first.to_bits()];
                assert!(lent == 0 && ended.is_none() && self.request_of(at).is_some(), "somebody waits for nothing");
                assert!(first.patient || first.copied == 0, "an operation with bytes waits and is not patient");
            } else {
                assert!(lent <= CREDIT_BYTES as usize, "{lent} bytes are kept for nobody");
            }
            // What has landed: all that was asked for, or what there was.
            let zero = self.world.asked.values().filter(|a| a.socket == at && a.landed == Some(0)).count();
            assert!(
                zero == 0 || self.world.ended.iter().any(|(s, e)| Name::from_bits(*s).index as usize == at && *e == 0)
            );
        }
        assert_eq!(self.streams.out(), self.world.requests.len());
    }

    fn step(&mut self, (kind, at, size): (u8, usize, u32)) {
        match kind {
            0..=3 => self.receive(at, size as usize + 1, kind == 3),
            4..=9 => self.bring(at, size % 300_000 + 1),
            10 => self.cancel(at, size % 2 == 0),
            11 => self.close(at),
            12 => self.end(at, libc::ENOSPC),
            13 if size % 4 == 0 => self.end(at, [0, libc::ECONNRESET, libc::ENOMEM][size as usize / 4 % 3]),
            _ => self.settle(),
        }
    }
}

proptest! {
    /// Whatever comes in whatever order, every operation gets the next bytes of its socket and lands once, nobody waits for
    /// what is there, no more is kept than the credit, and everything goes back.
    #[test]
    fn bytes_are_shared_out_in_order_and_every_chunk_goes_back(
        steps in proptest::collection::vec((0u8..18, 0..SOCKETS, 0u32..1_500_000), 1..120),
    ) {
        let mut play = Play::new();
        for step in steps {
            play.step(step);
        }
        play.settle();
        (0..SOCKETS).for_each(|at| play.close(at));
        // The kernel may still bring something before it has heard of the closing.
        (0..SOCKETS).for_each(|at| play.bring(at, 100));
        (0..SOCKETS).for_each(|at| play.end(at, 0));
        prop_assert_eq!(play.streams.out(), 0);
        prop_assert!(play.world.lent.is_empty() && play.world.requests.is_empty());
        for asked in play.world.asked.values() {
            prop_assert!(asked.landed.is_some() != asked.plain);
        }
    }
}

#[test]
fn an_error_follows_the_bytes_before_it_and_stays() {
    let mut play = Play::new();
    play.receive(0, 10, true);
    play.bring(0, 4);
    play.end(0, libc::ECONNRESET);
    play.settle();
    play.receive(0, 10, false);
    play.receive(0, 10, false);
    let mut landed: Vec<_> = play.world.asked.iter().map(|(op, asked)| (*op, asked.landed)).collect();
    landed.sort_unstable();
    let landed: Vec<_> = landed.into_iter().map(|(_, landed)| landed).collect();
    assert_eq!(landed, [Some(4), Some(-libc::ECONNRESET), Some(-libc::ECONNRESET)]);
    // The end of a stream is told again and again, too.
    play.receive(1, 10, false);
    play.end(1, 0);
    play.settle();
    play.receive(1, 10, false);
    assert_eq!(play.world.asked.values().filter(|asked| asked.landed == Some(0)).count(), 2);
}

#[test]
fn a_socket_the_area_cannot_serve_goes_on_plainly_behind_what_has_come() {
    let mut play = Play::new();
    play.receive(0, 5, false);
    play.bring(0, 8);
    play.settle();
    play.end(0, libc::ENOMEM);
    play.settle();
    play.receive(0, 5, false);
    play.receive(0, 5, false);
    let landed = |play: &Play| play.world.asked.values().filter_map(|asked| asked.landed).sum::<i32>();
    assert_eq!(landed(&play), 8);
    assert_eq!(play.world.asked.values().filter(|asked| asked.plain).count(), 1);
}

/// The kernel's own long completions: an empty operation with the flag for one carries two numbers of ours.
#[test]
fn long_completions_are_read_among_short_ones_across_the_end_of_the_queue() {
    const NOP_LONG: u64 = 1 << 5;
    let mut ring = match open::mixed_ring(8, 16) {
        Ok(ring) => ring,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return eprintln!("a kernel before 6.18"),
        Err(error) => panic!("{error}"),
    };
    let capacity = ring.completion().capacity();
    let mut next = 1;
    // An odd number of places a round, so that long ones meet the end of the queue at every turn.
    for _ in 0..2 * capacity {
        let first = next;
        for long in [true, false, true] {
            let words = [0, next * 10, next * 100, (long as u64 * NOP_LONG) << 32, next, 0, 0, 0];
            // SAFETY: `squeue::Entry` is the kernel's `io_uring_sqe` of 64 bytes, of integers only.
            let entry = unsafe { core::mem::transmute::<[u64; 8], squeue::Entry>(words) };
            // SAFETY: an empty operation names no memory.
            unsafe { ring.submission().push(&entry) }.expect("room for three requests");
            next += 1;
        }
        ring.submit_and_wait(3).expect("empty operations are taken");
        let posted: Vec<_> = Mixed(ring.completion()).map(|p| (p.bits, p.result, p.more)).collect();
        let more = |n: u64, long: bool| (n, 0, long.then_some(n * 10));
        assert_eq!(posted, [more(first, true), more(first + 1, false), more(first + 2, true)]);
    }
}
