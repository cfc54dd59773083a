//! What a Python loader drives: the engine's loader, or that and a feed to a GPU.

use fuelrail::{Batch, HandOver, Loader, State, Stats, Taken};
use fuelrail_cuda::{DeviceBatch, DeviceTaken, Feed, FeedConfig, FeedStats, RawStream};
use std::time::Duration;

/// How long the copy thread has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Hands over for so long.
type HandingOver = Box<dyn FnOnce(Duration) -> fuelrail::Result<HandOver> + Send>;

/// Where batches come from.
pub(crate) enum Engine {
    Host(Box<Loader>),
    Device(Box<Feed>),
}

/// What [`Engine::next_within`] found.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub(crate) enum Next {
    Batch(Batch),
    OnDevice(DeviceBatch),
    NotYet,
    Over,
}

impl Engine {
    pub(crate) fn start(loader: Loader, feed: Option<&FeedConfig>) -> fuelrail::Result<Engine> {
        Ok(match feed {
            None => Engine::Host(Box::new(loader)),
            Some(config) => Engine::Device(Box::new(Feed::start(loader, config.clone())?)),
        })
    }

    pub(crate) fn next_within(&mut self, patience: Duration) -> fuelrail::Result<Next> {
        Ok(match self {
            Engine::Host(loader) => match loader.next_batch_within(patience)? {
                Taken::Batch(batch) => Next::Batch(batch),
                Taken::NotYet => Next::NotYet,
                Taken::Over => Next::Over,
            },
            // Whoever asks for its tensors names the stream that they are for.
            Engine::Device(feed) => match feed.next_within(RawStream::LEGACY, patience)? {
                DeviceTaken::Batch(batch) => Next::OnDevice(batch),
                DeviceTaken::NotYet => Next::NotYet,
                DeviceTaken::Over => Next::Over,
            },
        })
    }

    /// Where the run stands; a batch on a device says it itself.
    pub(crate) fn state(&self) -> Option<State> {
        match self {
            Engine::Host(loader) => Some(loader.state()),
            Engine::Device(_) => None,
        }
    }

    /// The loader's counters, where they can be had, and those of the device's side.
    pub(crate) fn stats(&self) -> (Stats, Option<FeedStats>) {
        match self {
            Engine::Host(loader) => (loader.stats(), None),
            Engine::Device(feed) => (feed.loader_stats(PATIENCE).unwrap_or_default(), Some(feed.stats())),
        }
    }

    /// See [`Loader::hand_over`].
    pub(crate) fn handing_over(&self) -> fuelrail::Result<HandingOver> {
        Ok(match self {
            Engine::Host(loader) => Box::new(loader.handing_over()?),
            Engine::Device(feed) => Box::new(feed.handing_over()?),
        })
    }
}
