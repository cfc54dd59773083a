//! What the clients that run inside this process have in common: one thread, as a shard of the loader has, and so many connections
//! or requests at a time over which the pieces of a pass are spread.

use std::env;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::arena::Arena;
use crate::manifest::Object;
use crate::protocol::Passed;
use crate::reading::{Plan, Reading};

/// What asks for pieces.
pub(crate) trait Client {
    /// One connection's work, until there is no further piece.
    async fn work(&self, reading: &Reading<'_>) -> Result<()>;
}

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

/// A client with everything it keeps between passes.
pub(crate) struct Native<C> {
    runtime: Runtime,
    client: C,
    setup: Setup,
    settings: String,
}

impl<C: Client> Native<C> {
    /// A client that `build` makes within the runtime; `name` is what it says of itself.
    pub(crate) fn new(name: &str, setup: Setup, build: impl FnOnce(&[Object]) -> Result<C>) -> Result<Native<C>> {
        let runtime = Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
        let client = {
            let _inside = runtime.enter();
            build(&setup.objects)?
        };
        Ok(Native { runtime, client, settings: settings(name, &setup), setup })
    }

    pub(crate) fn pass(&mut self, number: u64) -> Result<Passed> {
        let Setup { objects, arena, plan, connections } = &mut self.setup;
        let reading = Reading::start(objects, plan, number, arena.as_mut());
        let all = futures_util::future::try_join_all((0..*connections).map(|_| self.client.work(&reading)));
        LocalSet::new().block_on(&self.runtime, all)?;
        reading.finish(self.settings.clone())
    }
}

/// How a client is run, for the result. The allocator counts: clients allocate their buffers, and one that returns pages
/// to the kernel after each pays for them again.
fn settings(client: &str, setup: &Setup) -> String {
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
