//! The mesh: bounded lanes between every two shards, for asks and for answers.
//!
//! A home keeps at most as many asks open with one owner as a lane holds, so an answer always finds room: the mesh cannot
//! lock up, however short the lanes are. Further asks wait at home.

use crate::assemble::BadSamples;
use crate::letter::{Answer, Ask};
use fuelrail_base::BlockId;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::limits::{CHANNEL_ENTRIES, CHANNEL_ENTRIES_PER_SHARD};
use fuelrail_io::{Receiver, Sender, Waker, channel};
use std::collections::VecDeque;

/// One shard's ends of the mesh.
pub struct MeshEnds {
    /// By peer; the place of the shard itself is empty. Nobody, where shards keep nothing for each other.
    peers: Vec<Option<Peer>>,
    /// Entries of each lane.
    entries: usize,
    /// Asks for blocks of the shard itself: they do not travel.
    pub(crate) own: VecDeque<Ask>,
}

struct Peer {
    asks_out: Sender<Ask>,
    asks_in: Receiver<Ask>,
    answers_out: Sender<Answer>,
    answers_in: Receiver<Answer>,
    /// Asks not sent yet.
    backlog: VecDeque<Ask>,
    /// Asks sent and not answered.
    open: usize,
    /// Letters were sent that the peer has not been woken for.
    unheard: bool,
}

/// Whether shards keep blocks for each other, in RAM, on disk or in quarantine: then every block has one owner.
#[must_use]
pub fn keep_for_others(cache_bytes: u64, has_disk: bool, bad_samples: BadSamples) -> bool {
    cache_bytes > 0 || has_disk || bad_samples == BadSamples::Quarantine
}

/// Builds the mesh of `shards` shards; without `keepers` it has no lanes. Where
/// [none keeps a block for others](keep_for_others), each shard fetches the blocks of its own batches.
#[must_use]
pub fn mesh(shards: u16, keepers: bool) -> Vec<MeshEnds> {
    let n = usize::from(shards);
    let ends = |peers, entries| MeshEnds { peers, entries, own: VecDeque::with_capacity(1024) };
    if !keepers {
        return (0..n).map(|_| ends(Vec::new(), 0)).collect();
    }
    let entries = (CHANNEL_ENTRIES_PER_SHARD / n.saturating_sub(1).max(1)).min(CHANNEL_ENTRIES);
    let mut ends: Vec<MeshEnds> = (0..n).map(|_| ends((0..n).map(|_| None).collect(), entries)).collect();
    for (i, j) in (0..n).flat_map(|i| (0..i).map(move |j| (i, j))) {
        let ((asks, asks_in), (answers, answers_in)) = (channel(entries), channel(entries));
        let ((asks_back, asks_back_in), (answers_back, answers_back_in)) = (channel(entries), channel(entries));
        ends[i].peers[j] = Some(Peer::new((asks, asks_back_in), (answers, answers_back_in)));
        ends[j].peers[i] = Some(Peer::new((asks_back, asks_in), (answers_back, answers_in)));
    }
    ends
}

impl Peer {
    fn new(
        (asks_out, asks_in): (Sender<Ask>, Receiver<Ask>),
        (answers_out, answers_in): (Sender<Answer>, Receiver<Answer>),
    ) -> Peer {
        Peer { asks_out, asks_in, answers_out, answers_in, backlog: VecDeque::new(), open: 0, unheard: false }
    }
}

impl MeshEnds {
    /// Sets who is woken when a letter comes.
    pub fn set_waker(&self, waker: &Waker) {
        for peer in self.peers.iter().flatten() {
            peer.asks_in.set_waker(waker.clone());
            peer.answers_in.set_waker(waker.clone());
        }
    }

    /// Bytes of the lanes that this shard sends on, while they are empty.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let sending =
            |peer: &Peer| peer.asks_out.room() * size_of::<Ask>() + peer.answers_out.room() * size_of::<Answer>();
        self.peers.iter().flatten().map(sending).sum::<usize>() as u64
    }

    /// The shard that owns a block, if it is another one.
    pub(crate) fn owner(&self, block: BlockId) -> Option<usize> {
        let shards = u16::try_from(self.peers.len()).ok().filter(|shards| *shards > 0)?;
        let owner = usize::from(block.owner(shards).0);
        self.peers[owner].as_ref().map(|_| owner)
    }

    /// Puts an ask in the queue for its owner.
    pub(crate) fn ask(&mut self, owner: usize, ask: Ask) {
        if canary::on(Mistake::ChannelLoses) && ask.span.sample == 2 {
            return;
        }
        self.peers[owner].as_mut().expect("an ask to oneself does not travel").backlog.push_back(ask);
    }

    /// Sends queued asks as far as there is room, and wakes every peer once for all letters since the last call.
    pub(crate) fn flush(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            while peer.open < self.entries {
                let Some(ask) = peer.backlog.pop_front() else { break };
                if let Err(ask) = peer.asks_out.push(ask) {
                    peer.backlog.push_front(ask);
                    break;
                }
                peer.open += 1;
                peer.unheard = true;
            }
            if core::mem::take(&mut peer.unheard) {
                peer.asks_out.wake();
            }
        }
    }

    /// Sends an answer, for which [`flush`](MeshEnds::flush) wakes. A peer that is gone does not need it.
    pub(crate) fn answer(&mut self, home: usize, answer: Answer) {
        let peer = self.peers[home].as_mut().expect("an answer to oneself does not travel");
        peer.unheard = true;
        if peer.answers_out.push(answer).is_err() {
            assert!(peer.answers_out.is_closed(), "open asks are bounded by the lane, so an answer has room");
        }
    }

    /// The next ask for a block of this shard.
    pub(crate) fn next_ask(&mut self) -> Option<Ask> {
        self.own.pop_front().or_else(|| self.peers.iter_mut().flatten().find_map(|p| p.asks_in.recv()))
    }

    /// The next answer from any peer.
    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        self.peers.iter_mut().flatten().find_map(|p| {
            let answer = p.answers_in.recv()?;
            p.open -= 1;
            Some(answer)
        })
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let open: usize = self.peers.iter().flatten().map(|p| p.open).sum();
        let queued: usize = self.peers.iter().flatten().map(|p| p.backlog.len()).sum();
        format!("mesh: {open} asks open with other shards, {queued} not sent yet")
    }
}
