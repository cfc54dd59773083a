//! The limits of a node, as arithmetic over measured costs, and how well that arithmetic predicts what was measured.
//!
//! Owns the model. Never measures and plays nothing.

use fuelrail_base::{Error, Kind, Result};
use serde::Serialize;
use serde_json::Value;

/// Costs measured on one machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Costs {
    /// Payload per second of a shard's processor time, GB.
    pub gb_per_core_s: f64,
    /// Mean length of the objects it was measured with, bytes.
    pub object_bytes: f64,
    /// What was measured with more shards: (shards, wall-clock scaling, scaling of work).
    pub scaling: Vec<(u32, f64, f64)>,
    /// Work per core with the most shards measured, over that with one: what a core more costs the others.
    pub work_kept: f64,
}

/// The node asked about.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Node {
    /// Cores given to shards.
    pub cores: u32,
    /// Its network card, bit/s.
    pub nic_bits_per_s: f64,
    /// Bytes of payload in a packet, and what it takes on the wire with everything around it.
    pub packet_bytes: (f64, f64),
    /// Memory bandwidth, bytes per second.
    pub memory_bytes_per_s: f64,
    /// Times a payload byte crosses memory: at least and at most.
    pub memory_crossings: (f64, f64),
    /// What one connection brings, bytes per second; stores limit it.
    pub connection_bytes_per_s: f64,
    /// Connections of each shard.
    pub connections: u32,
    /// Time to the first byte of an answer, s.
    pub latency_s: f64,
    /// Requests per second the bucket takes; `None` when it takes any.
    pub requests_per_s: Option<f64>,
}

/// One limit on one node.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ceiling {
    /// `cores`, `network card`, `memory`, `connections`, `requests` or `logic`.
    pub name: &'static str,
    /// Payload it lets through, bytes per second.
    pub bytes_per_s: f64,
    /// How the figure comes about.
    pub because: String,
}

/// What one node would do.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Forecast {
    /// The node.
    pub node: Node,
    /// All limits, the lowest first.
    pub ceilings: Vec<Ceiling>,
}

/// The prediction of the model for what was measured, beside the measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Validation {
    /// Shards.
    pub shards: u32,
    /// Throughput over that of one shard as the model has it: shards, less what a core more costs the others.
    pub predicted: f64,
    /// The same on the wall clock.
    pub measured_wall: f64,
    /// The same per second of the shards' own work.
    pub measured_work: f64,
}

/// A card this busy over a short run is a full one: the rest is the run's start and end.
const LOGIC_FULL: f64 = 0.95;

impl Costs {
    /// From a result of `fuelrail bench cores` or `bench read`.
    ///
    /// # Errors
    /// `Usage` when it is neither, or of a run that delivered nothing.
    pub fn of_result(text: &str) -> Result<Costs> {
        let wrong = || {
            Error::new(Kind::Usage, "this is no result of a run that delivered anything")
                .cure("give the JSON of `fuelrail bench cores` or `fuelrail bench read`")
        };
        let value: Value = serde_json::from_str(text).map_err(|_| wrong())?;
        let positive = |value: &Value| value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        let costs = match value["rows"].as_array() {
            Some(rows) => {
                let row = rows.first().ok_or_else(wrong)?;
                let each = rows.iter().filter_map(|row| {
                    let shards = u32::try_from(row["shards"].as_u64()?).ok()?;
                    Some((shards, positive(&row["scaling"]["median"])?, positive(&row["scaling_of_work"])?))
                });
                let kept = rows.last().and_then(|row| positive(&row["work_per_core"]["median"]));
                Some((
                    positive(&row["gb_per_core_s"]["median"]),
                    positive(&value["object_bytes_mean"]),
                    each.collect(),
                    kept.unwrap_or(1.0),
                ))
            }
            None => {
                let shards = value["shards"].as_array().map(Vec::as_slice).unwrap_or_default();
                let seconds = |shard: &Value| Some(shard["cpu_user_s"].as_f64()? + shard["cpu_system_s"].as_f64()?);
                let cpu_s: f64 = shards.iter().filter_map(seconds).sum();
                let (bytes, samples) = (value["bytes"].as_f64(), value["samples"].as_f64());
                bytes
                    .zip(samples)
                    .filter(|(bytes, samples)| cpu_s > 0.0 && *bytes > 0.0 && *samples > 0.0)
                    .map(|(bytes, samples)| (Some(bytes / 1e9 / cpu_s), Some(bytes / samples), Vec::new(), 1.0))
            }
        };
        let Some((Some(gb_per_core_s), Some(object_bytes), scaling, work_kept)) = costs else { return Err(wrong()) };
        Ok(Costs { gb_per_core_s, object_bytes, scaling, work_kept })
    }

    /// The model's word beside what was measured, for every count of shards there is.
    #[must_use]
    pub fn validation(&self) -> Vec<Validation> {
        let checks = self.scaling.iter().map(|&(shards, measured_wall, measured_work)| Validation {
            shards,
            predicted: f64::from(shards) * self.kept(shards),
            measured_wall,
            measured_work,
        });
        checks.collect()
    }

    /// Share of one core's work that is left to each of `shards`: nothing is shared but memory and the mesh, whose letters
    /// grow with the share of blocks that belong to another shard, and that share tends to all of them.
    fn kept(&self, shards: u32) -> f64 {
        let measured_with = self.scaling.iter().map(|(shards, ..)| *shards).max().unwrap_or(1);
        let foreign = |shards: u32| 1.0 - 1.0 / f64::from(shards.max(1));
        if measured_with < 2 {
            return 1.0;
        }
        // Faster with more cores is noise.
        let lost = (1.0 - self.work_kept).max(0.0);
        (1.0 - lost * foreign(shards) / foreign(measured_with)).max(0.0)
    }
}

/// What a node would do, the lowest limit first. `share` is the part of its card that the shipping logic keeps busy
/// ([`logic_share`](super::logic_share)), when it was played.
#[must_use]
pub fn forecast(costs: &Costs, node: &Node, share: Option<f64>) -> Forecast {
    let cores = f64::from(node.cores);
    let kept = costs.kept(node.cores);
    let card = node.nic_bits_per_s / 8.0 * node.packet_bytes.0 / node.packet_bytes.1;
    let (least, most) = node.memory_crossings;
    let connections = cores * f64::from(node.connections);
    // While an answer is awaited its connection brings nothing.
    let busy_s = costs.object_bytes / node.connection_bytes_per_s;
    let one_connection = costs.object_bytes / (busy_s + node.latency_s);
    let mut ceilings = vec![
        Ceiling {
            name: "cores",
            bytes_per_s: cores * costs.gb_per_core_s * 1e9 * kept,
            because: format!(
                "{} cores at {:.2} GB/s, {:.1} % of it kept",
                node.cores,
                costs.gb_per_core_s,
                kept * 100.0
            ),
        },
        Ceiling {
            name: "network card",
            bytes_per_s: card,
            because: format!("{} of {} bytes on the wire are payload", node.packet_bytes.0, node.packet_bytes.1),
        },
        Ceiling {
            name: "memory",
            bytes_per_s: node.memory_bytes_per_s / most,
            because: format!(
                "{:.0} GB/s crossed {most} times by every byte (at {least} times {:.1} GB/s)",
                node.memory_bytes_per_s / 1e9,
                node.memory_bytes_per_s / least / 1e9
            ),
        },
        Ceiling {
            name: "connections",
            bytes_per_s: connections * one_connection,
            because: format!(
                "{connections:.0} connections at {:.0} MB/s, {:.1} ms to the first byte of each object",
                one_connection / 1e6,
                node.latency_s * 1e3
            ),
        },
    ];
    if let Some(rate) = node.requests_per_s {
        let because = format!("{rate:.0} requests a second of {:.0} bytes", costs.object_bytes);
        ceilings.push(Ceiling { name: "requests", bytes_per_s: rate * costs.object_bytes, because });
    }
    if let Some(share) = share {
        let because = format!("{} shards in virtual time keep {:.1} % of the card busy", node.cores, share * 100.0);
        let bytes_per_s = if share >= LOGIC_FULL { card } else { card * share };
        ceilings.push(Ceiling { name: "logic", bytes_per_s, because });
    }
    ceilings.sort_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
    Forecast { node: node.clone(), ceilings }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cores: u32, gbit: f64) -> Node {
        Node {
            cores,
            nic_bits_per_s: gbit * 1e9,
            packet_bytes: (8948.0, 9038.0),
            memory_bytes_per_s: 300e9,
            memory_crossings: (2.0, 3.0),
            connection_bytes_per_s: 100e6,
            connections: 128,
            latency_s: 0.02,
            requests_per_s: None,
        }
    }

    const CORES: &str = r#"{"object_bytes_mean": 67108864, "rows": [
        {"shards": 1, "gb_per_core_s": {"median": 5.0}, "scaling": {"median": 1.0}, "scaling_of_work": 1.0,
         "work_per_core": {"median": 1.0}},
        {"shards": 2, "gb_per_core_s": {"median": 4.9}, "scaling": {"median": 1.94}, "scaling_of_work": 1.96,
         "work_per_core": {"median": 0.98}}]}"#;

    #[test]
    fn the_lowest_limit_comes_first() {
        let costs = Costs::of_result(CORES).unwrap();
        let first = |node: &Node| forecast(&costs, node, None).ceilings[0].name;
        assert_eq!(first(&node(32, 100.0)), "network card");
        assert_eq!(first(&node(4, 400.0)), "cores");
        assert_eq!(first(&Node { memory_bytes_per_s: 60e9, ..node(32, 400.0) }), "memory");
        assert_eq!(first(&Node { connections: 2, ..node(32, 400.0) }), "connections");
        assert_eq!(first(&Node { requests_per_s: Some(10.0), ..node(32, 400.0) }), "requests");
        assert_eq!(forecast(&costs, &node(32, 100.0), Some(0.5)).ceilings[0].name, "logic");
        let card = forecast(&costs, &node(32, 100.0), None).ceilings[0].bytes_per_s;
        assert!((card - 12.3755e9).abs() < 1e6, "{card}");
    }

    #[test]
    fn the_model_agrees_with_what_it_was_made_from() {
        let costs = Costs::of_result(CORES).unwrap();
        let checks = costs.validation();
        assert_eq!((checks.len(), checks[0].predicted), (2, 1.0));
        assert!((checks[1].predicted - checks[1].measured_work).abs() < 1e-9, "{checks:?}");
        // Two per cent lost where half the blocks are another's: four where nearly all are.
        assert!((costs.kept(32) - (1.0 - 0.04 * 31.0 / 32.0)).abs() < 1e-9, "{}", costs.kept(32));
    }

    #[test]
    fn results_of_both_kinds_are_read_and_others_refused() {
        let read = r#"{"bytes": 4000000000, "samples": 1000, "shards": [{"cpu_user_s": 0.25, "cpu_system_s": 0.75}]}"#;
        let costs = Costs::of_result(read).unwrap();
        assert_eq!((costs.gb_per_core_s, costs.object_bytes, costs.work_kept), (4.0, 4e6, 1.0));
        for wrong in ["", "{}", r#"{"rows": []}"#, r#"{"bytes": 0, "samples": 0, "shards": []}"#] {
            let error = Costs::of_result(wrong).unwrap_err();
            assert!(error.kind() == Kind::Usage && error.to_string().contains("bench cores"), "{error}");
        }
    }
}
