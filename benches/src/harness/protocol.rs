//! How the harness and a contestant talk: lines of text over a pipe, so that a contestant can be written in any language.
//!
//! 1. The harness starts the contestant with arguments of its own and this tail:
//!    `--uri URI --manifest FILE --batch-size N --arena BYTES --seed N`. `FILE` holds `key<TAB>size` lines; an object's
//!    address is `URI` with the key appended, percent-encoded.
//! 2. The contestant prints `ready` when it is started, imported and, if it was asked to, warmed up.
//! 3. For every line `go` on its standard input it does one pass over the whole set and prints one line of JSON, a [`Said`].
//! 4. At the end of its input it exits with code 0. When it fails it prints one line on standard error and exits with
//!    another code, at any time.
//!
//! The harness reads the processor time of the whole process tree before it writes `go` and after it has read the answer.
//!
//! Owns the shapes of what is said. Never starts a process.

use core::fmt;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use clap::Args;
use fuelrail::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The line a contestant says when it can start.
pub const READY: &str = "ready";
/// The line that starts a pass.
pub const GO: &str = "go";

/// What every contestant of a comparison is given alike, as it stands on its command line.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Where the keys begin: http://HOST:PORT/PREFIX/
    #[arg(long)]
    pub uri: String,
    /// The objects, as key<TAB>size lines in the order of the keys' bytes
    #[arg(long, value_name = "FILE")]
    pub manifest: PathBuf,
    /// Objects a batch
    #[arg(long, value_name = "N")]
    pub batch_size: u32,
    /// Memory the payload is placed in
    #[arg(long = "arena", value_name = "BYTES")]
    pub arena_bytes: u64,
    /// Seed of the order, for those that shuffle
    #[arg(long)]
    pub seed: u64,
}

impl Task {
    pub fn args(&self) -> Vec<OsString> {
        let pairs: [(&str, OsString); 5] = [
            ("--uri", self.uri.clone().into()),
            ("--manifest", self.manifest.clone().into()),
            ("--batch-size", self.batch_size.to_string().into()),
            ("--arena", self.arena_bytes.to_string().into()),
            ("--seed", self.seed.to_string().into()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.into(), value]).collect()
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Said {
    pub bytes: u64,
    pub objects: u64,
    /// From `go` to the last byte, s.
    pub wall_s: f64,
    /// From `go` to the first batch, µs, where there are batches.
    pub first_batch_us: Option<u64>,
    /// The [`SetHash`] over all objects got, where it was computed.
    pub hash: Option<String>,
    /// What it ran with, for the report.
    pub settings: String,
    /// Figures of its own that it can tell, by name. May be left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, f64>,
}

impl Said {
    pub fn parse(line: &str) -> Result<Said> {
        let bad = |why: String| {
            Error::new(Kind::Protocol, format!("printed `{}`, expected a result: {why}", quoted(line)))
                .with_hint("print one JSON line per `go` and nothing else on standard output")
        };
        let said: Said = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        if !(said.wall_s.is_finite() && said.wall_s >= 0.0) {
            return Err(bad(format!("wall_s is {}", said.wall_s)));
        }
        Ok(said)
    }
}

/// The beginning of a line, for an error.
pub(super) fn quoted(line: &str) -> String {
    line.chars().take(120).collect::<String>().escape_debug().to_string()
}

/// The contestant's side of the conversation: says `ready`, then does `pass` for every `go` until the input ends.
pub fn serve(input: impl BufRead, mut output: impl Write, mut pass: impl FnMut() -> Result<Said>) -> Result<()> {
    let broken = |error: std::io::Error| Error::new(Kind::File, format!("talking to the harness: {error}"));
    let mut say = |line: &str| writeln!(output, "{line}").and_then(|()| output.flush()).map_err(broken);
    say(READY)?;
    for line in input.lines() {
        let line = line.map_err(broken)?;
        if line.trim() != GO {
            return Err(Error::new(Kind::Protocol, format!("unexpected command from the harness: `{line}`"))
                .with_hint("say `go`"));
        }
        let said = pass()?;
        say(&serde_json::to_string(&said).expect("a result is a plain structure"))?;
    }
    Ok(())
}

/// One number over a set of objects that does not depend on the order they came in: the sum, modulo 2¹²⁸, of every object's
/// XXH3-128. Loaders that shuffle differently agree on it, and an object missing, doubled or wrong changes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetHash {
    sum: u128,
}

impl SetHash {
    pub fn add(&mut self, object: &[u8]) {
        self.add_hash(xxh3_128(object));
    }

    /// The hash of the same objects so many times.
    pub fn times(self, repeats: u32) -> SetHash {
        SetHash { sum: self.sum.wrapping_mul(repeats.into()) }
    }

    /// Adds an object by the XXH3-128 of its bytes.
    pub fn add_hash(&mut self, hash: u128) {
        self.sum = self.sum.wrapping_add(hash);
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for SetHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let of = |objects: &[&[u8]]| {
            let mut hash = SetHash::default();
            objects.iter().for_each(|object| hash.add(object));
            hash.to_string()
        };
        let known = of(&[b"a", b"b"]);
        assert_eq!((known.len(), &known), (32, &of(&[b"b", b"a"])));
        let mut once = SetHash::default();
        once.add(b"a");
        assert_eq!(once.times(3).to_string(), of(&[b"a", b"a", b"a"]));
        for other in [&[&b"a"[..]][..], &[b"a", b"b", b"b"], &[b"a", b"c"], &[b"ab"]] {
            assert_ne!(of(other), known);
        }
    }
}
