//! What this process holds, as the kernel counts it. Owns nothing.

use std::fs;

use serde::{Deserialize, Serialize};

/// Memory, descriptors and threads of this process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Gauge {
    /// Resident memory of its own: heap, stacks, the arena.
    pub rss_anon_bytes: u64,
    /// Resident pages of files: the program itself and its libraries.
    pub rss_file_bytes: u64,
    /// Resident shared memory: rings.
    pub rss_shmem_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
}

impl Gauge {
    /// This process, now. Zeroes where `/proc` is not mounted.
    #[must_use]
    pub fn here() -> Gauge {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // The folder that is read is open while it is: it counts every time alike.
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
        Gauge { descriptors, ..parse(&status) }
    }

    /// All resident memory.
    #[must_use]
    pub fn rss_bytes(&self) -> u64 {
        self.rss_anon_bytes + self.rss_file_bytes + self.rss_shmem_bytes
    }
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
        descriptors: 0,
        threads: field("Threads:").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = "VmRSS:\t 9 kB\nRssAnon:\t    2048 kB\nRssFile:\t 1024 kB\nRssShmem:\t 4 kB\nThreads:\t3\n";
        let gauge = parse(text);
        assert_eq!((gauge.rss_bytes(), gauge.threads), ((2048 + 1024 + 4) << 10, 3));
        assert_eq!(parse(""), Gauge::default());
    }

    #[test]
    fn sees_what_this_process_opens() {
        let before = Gauge::here();
        let many: Vec<fs::File> = (0..200).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close a few beside it.
        assert!(Gauge::here().descriptors > before.descriptors + 100);
        drop(many);
        assert!(before.rss_anon_bytes > 0 && before.threads > 0, "{before:?}");
    }
}
