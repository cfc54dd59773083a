//! Where the loaders of this machine write down the rate of requests that a server asks for, so that all keep to it together.
//!
//! Owns the choice of the file. A file that cannot be used costs one line, and the loader keeps to a rate of its own.

use crate::config::Config;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::{Division, OwnDirectory, SharedWords};
use fuelrail_plan::pace::{LEDGER_WORDS, Ledger, SLOT_WORDS, SLOTS_FROM};
use fuelrail_wire::{Endpoint, Scheme};
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The ledger of this loader's shards, shared with other loaders where the configuration says so.
pub(crate) fn ledger(config: &Config, endpoint: &Endpoint, notices: &mut Vec<String>) -> Ledger {
    let Some(dir) = config.share_dir.as_ref().filter(|_| endpoint.scheme != Scheme::File) else {
        return Ledger::default();
    };
    shared(dir, endpoint).unwrap_or_else(|error| {
        notices.push(format!("share_dir: {error}; this loader finds the server's rate limit for itself"));
        Ledger::default()
    })
}

fn shared(dir: &Path, endpoint: &Endpoint) -> Result<Ledger> {
    std::fs::create_dir_all(dir).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        Error::from_errno(Kind::File, &format!("making {}", dir.display()), errno)
            .cure("choose a directory that this user may write to")
    })?;
    let name = format!("fuelrail-pace-{:016x}", xxh3_64(endpoint.authority().as_bytes()));
    let words = SharedWords::open(
        &OwnDirectory::open(dir)?,
        &name,
        Division { words: LEDGER_WORDS, from: SLOTS_FROM, slot: SLOT_WORDS },
    )?;
    let slot = words.slot();
    Ok(Ledger::new(Arc::new(words), slot))
}
