//! Several loaders in one process: what part of ranks, memory and shards each gets, and near which node it sits.
//!
//! Owns arithmetic on settings, nothing else.

use crate::builder::LoaderBuilder;
use crate::config::Config;
use fuelrail_io::{Topology, default_budget};

impl LoaderBuilder {
    /// The NUMA node, such as a GPU's, on whose cores shards are seated first.
    #[must_use]
    pub fn near(mut self, node: u16) -> LoaderBuilder {
        self.config.near = Some(node);
        self
    }

    /// The settings so far.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// This loader becomes part `part` of `parts` that share what is set: each is a rank of its own, and gets an equal part of
    /// memory, cache, shards and decoding threads; an audit log gets the part's number behind its name.
    ///
    /// # Panics
    /// When there is no such part.
    #[must_use]
    pub fn part(mut self, part: u16, parts: u16) -> LoaderBuilder {
        assert!(part < parts, "part {part} of {parts}");
        let config = &mut self.config;
        if config.memory_limit_bytes == 0 {
            config.memory_limit_bytes = default_budget().bytes;
        }
        if config.shards == 0 {
            config.shards = u16::try_from(Topology::here().shards()).unwrap_or(u16::MAX);
        }
        if !config.decode.is_empty() {
            let left = Topology::here().cores.len().saturating_sub(usize::from(config.shards));
            let threads = if config.decode_threads == 0 { left } else { config.decode_threads };
            config.decode_threads = (threads / usize::from(parts)).max(1);
        }
        (config.rank, config.world) =
            (config.rank * u32::from(parts) + u32::from(part), config.world * u32::from(parts));
        config.memory_limit_bytes /= u64::from(parts);
        config.cache_limit_bytes /= u64::from(parts);
        config.shards = (config.shards / parts).max(1);
        if let Some(path) = config.audit.as_mut().filter(|_| parts > 1) {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{part}"));
            *path = name.into();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_ranks_that_share_what_is_set() {
        let whole = LoaderBuilder::new(Config {
            memory_limit_bytes: 1 << 20,
            cache_limit_bytes: 1 << 10,
            shards: 5,
            audit: Some("log".into()),
            ..Config::default()
        });
        let whole = whole.rank(1, 3);
        let part = whole.clone().part(1, 2);
        let config = part.config();
        assert_eq!((config.rank, config.world, config.shards), (3, 6, 2));
        assert_eq!((config.memory_limit_bytes, config.cache_limit_bytes), (1 << 19, 1 << 9));
        assert_eq!(config.audit.as_deref(), Some("log.1".as_ref()));
        assert_eq!(whole.clone().part(0, 1).config(), whole.config(), "one part is the whole");
        let chosen = LoaderBuilder::new(Config::default()).part(0, 2);
        assert!(chosen.config().memory_limit_bytes > 0 && chosen.config().shards >= 1, "what is chosen is shared too");
        assert_eq!(whole.part(0, 64).config().shards, 1);
    }
}
