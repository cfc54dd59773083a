//! What `bench rings` and `bench spill` are given alike: rings by name, and blocks. Runs nothing.

use std::path::PathBuf;

use crate::disk::Blocks;
use fuelrail::{Backend, ByteSize, DiskPlan, Error, RingChoice};

use fuelrail_cli::failure::Outcome;

/// The rings asked for by name; all of this build when none is.
pub(super) fn names(asked: &[RingChoice]) -> Vec<String> {
    if asked.is_empty() {
        return Backend::ALL.iter().map(|backend| backend.name().to_owned()).collect();
    }
    let name = |choice: &RingChoice| match choice {
        RingChoice::Auto => "auto".to_owned(),
        RingChoice::Only(backend) => backend.name().to_owned(),
    };
    asked.iter().map(name).collect()
}

/// Blocks that a disk can move.
pub(super) fn blocks(block_size: ByteSize, depth: u32, bytes: ByteSize, direct: bool) -> Outcome<Blocks> {
    let blocks = Blocks { block_bytes: block_size.0, depth, bytes: bytes.0, direct };
    let plan = DiskPlan {
        path: PathBuf::new(),
        ring: RingChoice::Auto,
        block_bytes: blocks.block_bytes,
        depth,
        bytes: blocks.bytes,
        direct,
        register: true,
    };
    plan.validate()?;
    Ok(blocks)
}

/// A ring by name, or why there is none.
pub(super) fn ring_name(text: &str) -> Result<RingChoice, Error> {
    text.parse()
}
