//! What the clients that run inside this process have in common: their arguments, their runtime, what they say of
//! themselves.
//!
//! Owns no request. Every client runs on one thread, as a shard of the loader does.

use std::env;

use tokio::runtime::{Builder, Runtime};

use crate::arena::Arena;
use crate::flaw::{Flaw, Result};
use crate::manifest::Object;
use crate::reading::Plan;

/// What a native client is built from.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) objects: Vec<Object>,
    /// Where bytes go; none to drop them.
    pub(crate) arena: Option<Arena>,
    pub(crate) plan: Plan,
    /// Connections, or requests at a time.
    pub(crate) connections: usize,
}

/// A runtime on this thread.
///
/// # Errors
/// When the kernel refuses it.
pub(crate) fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().map_err(|e| Flaw::of("starting a runtime", e))
}

/// How a client is run, for the result. The allocator counts: clients allocate their buffers, and one that returns pages
/// to the kernel after each pays for them again.
pub(crate) fn settings(client: &str, setup: &Setup) -> String {
    let Setup { arena, plan, connections, .. } = setup;
    let placing = match arena {
        Some(arena) => format!("copied into an arena of {} MiB", arena.size() >> 20),
        None => "bytes dropped".to_owned(),
    };
    let tuned = env::var_os("MALLOC_TRIM_THRESHOLD_").is_some() || env::var_os("MALLOC_TOP_PAD_").is_some();
    let allocator = if tuned { "glibc malloc that keeps its pages" } else { "glibc malloc as it comes" };
    let range = plan.range as f64 / f64::from(1u32 << 20);
    format!("{client}, one thread, {connections} connections, requests of at most {range} MiB, {placing}, {allocator}")
}
