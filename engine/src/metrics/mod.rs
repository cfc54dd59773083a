//! What a loader measures as a page for Prometheus, and the server that shows it.
//!
//! Base units, counters that end in `_total`, ratios from 0 to 1, and never a key or a name of an object as a label.

#[cfg_attr(not(feature = "clouds"), path = "absent.rs")]
mod page;

pub(crate) use page::Metrics;

use crate::stats::{DiskFacts, Quantiles, Stats};
use core::fmt::{Display, Write};

/// Writes families of metrics, each with its help and type.
struct Page {
    text: String,
    rank: u32,
}

impl Page {
    /// A family with one value for each label.
    fn family<V: Display>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, V)>) {
        self.head(name, help, if name.ends_with("_total") { "counter" } else { "gauge" });
        values.into_iter().for_each(|(label, value)| self.line(name, &label, value));
    }

    /// A family of times: quantiles of them since the start, their sum, and how many there were.
    fn summary(&mut self, name: &str, help: &str, of: Quantiles) {
        let seconds = |us: u64| us as f64 / 1e6;
        self.head(name, help, "summary");
        for (quantile, us) in [("0.5", of.p50), ("0.99", of.p99), ("0.999", of.p999)] {
            self.line(name, &label("quantile", quantile), seconds(us));
        }
        self.line(&format!("{name}_sum"), "", seconds(of.sum));
        self.line(&format!("{name}_count"), "", of.count);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to memory cannot fail.
        let _ = writeln!(self.text, "# HELP fuelrail_{name} {help}\n# TYPE fuelrail_{name} {kind}");
    }

    fn line(&mut self, name: &str, label: &str, value: impl Display) {
        let _ = writeln!(self.text, "fuelrail_{name}{{rank=\"{}\"{label}}} {value}", self.rank);
    }

    fn value(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help, [(String::new(), value)]);
    }

    /// How the disk does, of which there is one where blocks are kept.
    fn disk(&mut self, disk: &DiskFacts) {
        self.value("disk_blocks", "Blocks on disk.", disk.blocks);
        self.value("disk_written_bytes_total", "Payload bytes written to disk.", disk.written_bytes);
        let lost = "Blocks that the disk did not return as they were written: fetched again.";
        self.value("disk_lost_total", lost, disk.lost);
        self.value("disk_refused_total", "Blocks worth keeping that found no room on disk.", disk.refused);
        self.value("disk_skipped_total", "Blocks not kept because writes were behind.", disk.skipped);
        self.value("disk_write_failures_total", "Blocks that could not be written to disk.", disk.write_failures);
        self.value("disk_failures_total", "Operations on files and directories that failed.", disk.failures);
        let failed = "Directories in which no further segment is made because they failed.";
        self.value("disk_directories_failed", failed, disk.directories_failed);
    }
}

fn label(name: &str, value: &str) -> String {
    format!(",{name}=\"{value}\"")
}

impl Stats {
    /// The counters in the text format of Prometheus (`text/plain; version=0.0.4`), of the rank with this number.
    #[must_use]
    pub fn prometheus(&self, rank: u32) -> String {
        let mut page = Page { text: String::with_capacity(8192), rank };
        page.family("build_info", "The version of the engine.", [(label("version", env!("CARGO_PKG_VERSION")), 1)]);
        page.value("batches_total", "Batches delivered.", self.batches);
        page.value("samples_total", "Samples delivered.", self.samples);
        page.value(
            "samples_left_out_total",
            "Samples that could not be had, under skip and quarantine.",
            self.left_out,
        );
        page.value("delivered_bytes_total", "Payload bytes delivered.", self.bytes);
        page.value("data_wait_seconds_total", "Time that the trainer waited for batches.", self.data_wait_s);
        page.value("readiness_ratio", "Share of the batches that were there when they were asked for.", self.readiness);
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.hit_bytes);
        let peers = self.peers.as_ref().map_or(0, |peers| peers.hit_bytes);
        let sources = [("bucket", self.landed_bytes), ("ram", self.hit_bytes), ("disk", on_disk), ("peers", peers)];
        let sources = sources.map(|(source, bytes)| (label("source", source), bytes));
        page.family("source_bytes_total", "Payload bytes by where they came from.", sources);
        page.value("requests_total", "Requests sent to the bucket.", self.requests);
        page.value("retries_total", "Attempts after the first.", self.retries);
        page.value("throttled_total", "Times the bucket asked to slow down.", self.throttled);
        page.value(
            "hedges_total",
            "Requests sent a second time because the first took far longer than usual.",
            self.hedges,
        );
        page.value("blocks_given_up_total", "Blocks given up.", self.given_up);
        page.value("cache_evictions_total", "Blocks dropped from RAM.", self.evictions);
        page.value(
            "hit_ratio",
            "Share of the blocks asked for that took no request to the bucket of their own.",
            self.hit_ratio,
        );
        page.value("connections_open", "Connections to the bucket that are open.", self.connections_open);
        page.value("connections_failed_total", "Connections ended by an error.", self.connections_failed);
        let latency = "From a request to the last byte of its block, since the start.";
        page.summary("get_latency_seconds", latency, self.get_latency_us);
        let gates = || self.gates.iter().map(|gate| label("queue", &gate.name));
        let occupancy = gates().zip(self.gates.iter().map(|gate| gate.occupancy_mean));
        page.family("queue_occupancy", "Mean number of blocks or batches in a queue: why batches wait.", occupancy);
        let capacity = gates().zip(self.gates.iter().map(|gate| gate.capacity));
        page.family("queue_capacity", "Most that a queue may hold.", capacity);
        self.disk.iter().for_each(|disk| page.disk(disk));
        if let Some(peers) = &self.peers {
            page.value("peer_blocks_total", "Blocks that other ranks sent.", peers.hits);
            page.value(
                "peer_misses_total",
                "Blocks that other ranks were asked for and did not send in time.",
                peers.misses,
            );
            page.value("peer_served_blocks_total", "Blocks sent to other ranks.", peers.served);
            page.value("peer_served_bytes_total", "Payload bytes sent to other ranks.", peers.served_bytes);
            page.value("peer_refused_total", "Requests without the job's secret or certificate.", peers.refused);
        }
        page.value("memory_limit_bytes", "The setting memory_limit, or its default.", self.memory.limit_bytes);
        let total = "What the loader takes of memory at most: within memory_limit, and tables and threads beside it.";
        page.value("memory_total_bytes", total, self.memory.total_bytes());
        let cpu: f64 = self.shards.iter().map(|shard| shard.cpu_user_s + shard.cpu_system_s).sum();
        page.value("shard_cpu_seconds_total", "Processor time of the shards.", cpu);
        page.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let text = Stats { batches: 3, data_wait_s: 0.5, ..Stats::default() }.prometheus(2);
        assert!(text.contains("\nfuelrail_batches_total{rank=\"2\"} 3\n"), "{text}");
        assert!(text.contains("fuelrail_source_bytes_total{rank=\"2\",source=\"peers\"} 0\n"), "{text}");
        let mut families = std::collections::BTreeSet::new();
        let mut lines = text.lines().peekable();
        while let Some(help) = lines.next() {
            let name = help.strip_prefix("# HELP ").unwrap().split(' ').next().unwrap().to_owned();
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            let mut suffixes = Vec::new();
            assert!(!["_us", "_ms", "_percent", "_mb"].iter().any(|unit| name.contains(unit)), "{name}: base units");
            while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
                let (named, value) = sample.rsplit_once(' ').unwrap();
                let (suffix, labels) = named.strip_prefix(&*name).unwrap().split_once('{').unwrap();
                assert!(labels.starts_with("rank=\"2\"") && labels.ends_with('}'), "{sample}");
                assert_eq!(labels.contains("quantile="), kind == "summary" && suffix.is_empty(), "{sample}");
                suffixes.push(suffix);
                assert!(value.parse::<f64>().unwrap().is_finite(), "{sample}");
            }
            suffixes.dedup();
            let due: &[&str] = if kind == "summary" { &["", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.is_empty() || suffixes == due, "{name}: {suffixes:?}");
            assert!(families.insert(name), "a family comes once");
        }
        assert!(families.len() > 20);
    }
}
