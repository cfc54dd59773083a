//! The options that questions with contestants share: where to read from, what, how often; the progress bar; Ctrl-C.
//!
//! Owns the options' names.

use std::path::PathBuf;
use std::str::FromStr;

use crate::harness::{Pass, ShapeName, Transport, Turn, VenueConfig, VenueKind};
use crate::line::Step;
use clap::Args;
use fuelrail::{ByteSize, Error, Kind, Result, RingChoice};

use fuelrail_cli::screen::{Bar, note};

/// Where to read from and what.
#[derive(Args, Clone, Debug)]
pub(crate) struct VenueArgs {
    /// The server: nginx on loopback, nginx behind a network namespace of its own (root), or the embedded bucket
    #[arg(long, value_enum, default_value = "loopback")]
    venue: VenueKind,
    /// Hold the namespace's link to a rate, for example 1gbit or 10gbit
    #[arg(long, value_name = "RATE")]
    link: Option<LinkRate>,
    /// Where the objects are written and kept [default: a folder in /dev/shm, removed at the end]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Shapes, with commas: large, volumes, mid, tiny, first
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "large,mid,tiny")]
    pub(crate) shapes: Vec<ShapeName>,
    /// Fewer and smaller objects: figures are published for 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Rounds measured, after one for warmth
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Let server and contestants run on any core
    #[arg(long)]
    no_pin: bool,
}

/// Bits per second with a unit: `1gbit`, `500mbit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LinkRate(u64);

impl FromStr for LinkRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<LinkRate> {
        let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
        let lower = text.to_ascii_lowercase();
        let found = units.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?.trim(), factor)));
        let rate = found.and_then(|(number, factor)| Some(number.parse::<f64>().ok()? * factor));
        rate.filter(|rate| rate.is_finite() && *rate >= 1.0).map(|rate| LinkRate(rate as u64)).ok_or_else(|| {
            Error::new(Kind::Usage, format!("'{text}' is not a rate")).cure("write for example 1gbit or 500mbit")
        })
    }
}

impl VenueArgs {
    /// The venue asked for.
    pub(crate) fn config(&self, transports: &[Transport]) -> VenueConfig {
        let kind = self.venue;
        let config =
            if self.no_pin { VenueConfig { kind, ..VenueConfig::default() } } else { VenueConfig::pinned(kind) };
        VenueConfig {
            link_bits_per_s: self.link.map(|rate| rate.0),
            folder: self.dir.clone(),
            tls: transports.contains(&Transport::Tls),
            ..config
        }
    }
}

/// A ring as settings name it.
pub(super) fn ring_name(choice: RingChoice) -> &'static str {
    match choice {
        RingChoice::Auto => "auto",
        RingChoice::Only(backend) => backend.name(),
    }
}

/// A progress bar over turns, with the contest's and the contestant's name beside it; where no terminal watches, a line for
/// everything that is done.
pub(crate) struct Turns {
    bar: Bar,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns { bar: Bar::new(Some(0), "") }
    }

    /// Shows a step.
    pub(crate) fn show(&self, step: Step<'_>) {
        match step {
            Step::Laying(shape, done, total) => {
                self.bar.total(total >> 20);
                self.bar.at(done >> 20, || format!("MiB of {shape} written"));
                if self.bar.is_hidden() && done == total {
                    note(&format!("{shape}: {} written", ByteSize(total)));
                }
            }
            Step::Turn(contest, turn) => self.turn(contest, turn),
        }
    }

    /// Shows whose turn it is.
    pub(crate) fn turn(&self, contest: &str, turn: Turn<'_>) {
        self.bar.total(turn.total.into());
        self.bar.at(turn.done.into(), || format!("{contest}: {}", turn.name));
        if let (true, Some(ended)) = (self.bar.is_hidden(), turn.ended) {
            let Turn { name, stage, done, total, .. } = turn;
            note(&format!("{contest}, {stage}, {name} ({} of {total}): {}", done + 1, came_to(ended)));
        }
    }
}

/// What a pass came to, in a few words.
fn came_to(ended: Result<&Pass, &str>) -> String {
    match ended {
        Ok(pass) => {
            let cost = pass.cpu_s_per_gb().map_or_else(String::new, |cost| format!(", {cost:.3} CPU-s/GB"));
            format!("{:.2} s{cost}", pass.wall_s)
        }
        Err(why) => format!("failed, {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_carry_units() {
        let rate = |text: &str| text.parse::<LinkRate>().map(|rate| rate.0);
        assert_eq!((rate("1gbit").unwrap(), rate("2.5 Mbit").unwrap()), (1_000_000_000, 2_500_000));
        for bad in ["fast", "1", "1gb", "-1gbit", "nanbit"] {
            assert_eq!(rate(bad).unwrap_err().kind(), Kind::Usage, "{bad}");
        }
    }
}
