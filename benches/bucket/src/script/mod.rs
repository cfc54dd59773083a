//! Scripts: how a bucket misbehaves. A script is plain configuration, read from JSON (serde) or from one line of text
//! (`FromStr`); what a running bucket makes of it is decided in `act`.
//!
//! Every drawn fault is a function of `(seed, operation and key, attempt number on that key)`, so a run repeats itself
//! whatever the interleaving of connections.

mod act;
mod text;

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub(crate) use act::{Act, Drawn, Operation, any_matches};
pub(crate) use text::word;

/// Longest latency drawn from a distribution without an end.
pub(crate) const LATENCY_MAX_US: u64 = 60_000_000;

/// How a bucket behaves beyond serving what it is asked for. The default does nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Chooses every draw.
    pub seed: u64,
    /// Wait before every answer, listings included.
    pub latency: Latency,
    /// Pace of body bytes on one connection.
    pub bandwidth_connection_bytes_per_s: Option<u64>,
    /// Pace of body bytes over all connections together.
    pub bandwidth_total_bytes_per_s: Option<u64>,
    /// Requests per second above which the answer is 503 `SlowDown`; a tenth of a second of requests may come at once.
    pub slowdown_over_requests_per_s: Option<u32>,
    /// `Retry-After` of every 503.
    pub retry_after_s: Option<u32>,
    /// Faults drawn per request. Probabilities add up to at most one: a request meets at most one of them.
    pub faults: Vec<Fault>,
    /// No operation on a key (`GET`, `HEAD`, …) meets more than this many drawn faults, so a client that retries ends.
    pub faults_per_key_max: u32,
    /// Drawn faults meet only keys that match one of these patterns; empty means every key. With patterns, listings
    /// meet none. `*` is any run of characters, `?` one. Requests of uploads in parts stand as `KEY?uploads`, `KEY?partNumber=7`,
    /// `KEY?uploadId`, `KEY?block=ID` and `KEY?blocklist`.
    pub only_keys: Vec<String>,
    /// Keys that are listed but answer 404 for ever.
    pub missing_keys: Vec<String>,
    /// Keys whose content and entity tag were replaced after the listing, for ever.
    pub changed_keys: Vec<String>,
    /// A connection's answer of this number says `Connection: close` and closes.
    pub close_after_requests: Option<u32>,
    /// A connection's answer of this number is whole and says nothing, and the connection closes after it.
    pub drop_after_requests: Option<u32>,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            seed: 0,
            latency: Latency::None,
            bandwidth_connection_bytes_per_s: None,
            bandwidth_total_bytes_per_s: None,
            slowdown_over_requests_per_s: None,
            retry_after_s: None,
            faults: Vec::new(),
            faults_per_key_max: 3,
            only_keys: Vec::new(),
            missing_keys: Vec::new(),
            changed_keys: Vec::new(),
            close_after_requests: None,
            drop_after_requests: None,
        }
    }
}

/// A latency distribution. The wait is exact to about a tenth of a millisecond.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Latency {
    /// No added wait.
    #[default]
    None,
    /// Always the same.
    Fixed {
        /// The wait.
        us: u64,
    },
    /// Every value between two equally likely.
    Uniform {
        /// Shortest wait.
        min_us: u64,
        /// Longest wait.
        max_us: u64,
    },
    /// The logarithm is normal.
    LogNormal {
        /// Half of the waits are shorter.
        median_us: u64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Heavy tail: waits above `x` are `(min / x)^alpha` of all, cut at one minute.
    Pareto {
        /// Shortest wait.
        min_us: u64,
        /// Tail exponent; the smaller, the heavier.
        alpha: f64,
    },
}

/// One kind of misbehaviour and how often it happens.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// How often, 0 to 1.
    pub probability: f64,
    /// For `reset`, `truncate`, `stall` and `corrupt`: the body byte it happens at, cut to the body's last; absent: drawn.
    /// For `length_long` and `length_short`: by how many bytes the promised length is wrong; absent: drawn up to 4 096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// For `stall`: how long; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

impl Fault {
    /// A fault of this kind and probability, its place drawn.
    pub fn new(kind: FaultKind, probability: f64) -> Fault {
        Fault { kind, probability, at: None, for_ms: None }
    }
}

/// Kinds of misbehaviour, as scripted and as counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// 503 `SlowDown`, any operation.
    Slowdown,
    /// 500 `InternalError`, any operation.
    Error,
    /// The connection is reset (RST) at a byte of the body. The client receives at most the bytes before it.
    Reset,
    /// The connection is closed cleanly (FIN) at a byte of the body.
    Truncate,
    /// Nothing is sent for a while, or for ever, at a byte of the body.
    Stall,
    /// `Content-Length` promises more than the body that follows; then the connection closes.
    LengthLong,
    /// `Content-Length` promises less than the body that follows; then the connection closes.
    LengthShort,
    /// The right content under a wrong entity tag.
    WrongEtag,
    /// Content and entity tag of another generation than the listed one, for this answer only, as a stale or
    /// overwritten replica gives.
    Changed,
    /// Random bytes in place of the head; then the connection closes.
    Garbage,
    /// A head of a mebibyte that does not end; then the connection closes.
    OverlongHead,
    /// A status line that is none, with the object after it; then the connection closes.
    BadStatus,
    /// Chunked transfer coding in place of `Content-Length`. Not an error, and not bounded per key.
    Chunked,
    /// A bit of what a `PUT` brings is flipped on the way.
    Corrupt,
    /// What writes is done, and the connection closes without an answer.
    Lost,
    /// An upload in parts is not completed, and the answer is 200 with an error document, as S3 has it.
    HiddenError,
    /// Counted only: 503 because of the request rate.
    SlowdownRate,
    /// Counted only: 404 for a key of `missing_keys`.
    MissingKey,
    /// Counted only: an answer from a key of `changed_keys`.
    ChangedKey,
    /// Counted only: `Connection: close` after the scripted number of requests.
    CloseAfter,
    /// Counted only: closed silently after the scripted number of requests.
    DropAfter,
}

impl FaultKind {
    /// Every kind that a script can draw by probability.
    pub const DRAWN: [FaultKind; 16] = [
        FaultKind::Slowdown,
        FaultKind::Error,
        FaultKind::Reset,
        FaultKind::Truncate,
        FaultKind::Stall,
        FaultKind::LengthLong,
        FaultKind::LengthShort,
        FaultKind::WrongEtag,
        FaultKind::Changed,
        FaultKind::Garbage,
        FaultKind::OverlongHead,
        FaultKind::BadStatus,
        FaultKind::Chunked,
        FaultKind::Corrupt,
        FaultKind::Lost,
        FaultKind::HiddenError,
    ];

    /// Those of [`FaultKind::DRAWN`] that can meet who reads.
    pub fn reading() -> impl Iterator<Item = FaultKind> {
        use FaultKind::{Corrupt, HiddenError, Lost};
        FaultKind::DRAWN.into_iter().filter(|kind| !matches!(kind, Corrupt | Lost | HiddenError))
    }

    fn takes_at(self) -> bool {
        use FaultKind::{Corrupt, LengthLong, LengthShort, Reset, Stall, Truncate};
        matches!(self, Reset | Truncate | Stall | LengthLong | LengthShort | Corrupt)
    }
}

impl fmt::Display for FaultKind {
    /// The kind as one word, as in scripts and counters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Script {
    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// `Usage` that names the field, its value and its bounds.
    pub fn validate(&self) -> Result<()> {
        self.latency.validate()?;
        self.validate_faults()?;
        for (name, rate) in [
            ("bandwidth_connection_bytes_per_s", self.bandwidth_connection_bytes_per_s),
            ("bandwidth_total_bytes_per_s", self.bandwidth_total_bytes_per_s),
            ("slowdown_over_requests_per_s", self.slowdown_over_requests_per_s.map(u64::from)),
            ("close_after_requests", self.close_after_requests.map(u64::from)),
            ("drop_after_requests", self.drop_after_requests.map(u64::from)),
        ] {
            if rate == Some(0) {
                return Err(Error::usage(format!("{name} = 0 lets nothing through")).cure("leave it out for no limit"));
            }
        }
        Ok(())
    }

    fn validate_faults(&self) -> Result<()> {
        let mut sum = 0.0;
        for fault in &self.faults {
            let kind = fault.kind;
            if !FaultKind::DRAWN.contains(&kind) {
                return Err(Error::usage(format!("`{kind}` is counted, not drawn")).cure("set the field of its name"));
            }
            if !(0.0..=1.0).contains(&fault.probability) {
                return Err(Error::usage(format!("{kind} = {} is outside 0 to 1", fault.probability)));
            }
            if fault.at.is_some() && !kind.takes_at() {
                return Err(Error::usage(format!("`{kind}` has no byte to happen at")).cure("drop its `at`"));
            }
            if fault.for_ms.is_some() && kind != FaultKind::Stall {
                return Err(Error::usage(format!("`{kind}` has no duration")).cure("drop its `for_ms`"));
            }
            sum += fault.probability;
        }
        // Ten faults of 0.1 add up to a little more than one in binary.
        if sum > 1.0 + 1e-9 {
            let cause = format!("fault probabilities add up to {sum}");
            return Err(Error::usage(cause).cure("a request meets at most one fault: keep the sum at or below 1"));
        }
        Ok(())
    }
}

impl Latency {
    fn validate(&self) -> Result<()> {
        let (us, shape) = match *self {
            Latency::None => return Ok(()),
            Latency::Fixed { us } => (us, 1.0),
            Latency::Uniform { min_us, max_us } if min_us > max_us => {
                return Err(Error::usage(format!("uniform latency from {min_us} to {max_us} us is empty")));
            }
            Latency::Uniform { max_us, .. } => (max_us, 1.0),
            Latency::LogNormal { median_us, sigma } => (median_us, sigma),
            Latency::Pareto { min_us, alpha } => (min_us, alpha),
        };
        if us > LATENCY_MAX_US {
            return Err(Error::usage(format!("latency of {us} us is above {LATENCY_MAX_US} us")));
        }
        if !(shape > 0.0 && shape <= 100.0) {
            return Err(Error::usage(format!("latency shape {shape} is outside 0 < shape <= 100")));
        }
        Ok(())
    }
}
