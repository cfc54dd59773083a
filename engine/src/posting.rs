//! A shard's post: its thread's life from opening the ring to the last operation. Where the back-end is chosen, once;
//! below this everything is compiled for one ring.

use fuelrail_base::Result;
use fuelrail_flow::{Objects, Shard, ShardConfig, ShardEnds};
#[cfg(feature = "glommio")]
use fuelrail_io::GlommioRing;
#[cfg(feature = "tokio-uring")]
use fuelrail_io::TokioUringRing;
use fuelrail_io::{Backend, PollRing, Region, Ring, ThreadMeter, UringConfig, UringRing, Waker, pin_current_thread};
use fuelrail_plan::run::Run;
use std::sync::Arc;
use std::sync::mpsc;

/// What a shard's thread tells once its ring stands.
pub(crate) type Greeting = Result<(Waker, Vec<String>)>;

/// All a shard's thread is given.
pub(crate) struct Posting {
    pub(crate) ring: UringConfig,
    pub(crate) region: Region,
    pub(crate) objects: Arc<Objects>,
    pub(crate) run: Run,
    pub(crate) shard: ShardConfig,
    pub(crate) ends: ShardEnds,
    /// The core to bind to.
    pub(crate) core: Option<usize>,
    /// Whether to count cycles.
    pub(crate) cycles: bool,
    pub(crate) tell: mpsc::Sender<Greeting>,
}

impl Posting {
    /// Runs the shard on this back-end, to its end. Errors before it runs go into the greeting; what ends it without its being
    /// told to is the run's failure.
    pub(crate) fn serve(self, backend: Backend) {
        match backend {
            Backend::Uring => self.serve_on(UringRing::new),
            Backend::Poll => self.serve_on(PollRing::new),
            #[cfg(feature = "tokio-uring")]
            Backend::TokioUring => self.serve_on(TokioUringRing::new),
            #[cfg(feature = "glommio")]
            Backend::Glommio => self.serve_on(GlommioRing::new),
        }
    }

    fn serve_on<R: Ring>(self, open: impl FnOnce(&UringConfig) -> Result<R>) {
        let Posting { ring, region, objects, run, shard, ends, core, cycles, tell } = self;
        let (id, consumer) = (shard.brain.shard.0, Arc::clone(&ends.consumer));
        let pinned = core.map_or(Ok(()), pin_current_thread);
        let built = open(&ring).and_then(|ring| {
            let mut notices = ring.facts().refusals;
            notices.extend(pinned.err().map(|e| format!("pinning: {e}")));
            let meter = if cycles { ThreadMeter::with_cycles() } else { ThreadMeter::plain() };
            notices.extend(meter.refusal().map(str::to_owned));
            let waker = ring.waker();
            Shard::new(ring, region, objects, &run, &shard, ends).map(|shard| (shard.metered(meter), waker, notices))
        });
        match built {
            Ok((mut shard, waker, notices)) => {
                // The builder may have given up on another shard; then the board says stop.
                let _ = tell.send(Ok((waker, notices)));
                // One that panicked is only dropped: what it would save may be half done.
                if consumer.failure.guard(format_args!("shard {id}"), || shard.run()).is_some() {
                    shard.end();
                }
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    }
}
