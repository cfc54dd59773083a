//! How far ahead of the consumer samples are opened (requested): one trait, two strategies, chosen once per run.
//!
//! Owns what a strategy remembers of the run so far. Never opens anything itself, never sees an epoch (its edge is no
//! edge here), and never looks at which samples come next.

mod lookahead;
mod view;
mod watermarks;

pub use lookahead::Lookahead;
pub use view::{Prefetch, View};
pub use watermarks::Watermarks;

use fuelrail_base::{Error, Kind, Result};

/// The strategies, dispatched without a box.
#[derive(Clone, Debug)]
pub enum Strategy {
    /// Ours: bounded by bytes, steered by deadlines and occupancy.
    Lookahead(Lookahead),
    /// DELI's: fetch size and threshold, in samples.
    Watermarks(Watermarks),
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy::Lookahead(Lookahead::new())
    }
}

impl Strategy {
    /// A strategy by name: `lookahead`, `full-fetch` or `50/50`. The last two are DELI's for a cache of `cache_samples`
    /// samples; the first has no use for it.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the name is unknown, or the cache too small for DELI's strategies.
    pub fn from_name(name: &str, cache_samples: u64) -> Result<Strategy> {
        match name {
            "lookahead" => Ok(Strategy::default()),
            "full-fetch" => Watermarks::full_fetch(cache_samples).map(Strategy::Watermarks),
            "50/50" => Watermarks::half_and_half(cache_samples).map(Strategy::Watermarks),
            _ => Err(Error::new(Kind::Usage, format!("'{name}' is not a prefetch strategy"))
                .cure("use lookahead, full-fetch or 50/50")),
        }
    }
}

impl Prefetch for Strategy {
    fn credit(&mut self, view: &View) -> u64 {
        match self {
            Strategy::Lookahead(lookahead) => lookahead.credit(view),
            Strategy::Watermarks(watermarks) => watermarks.credit(view),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Strategy::Lookahead(lookahead) => lookahead.name(),
            Strategy::Watermarks(watermarks) => watermarks.name(),
        }
    }
}
