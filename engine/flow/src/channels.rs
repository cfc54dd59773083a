//! Channels between shards: a bounded channel for requests and one for replies in each direction of every pair.
//!
//! A request goes from the shard that assembles a batch to a block's owner. The window travels with the message, so exactly one shard can
//! write to it at any time and no byte is copied from core to core. An assembling shard keeps at most as many requests open with one
//! owner as a channel holds, so a reply always finds room: the channels cannot deadlock, however short they are. Further requests wait in
//! the assembling shard.

use crate::conn::Proof;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::limits::{CHANNEL_ENTRIES, CHANNEL_ENTRIES_PER_SHARD};
use fuelrail_base::{BlockId, Error, ShardId};
use fuelrail_io::{Receiver, Sender, Waker, Window, channel};
use fuelrail_plan::planner::Source;
use fuelrail_plan::schedule::UseTime;
use std::collections::VecDeque;

/// One shard's ends of the channels to all others.
pub struct ChannelEnds {
    /// By peer; the place of the shard itself is empty. Empty where shards keep nothing for each other.
    peers: Vec<Option<Peer>>,
    /// Entries of each channel.
    entries: usize,
    /// Requests for blocks of the shard itself: they do not travel.
    pub(crate) own: VecDeque<BlockRequest>,
}

struct Peer {
    requests_out: Sender<BlockRequest>,
    requests_in: Receiver<BlockRequest>,
    replies_out: Sender<BlockReply>,
    replies_in: Receiver<BlockReply>,
    /// Asks not sent yet.
    backlog: VecDeque<BlockRequest>,
    /// Asks sent and not answered.
    open: usize,
    /// Messages were sent that the peer has not been woken for.
    unwoken: bool,
}

/// Builds the channels between `shards` shards; without `owners` there are none. Where
/// [none keeps a block for others](crate::keep_for_others), each shard fetches the blocks of its own batches.
pub fn channels(shards: u16, owners: bool) -> Vec<ChannelEnds> {
    let n = usize::from(shards);
    let ends = |peers, entries| ChannelEnds { peers, entries, own: VecDeque::with_capacity(1024) };
    if !owners {
        return (0..n).map(|_| ends(Vec::new(), 0)).collect();
    }
    let entries = (CHANNEL_ENTRIES_PER_SHARD / n.saturating_sub(1).max(1)).min(CHANNEL_ENTRIES);
    let mut ends: Vec<ChannelEnds> = (0..n).map(|_| ends((0..n).map(|_| None).collect(), entries)).collect();
    for (i, j) in (0..n).flat_map(|i| (0..i).map(move |j| (i, j))) {
        let ((requests, requests_in), (replies, replies_in)) = (channel(entries), channel(entries));
        let ((requests_back, requests_back_in), (replies_back, replies_back_in)) = (channel(entries), channel(entries));
        ends[i].peers[j] = Some(Peer::new((requests, requests_back_in), (replies, replies_back_in)));
        ends[j].peers[i] = Some(Peer::new((requests_back, requests_in), (replies_back, replies_in)));
    }
    ends
}

impl Peer {
    fn new(
        (requests_out, requests_in): (Sender<BlockRequest>, Receiver<BlockRequest>),
        (replies_out, replies_in): (Sender<BlockReply>, Receiver<BlockReply>),
    ) -> Peer {
        Peer { requests_out, requests_in, replies_out, replies_in, backlog: VecDeque::new(), open: 0, unwoken: false }
    }
}

impl ChannelEnds {
    /// Sets the waker that is called when a message comes.
    pub fn set_waker(&self, waker: &Waker) {
        for peer in self.peers.iter().flatten() {
            peer.requests_in.set_waker(waker.clone());
            peer.replies_in.set_waker(waker.clone());
        }
    }

    /// Bytes of the lanes that this shard sends on, while they are empty.
    pub fn bytes(&self) -> u64 {
        let sending = |peer: &Peer| {
            peer.requests_out.room() * size_of::<BlockRequest>() + peer.replies_out.room() * size_of::<BlockReply>()
        };
        self.peers.iter().flatten().map(sending).sum::<usize>() as u64
    }

    /// The shard that owns a block, if it is another one.
    pub(crate) fn owner(&self, block: BlockId) -> Option<usize> {
        let shards = u16::try_from(self.peers.len()).ok().filter(|shards| *shards > 0)?;
        let owner = usize::from(block.owner(shards).0);
        self.peers[owner].as_ref().map(|_| owner)
    }

    /// Puts a request in the queue for its owner.
    pub(crate) fn request(&mut self, owner: usize, request: BlockRequest) {
        if canary::on(Mistake::ChannelLoses) && request.span.sample == 2 {
            return;
        }
        self.peers[owner].as_mut().expect("requests of the shard itself are in `own`").backlog.push_back(request);
    }

    /// Sends queued requests as far as there is room, and wakes every peer once for all messages since the last call.
    pub(crate) fn flush(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            while peer.open < self.entries {
                let Some(request) = peer.backlog.pop_front() else { break };
                if let Err(request) = peer.requests_out.push(request) {
                    peer.backlog.push_front(request);
                    break;
                }
                peer.open += 1;
                peer.unwoken = true;
            }
            if core::mem::take(&mut peer.unwoken) {
                peer.requests_out.wake();
            }
        }
    }

    /// Sends a reply; [`flush`](ChannelEnds::flush) wakes the peer. Dropped when the peer has ended.
    pub(crate) fn reply(&mut self, assembler: usize, reply: BlockReply) {
        let peer = self.peers[assembler].as_mut().expect("the shard takes its own replies itself");
        peer.unwoken = true;
        if peer.replies_out.push(reply).is_err() {
            assert!(peer.replies_out.is_closed(), "open requests are bounded by the channel, so a reply has room");
        }
    }

    /// The next request for a block of this shard.
    pub(crate) fn next_request(&mut self) -> Option<BlockRequest> {
        self.own.pop_front().or_else(|| self.peers.iter_mut().flatten().find_map(|p| p.requests_in.recv()))
    }

    /// The next reply from any peer.
    pub(crate) fn next_reply(&mut self) -> Option<BlockReply> {
        self.peers.iter_mut().flatten().find_map(|p| {
            let reply = p.replies_in.recv()?;
            p.open -= 1;
            Some(reply)
        })
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let open: usize = self.peers.iter().flatten().map(|p| p.open).sum();
        let queued: usize = self.peers.iter().flatten().map(|p| p.backlog.len()).sum();
        format!("channels: {open} requests open with other shards, {queued} not sent yet")
    }
}

/// The span of a batch that a block fills. A reply carries it, so that the assembling shard finds the place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SpanId {
    /// The open batch.
    pub batch: u32,
    /// The sample of it, by its place in the batch.
    pub sample: u32,
    /// The block of that, counted from 0.
    pub index: u32,
}

/// A request for one block, from the shard that assembles its batch to the shard that owns it.
pub(crate) struct BlockRequest {
    /// The shard that assembles the batch and gets the reply.
    pub assembler: ShardId,
    pub span: SpanId,
    pub block: BlockId,
    pub at: UseTime,
    /// Empty, as long as the block.
    pub window: Window,
    /// The cached copy proved wrong.
    pub fresh: bool,
}

/// The owner's reply to a [`BlockRequest`].
pub(crate) struct BlockReply {
    pub span: SpanId,
    /// Full when `result` is `Ok`.
    pub window: Window,
    pub result: Result<(Proof, Source), Error>,
}
