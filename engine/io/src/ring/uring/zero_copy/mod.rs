//! Zero-copy receive: the card writes payloads into an area of ours, the kernel says where, and the ring copies them to
//! their places and gives the pieces back. It saves the kernel's copy and a request per receive; the CPU's one copy stays,
//! because a sample has its final place in a batch, and a card does not know it.
//!
//! Owns the area and, per socket, what of it waits for whom. A socket's receives all come through here, because the kernel
//! cannot copy out of memory that is the card's.

mod area;
mod chunk;
mod open;
mod posted;
mod queue;
mod refill;
mod streams;
#[cfg(test)]
mod tests;

pub use open::ZERO_COPY_BYTES;
pub(crate) use open::{REGISTER_ZCRX_IFQ, mixed_ring};
pub(super) use posted::{Mixed, Posted};
pub use queue::CardQueue;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::area::Area;
use self::chunk::Chunk;
use self::streams::{CREDIT_BYTES, Effects, Socket, Streams};
use super::marks::{CANCEL, STREAM};
use crate::ring::Op;
use crate::ring::desk::Desk;
use crate::ring::patience::Patience;
use crate::ring::table::Name;

/// Completions of 16 bytes that fit in the queue besides those of operations: two per piece of the area.
pub(super) const COMPLETIONS: u32 = 1 << 15;
/// Bytes of the pieces of a rehearsal, and its group of buffers.
const PIECE_BYTES: u32 = 4096;
const GROUP: u16 = 0;

/// Who fills the area.
#[derive(Clone, Copy)]
enum Lender {
    /// A card, whose queue has this number in the ring.
    Card(u32),
    /// The kernel, by copying, into buffers we provide: the same way of bytes on any machine, for tests.
    Rehearsal,
}

/// What the ring is to do for a stream.
pub(super) enum Errand {
    /// Hand this request to the kernel.
    Request(squeue::Entry),
    /// Receive for this operation into its own place.
    Plainly(Name),
}

pub(super) struct ZeroCopy {
    streams: Streams,
    state: State,
}

/// All but the streams, so that they can cause effects.
struct State {
    area: Area,
    lender: Lender,
    fixed_files: bool,
    errands: VecDeque<Errand>,
    /// Whether it was said that a socket went on plainly.
    told: bool,
}

/// A ring with mixed completions, and the card's queue in it.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn open(queue: &CardQueue, entries: u32, completions: u32) -> Result<(IoUring, Opening), String> {
    let ring = open::mixed_ring(entries, completions).map_err(|error| open::ring_refusal(queue, &error))?;
    let (area, id) = open::register(&ring, queue)?;
    Ok((ring, Opening { area, lender: Lender::Card(id) }))
}

/// The same without a card: the kernel copies into the area; or it refuses every request, as it refuses those of a queue that
/// is not the ring's.
///
/// # Errors
/// Why not.
pub(super) fn rehearse(refusing: bool, entries: u32, completions: u32) -> Result<(IoUring, Opening), String> {
    let ring = open::mixed_ring(entries, completions).map_err(|error| error.to_string())?;
    let lender = if refusing { Lender::Card(0) } else { Lender::Rehearsal };
    Ok((ring, Opening { area: open::unregistered(open::memory(&"no card")?), lender }))
}

/// Zero-copy receive before the ring's tables stand.
pub(super) struct Opening {
    area: Area,
    lender: Lender,
}

impl Opening {
    /// Ready, for a ring with so many places for sockets and files.
    pub(super) fn finish(self, places: u32, fixed_files: bool) -> ZeroCopy {
        let Opening { area, lender } = self;
        let mut errands = VecDeque::with_capacity(places as usize);
        if let Lender::Rehearsal = lender {
            errands.push_back(Errand::Request(provide(&area, 0, area.len() as u32)));
        }
        ZeroCopy { streams: Streams::new(places), state: State { area, lender, fixed_files, errands, told: false } }
    }
}

/// The request that gives the kernel buffers of a rehearsal, from `offset` on. No completion says that it went well.
fn provide(area: &Area, offset: u32, len: u32) -> squeue::Entry {
    let (count, first) = ((len / PIECE_BYTES) as u16, (offset / PIECE_BYTES) as u16);
    let from = area.first().wrapping_add(offset as usize);
    opcode::ProvideBuffers::new(from, PIECE_BYTES as i32, count, GROUP, first)
        .build()
        .flags(squeue::Flags::SKIP_SUCCESS)
        .user_data(CANCEL)
}

impl ZeroCopy {
    /// Takes the operation over, just booked, if it is a receive.
    pub(super) fn receive(&mut self, name: Name, desk: &mut Desk<OwnedFd>, patience: &mut Patience) -> bool {
        let Some((Op::Recv { sock, into }, fd)) = desk.flight(name) else { return false };
        patience.wake_for(sock.index, fd, into.patience_bytes());
        let descriptor = if self.state.fixed_files { sock.index as i32 } else { fd.as_raw_fd() };
        let socket = Socket { name: Name::from(*sock), descriptor };
        let wanted = (into.asked(), into.patience_bytes() > 0);
        self.streams.receive(socket, name, wanted, &mut Hands { state: &mut self.state, desk });
        self.state.area.flush();
        true
    }

    /// The operation is asked back. False when it is not here.
    pub(super) fn cancel(&mut self, name: Name, desk: &mut Desk<OwnedFd>) -> bool {
        let Some((op, _)) = desk.flight(name) else { return false };
        let socket = op.holding();
        self.streams.cancel(socket, name, &mut Hands { state: &mut self.state, desk })
    }

    /// The socket (or file) closes; its operations have been asked back.
    pub(super) fn close(&mut self, id: Name, desk: &mut Desk<OwnedFd>) {
        self.streams.close(id, &mut Hands { state: &mut self.state, desk });
        self.state.area.flush();
    }

    /// Looks at a completion. False when it is not of a stream's request.
    pub(super) fn posted(&mut self, posted: &Posted, desk: &mut Desk<OwnedFd>) -> bool {
        if posted.bits & STREAM == 0 {
            return false;
        }
        let name = Name::from_bits(posted.bits & !STREAM);
        let chunk = self.state.chunk(posted);
        // A request may end with the last bytes it brings; that is not the end of the stream.
        let end = if chunk.is_some() { -libc::ENOBUFS } else { posted.result.min(0) };
        let hands = &mut Hands { state: &mut self.state, desk };
        if let Some(chunk) = chunk {
            self.streams.bring(name, chunk, hands);
        }
        if !cqueue::more(posted.flags) {
            self.streams.end(name, end, hands);
        }
        true
    }

    /// To be called when all completions at hand were looked at.
    pub(super) fn settle(&mut self, desk: &mut Desk<OwnedFd>) {
        self.streams.settle(&mut Hands { state: &mut self.state, desk });
        self.state.area.flush();
    }

    /// The next thing to do. To be asked after each of the above.
    pub(super) fn errand(&mut self) -> Option<Errand> {
        self.state.errands.pop_front()
    }

    /// Asks all requests back.
    pub(super) fn disarm_all(&mut self, desk: &mut Desk<OwnedFd>) {
        self.streams.disarm_all(&mut Hands { state: &mut self.state, desk });
    }

    /// Requests the kernel has.
    pub(super) fn out(&self) -> usize {
        self.streams.out()
    }
}

impl State {
    /// The piece a completion tells of.
    fn chunk(&self, posted: &Posted) -> Option<Chunk> {
        let len = u32::try_from(posted.result).ok()?;
        match self.lender {
            Lender::Card(_) => {
                let area = !types::IORING_ZCRX_AREA_MASK;
                posted.more.map(|offset| self.area.lent(offset & area, len))
            }
            Lender::Rehearsal => {
                cqueue::buffer_select(posted.flags).map(|n| self.area.lent(u64::from(n) * u64::from(PIECE_BYTES), len))
            }
        }
    }
}

/// What streams cause on a ring.
struct Hands<'a> {
    state: &'a mut State,
    desk: &'a mut Desk<OwnedFd>,
}

impl Effects for Hands<'_> {
    fn copy(&mut self, op: Name, at: usize, chunk: &Chunk, from: usize, len: usize) {
        let Some((Op::Recv { into, .. }, _)) = self.desk.flight(op) else { unreachable!("{op:?} waits for bytes") };
        let copied = into.write_behind(at, &self.state.area.bytes(chunk)[from..from + len]);
        assert_eq!(copied, len, "an operation is given no more than it asks for");
        self.desk.counts.zero_copy_bytes += len as u64;
    }

    fn give_back(&mut self, chunk: Chunk) {
        match self.state.lender {
            Lender::Card(_) => self.state.area.give_back(chunk),
            Lender::Rehearsal => {
                let entry = provide(&self.state.area, chunk.end().0, PIECE_BYTES);
                self.state.errands.push_back(Errand::Request(entry));
            }
        }
    }

    fn land(&mut self, op: Name, result: i32) {
        self.desk.land(op, result);
    }

    fn receive_plainly(&mut self, op: Name) {
        if !core::mem::replace(&mut self.state.told, true) {
            tracing::warn!(
                "zero-copy receive: the kernel could not serve a connection through the area (its packets come \
                 by another queue, or the area is too small for them all); such connections go on with ordinary receives"
            );
        }
        self.state.errands.push_back(Errand::Plainly(op));
    }

    fn arm(&mut self, stream: Name, socket: Socket) {
        self.desk.hold(socket.name);
        let fd = types::Fd(socket.descriptor);
        let entry = match self.state.lender {
            Lender::Card(id) => opcode::RecvZc::new(fd, CREDIT_BYTES).ifq(id).build(),
            Lender::Rehearsal => opcode::RecvMulti::new(fd, GROUP).build(),
        };
        let flags = if self.state.fixed_files { squeue::Flags::FIXED_FILE } else { squeue::Flags::empty() };
        self.state.errands.push_back(Errand::Request(entry.flags(flags).user_data(stream.to_bits() | STREAM)));
    }

    fn disarm(&mut self, stream: Name) {
        let entry = opcode::AsyncCancel::new(stream.to_bits() | STREAM).build().user_data(CANCEL);
        self.state.errands.push_back(Errand::Request(entry));
    }

    fn release(&mut self, socket: Socket) {
        self.desk.release(socket.name);
    }
}
