//! The resources of this process, as the kernel counts them.

use std::fs;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Memory, descriptors and threads of this process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Gauge {
    /// Resident anonymous memory: heap, stacks, the arena.
    pub rss_anon_bytes: u64,
    /// Resident pages of files: the program itself and its libraries.
    pub rss_file_bytes: u64,
    /// Resident shared memory: rings.
    pub rss_shmem_bytes: u64,
    /// Resident anonymous memory outside the arena: heap and stacks, where a leak would be.
    #[serde(default)]
    pub rss_heap_bytes: u64,
    pub descriptors: u64,
    pub threads: u64,
}

impl Gauge {
    /// Reads this process's values. Zeroes where `/proc` is not mounted.
    pub fn here() -> Gauge {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // Reading the folder opens one descriptor itself, the same at every measurement.
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
        Gauge { descriptors, ..parse(&status) }
    }

    /// As [`Gauge::here`], with the anonymous memory outside these parts of the address space, each given by start and length.
    pub fn beside(arena: impl Iterator<Item = (*const u8, usize)>) -> Gauge {
        let arena: Vec<_> = arena.map(|(start, len)| start.addr()..start.addr() + len).collect();
        let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        Gauge { rss_heap_bytes: anonymous_outside(&maps, &arena), ..Gauge::here() }
    }

    pub fn rss_bytes(&self) -> u64 {
        self.rss_anon_bytes + self.rss_file_bytes + self.rss_shmem_bytes
    }
}

/// Returns the anonymous bytes of all mappings that start outside these ranges, as `smaps` counts them.
fn anonymous_outside(maps: &str, arena: &[Range<usize>]) -> u64 {
    let (mut kilobytes, mut counts) = (0, false);
    for line in maps.lines() {
        // A mapping starts with a line `START-END …`; the lines about it start with `Name:`.
        let word = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, _)) = word.split_once('-').filter(|_| !word.ends_with(':')) {
            let start = usize::from_str_radix(start, 16).unwrap_or(0);
            counts = !arena.iter().any(|piece| piece.contains(&start));
        } else if counts && word == "Anonymous:" {
            kilobytes += line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    kilobytes << 10
}

fn parse(status: &str) -> Gauge {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let bytes = |name: &str| field(name).unwrap_or(0) << 10;
    Gauge {
        rss_anon_bytes: bytes("RssAnon:"),
        rss_file_bytes: bytes("RssFile:"),
        rss_shmem_bytes: bytes("RssShmem:"),
        threads: field("Threads:").unwrap_or(0),
        ..Gauge::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_arena_is_left_out() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonymous: 8 kB\nVmFlags: rd-wr\n\
                    3000-9000 rw-p 00000000 00:00 0 [heap]\nAnonymous: 16 kB\n";
        assert_eq!(anonymous_outside(maps, std::slice::from_ref(&(0x1000..0x3000))), 16 << 10);
        assert_eq!(anonymous_outside(maps, &[]), 24 << 10);
        let piece = vec![1u8; 32 << 20];
        let with = Gauge::beside(std::iter::empty()).rss_heap_bytes;
        let without =
            Gauge::beside(std::iter::once((piece.as_ptr().wrapping_sub(4096), piece.len() + 4096))).rss_heap_bytes;
        assert!(without + (24 << 20) < with, "{without} of {with}");
    }
}
