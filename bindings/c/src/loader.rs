//! A loader that several threads may call.

use crate::error::c_text;
use fuelrail::internal::ForkGuard;
use fuelrail::{Config, LoaderBuilder, Overrides, Result, State, Taken};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a wait for a batch keeps other threads from the engine.
const SLICE: Duration = Duration::from_millis(100);
/// A call panicked while it held a lock: what the engine knows of itself may be wrong, and every further call says so.
const PANICKED: &str = "an earlier call of this loader panicked";

/// Streams a bucket into batches, in an order that is a function of the seed.
pub struct Loader {
    engine: Mutex<fuelrail::Loader>,
    /// Held while the engine is waited for, so that a thread that waits for batches in slices lets another one in between.
    turn: Mutex<()>,
    /// Where the run stands after the last batch, for reading while another thread waits for the next.
    state: Mutex<State>,
    /// Looked at before locks: in a forked child, the thread that holds one may not exist.
    guard: ForkGuard,
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) classes: Vec<CString>,
    pub(crate) notices: Vec<CString>,
}

impl Loader {
    /// What is not set is read from the environment.
    pub(crate) fn open(settings: &Overrides, state: Option<&str>) -> Result<Loader> {
        Config::check_once(settings)?;
        let config = Config::load(None, fuelrail::environment_variables()?, settings)?;
        let builder = LoaderBuilder::new(config);
        let builder = match state {
            Some(state) => {
                let state = State::from_json(state);
                builder.resume(state.map_err(|error| error.with_hint("pass what fuelrail_loader_state gave"))?)
            }
            None => builder,
        };
        let engine = builder.build()?;
        let texts = |texts: &[String]| texts.iter().map(|text| c_text(text)).collect();
        Ok(Loader {
            turn: Mutex::default(),
            state: Mutex::new(engine.state()),
            guard: ForkGuard::new(),
            batches: engine.batches(),
            samples: engine.samples(),
            classes: texts(engine.classes()),
            notices: texts(engine.notices()),
            engine: Mutex::new(engine),
        })
    }

    /// The next batch, within `patience`. One of zero only looks, and leaves the eventfd armed.
    pub(crate) fn next(&self, patience: Duration) -> Result<Taken> {
        let begun = Instant::now();
        loop {
            let mut engine = self.engine()?;
            let taken = if patience.is_zero() {
                engine.try_next_batch()?
            } else {
                engine.next_batch_within(patience.saturating_sub(begun.elapsed()).min(SLICE))?
            };
            match taken {
                Taken::NotYet if begun.elapsed() < patience => {}
                Taken::Batch(_) => {
                    *self.state.lock().expect(PANICKED) = engine.state();
                    return Ok(taken);
                }
                _ => return Ok(taken),
            }
        }
    }

    pub(crate) fn state(&self) -> Result<String> {
        self.guard.check()?;
        Ok(self.state.lock().expect(PANICKED).to_json())
    }

    /// As JSON.
    pub(crate) fn stats(&self) -> Result<String> {
        let stats = self.engine()?.stats();
        Ok(serde_json::to_string(&stats).expect("counters and names serialise"))
    }

    pub(crate) fn engine(&self) -> Result<MutexGuard<'_, fuelrail::Loader>> {
        self.guard.check()?;
        let _turn = self.turn.lock().expect(PANICKED);
        Ok(self.engine.lock().expect(PANICKED))
    }
}
