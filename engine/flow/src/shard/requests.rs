//! Requests for blocks of this shard, from itself and from others: chunks first, then the planner; and the replies.

use super::{Shard, Waiter};
use crate::channels::{BlockReply, BlockRequest};
use crate::chunks::{ChunkStage, Found};
use crate::conn::Proof;
use fuelrail_base::canary::{self, Stage};
use fuelrail_base::{Result, ShardId};
use fuelrail_io::{Ring, Window};
use fuelrail_plan::planner::{Asker, Fact, Source, Want};

impl<R: Ring> Shard<R> {
    /// Routes new requests to the blocks' owners.
    pub(super) fn send_requests(&mut self) {
        let mut outgoing = core::mem::take(&mut self.outgoing);
        for request in outgoing.drain(..) {
            // Whatever is read with a block has the same owner.
            match self.channels.owner(self.objects.catalog().fetched_with(request.block)) {
                Some(owner) => self.channels.request(owner, request),
                None => self.channels.own.push_back(request),
            }
        }
        self.outgoing = outgoing;
    }

    pub(super) fn own(&mut self, request: BlockRequest) {
        let BlockRequest { assembler, span, block, at, window, fresh } = request;
        if let Some(error) = self.quarantine.as_ref().and_then(|quarantine| quarantine.get(&block)) {
            let result = Err(error.clone());
            return self.send_reply(assembler, BlockReply { span, window, result });
        }
        let request = BlockRequest { assembler, span, block, at, window, fresh };
        let found = match &mut self.chunks {
            Some(chunks) => chunks.ask(request),
            None => Found::Alone(request),
        };
        match found {
            Found::Alone(request) => self.ask(request),
            Found::Waits => self.begin_chunks(),
            Found::Served(BlockRequest { assembler, span, window, .. }, proof) => {
                self.send_reply(assembler, BlockReply { span, window, result: Ok((proof, Source::Cache)) })
            }
        }
    }

    pub(super) fn ask(&mut self, request: BlockRequest) {
        let BlockRequest { assembler, span, block, at, window, fresh } = request;
        let (proof, window) = (Proof::default(), Some(window));
        let waiter = Waiter { assembler, span, window, proof, seen: proof, error: None, race: None };
        let asker = match (span.peer(), &self.peers) {
            (Some(place), Some(peers)) => peers.asker(place),
            _ => Asker::Own,
        };
        self.planner.ask(self.clock.now, waiter, Want { block, at, fresh, asker });
    }

    /// Takes in what other ranks ask for. True when there was anything.
    pub(super) fn serve_peers(&mut self) -> bool {
        let mut any = false;
        while let Some(request) = self.peers.as_mut().and_then(|peers| peers.next(self.id)) {
            self.own(request);
            any = true;
        }
        any
    }

    /// Asks for chunks that have a slot.
    pub(super) fn begin_chunks(&mut self) {
        while let Some(request) = self.chunks.as_mut().and_then(ChunkStage::next) {
            let given_up = self.quarantine.as_ref().and_then(|quarantine| quarantine.get(&request.block)).cloned();
            match (given_up, request.span.chunk()) {
                (Some(error), Some(place)) => self.end_chunk(place, request.window, Err(error)),
                _ => self.ask(BlockRequest { assembler: self.id, ..request }),
            }
        }
    }

    /// A chunk has landed, or was given up: then its samples are asked for one by one, so that only those that cannot be had are missing.
    pub(super) fn end_chunk(&mut self, place: usize, window: Window, result: Result<Proof>) {
        let chunks = self.chunks.as_mut().expect("only its stage asks for chunks");
        let (waiting, proof) = chunks.landed(place, window, result);
        for request in waiting {
            match proof {
                None => self.channels.own.push_back(request),
                Some(proof) => {
                    let BlockRequest { assembler, span, window, .. } = request;
                    self.send_reply(assembler, BlockReply { span, window, result: Ok((proof, Source::Shared)) });
                }
            }
        }
    }

    pub(super) fn reply(&mut self, waiter: Waiter, result: Result<(Proof, Source)>) {
        let Waiter { assembler, span, window, .. } = waiter;
        let window = window.expect("a waiter that gets its reply has its window");
        debug_assert!(result.is_err() || window.room() == 0, "a block served is whole");
        if let Some(place) = span.chunk() {
            return self.end_chunk(place, window, result.map(|(proof, _)| proof));
        }
        self.send_reply(assembler, BlockReply { span, window, result });
    }

    pub(super) fn send_reply(&mut self, assembler: ShardId, reply: BlockReply) {
        if let Some(place) = reply.span.peer() {
            let BlockReply { window, result, .. } = reply;
            return self.peers.as_mut().expect("only its stage asks for them").landed(place, window, result);
        }
        if assembler == self.id {
            self.receive_reply(reply)
        } else {
            self.channels.reply(usize::from(assembler.0), reply)
        }
    }

    pub(super) fn receive_reply(&mut self, reply: BlockReply) {
        canary::pass(self.id.0, Stage::Assemble);
        self.assemble.reply(reply, &mut self.outgoing);
        self.send_requests();
        self.hand_over();
    }

    /// Passes finished batches on to the deliver stage.
    pub(super) fn hand_over(&mut self) {
        for finished in self.assemble.finished() {
            canary::pass(self.id.0, Stage::Deliver);
            self.filling.passed(self.clock.now);
            self.planner.tell(self.clock.now, Fact::Ready(finished.seq));
            self.deliver.put(finished);
        }
    }
}
