//! Scripts as one line of text: `latency=fixed:55ms,slowdown=0.05,reset=0.01@4096`.

use core::str::FromStr;

use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;

use super::{Fault, FaultKind, Latency, Script};
use crate::{Error, Result};

impl FromStr for Script {
    type Err = Error;

    /// Settings separated by commas; an empty text is the quiet script.
    ///
    /// | setting | meaning |
    /// |---|---|
    /// | `seed=7` | chooses every draw |
    /// | `latency=fixed:55ms`, `uniform:5ms..40ms`, `lognormal:50ms/0.5`, `pareto:20ms/1.5` | wait before each answer |
    /// | `bandwidth=100MiB`, `bandwidth_total=1GiB` | body bytes per second of a connection, of all |
    /// | `slowdown_rps=200`, `retry_after=1` | 503 above that many requests per second; seconds in `Retry-After` |
    /// | `reset=0.01@4096`, `truncate=0.01`, `stall=0.01@4096/500ms` | probability, body byte, duration |
    /// | `length_long=0.01@128`, `length_short=0.01` | probability, by how many bytes |
    /// | `slowdown=`, `error=`, `wrong_etag=`, `changed=`, `garbage=`, `overlong_head=`, `bad_status=`, `chunked=` | probability |
    /// | `corrupt=0.01@4096`, `lost=`, `hidden_error=` | of what writes: probability, body byte |
    /// | `per_key_max=3`, `only=a*;b*` | most faults on one key; keys that meet faults |
    /// | `missing_keys=a;b`, `changed_keys=c*` | patterns separated by `;` |
    /// | `close_after=100`, `drop_after=100` | requests per connection |
    ///
    /// # Errors
    /// `Usage` that quotes the setting it does not understand.
    fn from_str(text: &str) -> Result<Script> {
        let mut script = Script::default();
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| Error::usage(format!("`{setting}` has no value")).cure("write name=value"))?;
            script.set(name.trim(), value.trim()).map_err(|e| e.cure(format!("in `{setting}`")))?;
        }
        script.validate()?;
        Ok(script)
    }
}

impl Script {
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "seed" => self.seed = number(value)?,
            "latency" => self.latency = latency(value)?,
            "bandwidth" => self.bandwidth_connection_bytes_per_s = Some(bytes(value)?),
            "bandwidth_total" => self.bandwidth_total_bytes_per_s = Some(bytes(value)?),
            "slowdown_rps" => self.slowdown_over_requests_per_s = Some(number(value)?),
            "retry_after" => self.retry_after_s = Some(number(value)?),
            "per_key_max" => self.faults_per_key_max = number(value)?,
            "only" => self.only_keys = patterns(value),
            "missing_keys" => self.missing_keys = patterns(value),
            "changed_keys" => self.changed_keys = patterns(value),
            "close_after" => self.close_after_requests = Some(number(value)?),
            "drop_after" => self.drop_after_requests = Some(number(value)?),
            other => match word(other) {
                Some(kind) => self.faults.push(fault(kind, value)?),
                None => return Err(Error::usage(format!("unknown setting `{other}`"))),
            },
        }
        Ok(())
    }
}

/// The value whose name in JSON is this word.
pub(crate) fn word<'w, T: Deserialize<'w>>(word: &'w str) -> Option<T> {
    T::deserialize(BorrowedStrDeserializer::<serde::de::value::Error>::new(word)).ok()
}

fn fault(kind: FaultKind, value: &str) -> Result<Fault> {
    let (value, for_ms) = match value.split_once('/') {
        Some((value, duration)) => (value, Some(duration_us(duration)?.div_ceil(1000))),
        None => (value, None),
    };
    let (probability, at) = match value.split_once('@') {
        Some((probability, at)) => (probability, Some(bytes(at)?)),
        None => (value, None),
    };
    Ok(Fault { kind, probability: number(probability)?, at, for_ms })
}

fn latency(value: &str) -> Result<Latency> {
    let (shape, rest) = value.split_once(':').unwrap_or((value, ""));
    let between = if shape == "uniform" { ".." } else { "/" };
    let (first, second) = rest.split_once(between).unwrap_or((rest, ""));
    match shape {
        "none" if rest.is_empty() => Ok(Latency::None),
        "fixed" => Ok(Latency::Fixed { us: duration_us(rest)? }),
        "uniform" => Ok(Latency::Uniform { min_us: duration_us(first)?, max_us: duration_us(second)? }),
        "lognormal" => Ok(Latency::LogNormal { median_us: duration_us(first)?, sigma: number(second)? }),
        "pareto" => Ok(Latency::Pareto { min_us: duration_us(first)?, alpha: number(second)? }),
        _ => Err(Error::usage(format!("`{value}` is no latency"))),
    }
}

fn patterns(value: &str) -> Vec<String> {
    value.split(';').filter(|pattern| !pattern.is_empty()).map(str::to_owned).collect()
}

fn number<T: FromStr>(value: &str) -> Result<T> {
    value.trim().parse().map_err(|_| Error::usage(format!("`{value}` is not a number that fits")))
}

fn duration_us(value: &str) -> Result<u64> {
    scaled(value, &[("us", 1.0), ("ms", 1e3), ("s", 1e6)])
}

fn bytes(value: &str) -> Result<u64> {
    let binary = [("KiB", f64::from(1 << 10)), ("MiB", f64::from(1 << 20)), ("GiB", f64::from(1 << 30))];
    scaled(value, &[&[("", 1.0), ("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9)], &binary[..]].concat())
}

/// A number and its unit, as so many of the smallest.
fn scaled(value: &str, units: &[(&str, f64)]) -> Result<u64> {
    let value = value.trim();
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let Some((_, scale)) = units.iter().find(|(unit, _)| *unit == value[end..].trim()) else {
        let units: Vec<&str> = units.iter().map(|(unit, _)| *unit).filter(|unit| !unit.is_empty()).collect();
        return Err(Error::usage(format!("`{value}` does not end in {}", units.join(", "))));
    };
    Ok((number::<f64>(&value[..end])? * scale).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_lands_in_its_field() {
        let text = "seed=7, latency=uniform:5ms..1.5s,bandwidth=100MiB,bandwidth_total=1GB,slowdown_rps=200,retry_after=2,\
                    per_key_max=9,only=a*;b,missing_keys=m,changed_keys=c*,close_after=10,drop_after=11,\
                    reset=0.01@4KiB,stall=0.02@5/500ms,chunked=1e-1";
        let script: Script = text.parse().unwrap();
        let want = Script {
            seed: 7,
            latency: Latency::Uniform { min_us: 5_000, max_us: 1_500_000 },
            bandwidth_connection_bytes_per_s: Some(100 << 20),
            bandwidth_total_bytes_per_s: Some(1_000_000_000),
            slowdown_over_requests_per_s: Some(200),
            retry_after_s: Some(2),
            faults: vec![
                Fault { at: Some(4096), ..Fault::new(FaultKind::Reset, 0.01) },
                Fault { at: Some(5), for_ms: Some(500), ..Fault::new(FaultKind::Stall, 0.02) },
                Fault::new(FaultKind::Chunked, 0.1),
            ],
            faults_per_key_max: 9,
            only_keys: vec!["a*".into(), "b".into()],
            missing_keys: vec!["m".into()],
            changed_keys: vec!["c*".into()],
            close_after_requests: Some(10),
            drop_after_requests: Some(11),
        };
        assert_eq!(script, want);
        let json = serde_json::to_string(&script).unwrap();
        assert_eq!(serde_json::from_str::<Script>(&json).unwrap(), script);
        assert_eq!("".parse::<Script>().unwrap(), Script::default());
        assert_eq!(serde_json::from_str::<Script>("{}").unwrap(), Script::default());
    }

    #[test]
    fn nonsense_is_refused_and_quoted() {
        for text in [
            "reset",
            "reset=x",
            "reset=1.5",
            "reset=0.6,truncate=0.6",
            "latency=fixed:5",
            "latency=odd:5ms",
            "bogus=1",
            "slowdown=0.1@5",
            "reset=0.1/5ms",
            "bandwidth=0",
            "bandwidth=5xB",
            "latency=uniform:5ms..4ms",
            "close_after=0",
            "latency=lognormal:5ms/-1",
            "slowdown_rate=0.5",
            "reset=NaN",
        ] {
            let error = text.parse::<Script>().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Usage, "{text}: {error}");
        }
        assert!("reset=0.1,latency=fixed:5".parse::<Script>().unwrap_err().to_string().contains("latency=fixed:5"));
    }
}
