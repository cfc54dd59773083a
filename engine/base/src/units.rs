//! What people write: byte sizes and times with units (`"100gb"`, `"64 MiB"`, `"4096"`; `"10s"`, `"500ms"`, `"2m"`), and enums whose
//! variants have names in configuration, on command lines, in reports.

use crate::error::{Error, Kind, Result};
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

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
                .with_hint("write a number with an optional unit, for example 64MB, 1.5gib or 4096")
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

const TIMES: [(&str, f64); 9] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("days", 86_400.0),
];

/// Reads a span of time; a number without a unit is in `unit`.
///
/// # Errors
/// `Usage` when it is none.
pub fn read_duration(text: &str, unit: &str) -> Result<Duration> {
    let bad = || {
        Error::new(Kind::Usage, format!("'{}' is not a span of time", text.escape_debug()))
            .with_hint(format!("write a number with a unit, such as 10s, 500ms or 2m; one without is in {unit}"))
    };
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, given) = (&text[..split], text[split..].trim());
    let given = if given.is_empty() { unit } else { given };
    let (_, scale) = TIMES.iter().find(|(name, _)| *name == given).ok_or_else(bad)?;
    if let Ok(whole) = number.parse::<u64>() {
        // Exact, however many: a product of floating-point numbers is not.
        let whole = match given {
            "ns" => Some(Duration::from_nanos(whole)),
            "us" => Some(Duration::from_micros(whole)),
            "ms" => Some(Duration::from_millis(whole)),
            _ => whole.checked_mul(*scale as u64).map(Duration::from_secs),
        };
        return whole.ok_or_else(bad);
    }
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| bad())
}

/// Gives an enum without fields the list of its variants, their names, and parsing by name; errors list all names.
///
/// ```
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// enum Colour { Red, Green }
/// fuelrail_base::named!(Colour, "a colour": Red = "red", Green = "green");
/// assert_eq!("green".parse(), Ok(Colour::Green));
/// assert_eq!("blue".parse::<Colour>().unwrap_err().to_string(), "'blue' is not a colour; use red or green");
/// ```
#[macro_export]
macro_rules! named {
    ($name:ident, $what:literal: $($variant:ident = $word:literal),+ $(,)?) => {
        impl $name {
            /// All of them, for help texts and tests.
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// The name as written in configuration and reports.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.word())
            }
        }

        impl core::str::FromStr for $name {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<$name> {
                let found = $name::ALL.into_iter().find(|name| name.word() == text);
                found.ok_or_else(|| $crate::units::unknown(text, $what, &[$($word),+]))
            }
        }
    };
}

/// The error for an unknown name.
#[doc(hidden)]
#[must_use]
pub fn unknown(text: &str, what: &str, words: &[&str]) -> Error {
    let (last, others) = words.split_last().expect("an enum has a variant");
    let all = if others.is_empty() { (*last).to_owned() } else { format!("{} or {last}", others.join(", ")) };
    Error::new(Kind::Usage, format!("'{text}' is not {what}")).with_hint(format!("use {all}"))
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
    fn spans_of_time_are_read() {
        for (text, wanted_ms) in
            [("120s", 120_000), ("2m", 120_000), ("1500 ms", 1_500), ("0.5", 500), ("1d", 86_400_000)]
        {
            assert_eq!(read_duration(text, "s").unwrap(), Duration::from_millis(wanted_ms), "{text}");
        }
        assert_eq!(read_duration("7", "ms").unwrap(), Duration::from_millis(7));
        assert_eq!(read_duration("18446744073709551615ns", "s").unwrap(), Duration::from_nanos(u64::MAX));
        for text in ["", "s", "12 parsec", "-3s", "1e9999", "99999999999999999999d", "1.2.3s"] {
            assert_eq!(read_duration(text, "s").unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn prints_short() {
        assert_eq!(ByteSize(999).to_string(), "999 B");
        assert_eq!(ByteSize(3 << 20).to_string(), "3.0 MiB");
    }
}
