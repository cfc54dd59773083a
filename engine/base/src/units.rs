//! Byte sizes with units, as people write them: `"100gb"`, `"64 MiB"`, `"4096"`.

use crate::error::{Error, Kind, Result};
use core::fmt;
use core::str::FromStr;

/// A number of bytes. Parses decimal (`kb`, `mb`, `gb`, `tb`: powers of 1000) and binary (`kib` …: powers of 1024) units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<ByteSize> {
        let bad = || {
            Error::new(Kind::Usage, format!("'{text}' is not a size in bytes"))
                .cure("write a number with an optional unit, for example 64MB, 1.5gib or 4096")
        };
        let lower = text.trim().to_ascii_lowercase();
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = (&lower[..split], lower[split..].trim());
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(ByteSize).ok_or_else(bad);
        }
        let value = number.parse::<f64>().map_err(|_| bad())? * factor as f64;
        if !value.is_finite() || !(0.0..9.0e18).contains(&value) {
            return Err(bad());
        }
        Ok(ByteSize(value as u64))
    }
}

impl fmt::Display for ByteSize {
    /// Binary units with one decimal, plain bytes below 1 KiB: `13.4 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (size, name) in steps {
            if self.0 >= size {
                return write!(f, "{:.1} {name}", self.0 as f64 / size as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MB", 64_000_000),
            ("100gb", 100_000_000_000),
            (" 1.5 GiB ", 3 << 29),
            ("2k", 2_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{text}");
        }
        for text in ["", "GB", "-1", "1 parsec", "1e400tb", "99999999999999999999", "1..2"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn prints_short() {
        assert_eq!(ByteSize(999).to_string(), "999 B");
        assert_eq!(ByteSize(3 << 20).to_string(), "3.0 MiB");
    }
}
