//! Settings as text: how a value of each type is read and shown. Knows types, and nothing of what they mean.

use fuelrail_base::{ByteSize, Duration, Error, Kind, Result, read_duration};
use fuelrail_flow::BadSamples;
use fuelrail_io::RingChoice;
use fuelrail_plan::importance::Mode;
use fuelrail_plan::order::{MixtureEpoch, OrderName};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Prefetch;
use fuelrail_plan::spill::SpillPolicy;
use fuelrail_wire::Addressing;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::decode::{Dtype, Fit, PerChannel, PixelLayout, PixelShape};
use crate::mixture::Mixture;
use crate::records::Format;

/// A value as a file has it; variables and arguments are text.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum Given {
    Truth(bool),
    Whole(u64),
    Negative(i64),
    Number(f64),
    Text(String),
    List(Vec<Given>),
    Group(Values),
}

/// Names and values; what has none is not set.
pub(crate) type Values = BTreeMap<String, Option<Given>>;

impl Given {
    fn text(&self) -> Result<String> {
        Ok(match self {
            Given::Truth(truth) => truth.to_string(),
            Given::Whole(number) => number.to_string(),
            Given::Negative(number) => number.to_string(),
            Given::Number(number) => number.to_string(),
            Given::Text(text) => text.clone(),
            Given::List(_) | Given::Group(_) => {
                return Err(wrong("a list is not allowed here: expected one value", "write a plain value"));
            }
        })
    }
}

/// A type that settings have.
pub(super) trait Value: Sized {
    /// Reads a value; plain numbers of times are in the unit that the setting's key ends in.
    fn parse(text: &str, key: &str) -> Result<Self>;

    /// As a file has it.
    fn read(given: &Given, key: &str) -> Result<Self> {
        Self::parse(&given.text()?, key)
    }

    /// As results show it and files take it; `Null` where nothing is set.
    fn show(&self, key: &str) -> Json;

    /// Whether it stands for "not set" where a setting need not be.
    fn is_nothing(&self) -> bool {
        false
    }
}

fn wrong(cause: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Kind::Usage, cause).with_hint(hint)
}

/// A whole number as TOML can have it too.
fn whole(number: u64) -> Json {
    i64::try_from(number).map_or_else(|_| number.to_string().into(), Json::from)
}

impl Value for String {
    fn parse(text: &str, _: &str) -> Result<String> {
        Ok(text.to_owned())
    }

    fn show(&self, _: &str) -> Json {
        self.as_str().into()
    }

    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl Value for PathBuf {
    fn parse(text: &str, _: &str) -> Result<PathBuf> {
        Ok(text.into())
    }

    fn show(&self, _: &str) -> Json {
        self.to_string_lossy().into()
    }

    fn is_nothing(&self) -> bool {
        self.as_os_str().is_empty()
    }
}

/// Paths or names.
impl<T: Value> Value for Vec<T> {
    fn parse(text: &str, key: &str) -> Result<Vec<T>> {
        // Items that have commas come as JSON.
        if let Ok(items) = serde_json::from_str::<Vec<String>>(text) {
            return items.iter().map(|item| T::parse(item, key)).collect();
        }
        text.split(',').filter(|item| !item.is_empty()).map(|item| T::parse(item, key)).collect()
    }

    fn read(given: &Given, key: &str) -> Result<Vec<T>> {
        match given {
            Given::List(items) => items.iter().map(|item| T::parse(&item.text()?, key)).collect(),
            one => Vec::parse(&one.text()?, key),
        }
    }

    fn show(&self, key: &str) -> Json {
        self.iter().map(|item| item.show(key)).collect()
    }
}

impl Value for bool {
    fn parse(text: &str, _: &str) -> Result<bool> {
        text.parse()
            .map_err(|_| wrong(format!("'{}' is neither true nor false", text.escape_debug()), "write true or false"))
    }

    fn show(&self, _: &str) -> Json {
        (*self).into()
    }
}

macro_rules! numbers {
    ($($kind:ty)*) => {
        $(impl Value for $kind {
            fn parse(text: &str, _: &str) -> Result<$kind> {
                text.trim().parse().map_err(|_| {
                    let cause = format!("'{}' is not a whole number from 0 to {}", text.escape_debug(), <$kind>::MAX);
                    wrong(cause, "write a number without a unit")
                })
            }

            fn show(&self, _: &str) -> Json {
                whole(*self as u64)
            }

            fn is_nothing(&self) -> bool {
                *self == 0
            }
        })*
    };
}

numbers!(u16 u32 u64 usize);

impl Value for ByteSize {
    fn parse(text: &str, _: &str) -> Result<ByteSize> {
        text.parse()
    }

    fn show(&self, _: &str) -> Json {
        whole(self.0)
    }

    fn is_nothing(&self) -> bool {
        self.0 == 0
    }
}

/// The unit of a setting's plain numbers.
fn unit(key: &str) -> (&'static str, Duration) {
    if key.ends_with("_ms") { ("ms", Duration::from_millis(1)) } else { ("s", Duration::from_secs(1)) }
}

impl Value for Duration {
    fn parse(text: &str, key: &str) -> Result<Duration> {
        read_duration(text, unit(key).0)
    }

    fn show(&self, key: &str) -> Json {
        let (nanos, unit) = (self.as_nanos(), unit(key).1.as_nanos());
        match u64::try_from(nanos / unit) {
            Ok(number) if nanos.is_multiple_of(unit) => whole(number),
            _ => format!("{nanos}ns").into(),
        }
    }

    fn is_nothing(&self) -> bool {
        self.is_zero()
    }
}

macro_rules! names {
    ($($kind:ty)*) => {
        $(impl Value for $kind {
            fn parse(text: &str, _: &str) -> Result<$kind> {
                text.parse()
            }

            fn show(&self, _: &str) -> Json {
                self.to_string().into()
            }
        })*
    };
}

names!(Addressing BadSamples Dtype Fit Format Mixture MixtureEpoch Mode OrderName PerChannel PixelLayout PixelShape PolicyName Prefetch RingChoice SpillPolicy);

/// Settings in which 0 does not mean "not set": nodes and tokens count from 0, nothing may be left free, and no limit is not a limit of 0.
const WITH_ZERO: [&str; 4] = ["near", "spill_floor_bytes", "spill_limit_bytes", "token_document_end"];
/// Words for "not set".
const NOTHING: [&str; 5] = ["", "auto", "never", "none", "off"];

impl<T: Value> Value for Option<T> {
    fn parse(text: &str, key: &str) -> Result<Option<T>> {
        match T::parse(text, key) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_nothing() || WITH_ZERO.contains(&key))),
            Err(_) if NOTHING.contains(&text) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn show(&self, key: &str) -> Json {
        self.as_ref().map_or(Json::Null, |value| value.show(key))
    }
}
