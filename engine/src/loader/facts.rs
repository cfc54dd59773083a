//! What a loader tells of itself.

use super::{Loader, Parts};
use crate::batch::key_of;
use crate::config::Config;
use crate::importance::drawn;
use crate::memory::{Mapped, Memory, MemoryStats, Remains, batch_room_max, decoded_batch_bytes};
use crate::state::{State, state_at};
use crate::stats::Stats;
use crate::watch::Shards;
use fuelrail_base::{Duration, Error, Kind, Result, SampleId};
use fuelrail_io::Arena;
use fuelrail_plan::run::Cursor;
use std::borrow::Cow;
use std::sync::Arc;

impl Loader {
    /// Counters and latencies so far. In a forked child only what was taken before the fork.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let batch_wait_us = self.waits.summary().into();
        if !self.guard.holds() {
            return Stats { batch_wait_us, ..Stats::new(&self.tally, self.started.elapsed(), &[]) };
        }
        let shards = self.parts.shards.snapshots(Duration::from_secs(1));
        let slots = self.from.arena.outstanding() as u64;
        let stats = Stats::new(&self.tally, self.started.elapsed(), &shards)
            .with_decode(self.supply.stage().map(|stage| stage.facts()));
        let disk = stats.disk.map(|disk| disk.with_segment_manager(&self.parts.shards.segments()));
        let on_disk = disk.as_ref().map_or(0, |disk| disk.index_bytes);
        let memory = MemoryStats { tables_bytes: self.from.memory.tables_bytes + on_disk, ..self.from.memory };
        Stats { slots, batches_held: self.leases() as u64, disk, memory, batch_wait_us, ..stats }
    }

    /// Stops the shards, gives the memory back, and tells what is left. Dropping the loader does the same and tells nothing.
    #[must_use]
    pub fn close(self) -> Remains {
        if !self.guard.holds() {
            return Remains::default();
        }
        let (arena, shards) = (self.from.arena.clone(), self.parts.shards.clone());
        drop(self);
        let operations = shards.snapshots(Duration::ZERO).iter().map(|shard| shard.operations as u64).sum();
        Remains { operations, slots: arena.outstanding() as u64 }
    }

    /// The memory that holds all batches. A caller that registers it elsewhere keeps this until it is unregistered.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory(Mapped::Own(self.from.arena.clone()))
    }

    /// The memory that batches lie in where this loader [`borrows`](Loader::borrows): that of the process that reads, and once this job
    /// reads alone, its own. `None` before the first batch. Batches that were handed over between the two may lie in neither.
    #[must_use]
    pub fn shared_memory(&self) -> Option<Memory> {
        self.from.relay.as_ref().filter(|_| self.borrows())?.memory()
    }

    /// The error for batches that the caller holds: it loses nothing.
    pub(super) fn lease_error(&self) -> Error {
        let leases = self.leases();
        let need = self.slot_bytes_max();
        Error::new(Kind::Budget, format!("the {leases} batches you hold leave no room for the next one"))
            .with_hint(format!("drop batches before asking for more, or raise memory_limit by at least {need} bytes"))
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.from.arena
    }

    /// Whether batches lie outside [`memory`](Loader::memory): in [`shared_memory`](Loader::shared_memory), under `shared_read`.
    #[must_use]
    pub fn borrows(&self) -> bool {
        self.from.relay.is_some() && self.supply.stage().is_none()
    }

    /// Batches of the greatest size that fit into its memory.
    pub(crate) fn room(&self) -> u64 {
        self.from.room
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.parts.shards
    }

    /// The most room that one batch can take, bytes: what a device buffer must hold.
    #[must_use]
    pub fn batch_bytes_max(&self) -> u64 {
        let config = &self.parts.config;
        match config.decoded() {
            Some(decode) => u64::from(config.batch_size) * decode.sample_bytes(),
            None => batch_room_max(config, self.parts.objects.catalog()),
        }
    }

    /// The same with what else lies in its slot.
    pub(crate) fn slot_bytes_max(&self) -> u64 {
        let Parts { config, records, .. } = &self.parts;
        self.batch_bytes_max().max(decoded_batch_bytes(config, records.as_deref()))
    }

    /// The effective configuration: what was left open is replaced by what was chosen.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.parts.config
    }

    /// What is not as fast or as safe as it could be, each with cause and cure. Print them. What was told of disks and other ranks until the
    /// last call for a batch is among them.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.parts.notices
    }

    /// What was told of disks and other ranks so far, as a function for other threads.
    #[doc(hidden)]
    pub fn told(&self) -> impl Fn() -> Vec<String> + Send + Sync + use<> {
        self.parts.told.lines()
    }

    /// Samples in the data set.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.parts.objects.catalog().samples()
    }

    /// Samples that all ranks together deliver in an epoch: not those that `drop_last` leaves out; for a mixture, its length.
    #[must_use]
    pub fn epoch_samples(&self) -> u64 {
        self.parts.run.epoch_samples()
    }

    /// Batches of this rank in this run, from its start.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.parts.run.batches()
    }

    /// Bytes of the data set.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.parts.objects.catalog().total_bytes()
    }

    /// The key of the object that a sample is, or lies in.
    ///
    /// # Panics
    /// When the id is not of this data set.
    #[must_use]
    pub fn key(&self, sample: SampleId) -> &str {
        self.parts.objects.key(sample)
    }

    /// The key of a sample's record, or its number where the format has no keys; of a sample that is an object, the object's.
    ///
    /// # Panics
    /// When the id is not of this data set.
    #[must_use]
    pub fn record_key(&self, sample: SampleId) -> Cow<'_, str> {
        key_of(&self.parts.objects, self.parts.records.as_deref(), sample)
    }

    /// [`record_key`](Loader::record_key) as a function, for other threads, and for use after the loader is dropped.
    ///
    /// # Panics
    /// The function does when the id is not of this data set.
    pub fn record_keys(&self) -> impl Fn(SampleId) -> String + Send + Sync + 'static {
        let (objects, records) = (Arc::clone(&self.parts.objects), self.parts.records.clone());
        move |sample| key_of(&objects, records.as_deref(), sample).into_owned()
    }

    /// Whether a loader of these settings can go on from a state and its scores: a function, for use after this one is dropped. Its errors are those
    /// of [`build`](crate::LoaderBuilder::build).
    #[doc(hidden)]
    pub fn state_check(&self) -> impl Fn(&State, Option<&[u8]>) -> Result<()> + Send + Sync + 'static {
        let Parts { config, objects, run, fingerprint, .. } = self.parts.clone();
        move |state, scores| {
            state.check(&state_at(&run, &fingerprint, config.order.importance, Cursor::default()))?;
            let run = run.clone().starting_at(Cursor { epoch: state.epoch, position: state.position })?;
            drawn(&config, objects.catalog(), run, Some(state), scores).map(drop)
        }
    }

    /// The listed length of a sample, bytes.
    ///
    /// # Panics
    /// When the id is not of this data set.
    #[must_use]
    pub fn size(&self, sample: SampleId) -> u64 {
        self.parts.objects.catalog().size(sample)
    }

    /// Names of the classes; a batch's labels index them.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.parts.labels.classes
    }
}
