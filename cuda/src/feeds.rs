//! Several devices in one process: a loader and a feed for each, every device a rank of its own.
//!
//! Owns the sharing out. Each device is fed by shards that sit on its NUMA node, from memory of that node, where the machine
//! says which that is. The two dies of a K80 are two devices on one node.

use fuelrail::LoaderBuilder;
use fuelrail_base::{Error, Kind, Result};

use crate::device::Device;
use crate::feed::{Feed, FeedConfig};

/// Starts feeds for several devices.
#[derive(Debug)]
pub struct Feeds;

impl Feeds {
    /// A feed for each of `devices`, in that order, each with its part of the builder's ranks, memory, cache and shards:
    /// with `rank(r, w)` device i of n is rank r × n + i of w × n. `config.device` is not looked at.
    ///
    /// # Errors
    /// `Usage` for no device, or one named twice; else what building a loader or starting a feed returns. Feeds started
    /// before are stopped.
    pub fn start(builder: &LoaderBuilder, devices: &[u32], config: &FeedConfig) -> Result<Vec<Feed>> {
        let twice = devices.iter().enumerate().find(|(at, device)| devices[..*at].contains(device));
        if devices.is_empty() || twice.is_some() {
            let cause = format!("devices {devices:?}");
            return Err(Error::new(Kind::Usage, cause).cure("name one device at least, and each once"));
        }
        let parts = u16::try_from(devices.len()).unwrap_or(u16::MAX);
        (0..parts)
            .zip(devices)
            .map(|(part, &device)| {
                let node = Device::open(device)?.facts().node;
                let mut builder = builder.clone().part(part, parts);
                if let Some(node) = node.filter(|_| builder.config().pin && builder.config().near.is_none()) {
                    builder = builder.near(node);
                }
                Feed::start(builder.build()?, FeedConfig { device, ..config.clone() })
            })
            .collect()
    }
}
