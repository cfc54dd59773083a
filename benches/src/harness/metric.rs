//! The figures that passes are compared by.
//!
//! Owns their names, units and definitions.

use serde::{Deserialize, Serialize};

use super::contestant::Pass;

/// A figure of a pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Processor time of the process tree per payload, s/GB.
    CpuSPerGb,
    /// Processor time of the process tree per object, µs.
    CpuUsPerObject,
    /// Payload per wall time, GB/s. More is better; of all others, less.
    GbPerS,
    /// Time to the first batch, µs.
    FirstBatchUs,
    /// Peak memory of the process tree, MB.
    PeakMemoryMb,
    /// Payload bytes that the loader's own code copied, per byte delivered.
    CopiedBytesPerByte,
}

impl Metric {
    /// All figures, in the order of tables.
    pub const ALL: [Metric; 6] = [
        Metric::CpuSPerGb,
        Metric::CpuUsPerObject,
        Metric::GbPerS,
        Metric::FirstBatchUs,
        Metric::PeakMemoryMb,
        Metric::CopiedBytesPerByte,
    ];

    /// The figure of a pass, where the pass has it.
    pub fn of(self, pass: &Pass) -> Option<f64> {
        match self {
            Metric::CpuSPerGb => pass.cpu_s_per_gb(),
            Metric::CpuUsPerObject => pass.cpu_us_per_object(),
            Metric::GbPerS => pass.gb_per_s(),
            Metric::FirstBatchUs => pass.first_batch_us.map(|us| us as f64),
            Metric::PeakMemoryMb => Some(pass.peak_memory_bytes as f64 / 1e6),
            Metric::CopiedBytesPerByte => pass.facts.get("copied_bytes_per_byte").copied(),
        }
    }

    /// Its name for people, with its unit.
    pub fn title(self) -> &'static str {
        match self {
            Metric::CpuSPerGb => "CPU-s/GB",
            Metric::CpuUsPerObject => "CPU µs/object",
            Metric::GbPerS => "GB/s",
            Metric::FirstBatchUs => "first batch, µs",
            Metric::PeakMemoryMb => "peak memory, MB",
            Metric::CopiedBytesPerByte => "copied bytes/byte",
        }
    }

    /// A value with as many digits as it deserves.
    pub fn text(self, value: f64) -> String {
        match self {
            Metric::CpuSPerGb | Metric::GbPerS => format!("{value:.3}"),
            Metric::CpuUsPerObject => format!("{value:.2}"),
            Metric::FirstBatchUs | Metric::PeakMemoryMb => format!("{value:.0}"),
            Metric::CopiedBytesPerByte => format!("{value:.4}"),
        }
    }
}
