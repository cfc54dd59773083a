//! Values of fields, and the types that their names tell.

use crate::shown;
use fuelrail_base::{Error, Kind};
use std::borrow::Cow;

/// Fields that webdataset decodes as integers and as text, by the last part of their names.
const INTEGERS: [&str; 7] = ["cls", "cls2", "class", "count", "index", "inx", "id"];
const TEXTS: [&str; 5] = ["txt", "text", "transcript", "json", "jsn"];

/// A value of a field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    /// Bytes; what they mean is told from the field's name.
    Bytes(&'a [u8]),
    /// Text.
    Text(&'a str),
    /// An integer.
    Int(i64),
}

impl<'a> Value<'a> {
    /// The value with the type that the field's name tells, where its bytes are of that type.
    pub(super) fn typed(self, field: &str) -> Value<'a> {
        let (Value::Bytes(bytes), last) = (self, field.rsplit(['.', '/']).next().unwrap_or(field)) else { return self };
        let Ok(text) = core::str::from_utf8(bytes) else { return self };
        match text.trim().parse::<i64>() {
            // Digits that would not be the same again, as `007`, stay bytes.
            Ok(number) if INTEGERS.contains(&last) && number.to_string() == text.trim() => Value::Int(number),
            _ if TEXTS.contains(&last) => Value::Text(text),
            _ => self,
        }
    }

    /// Its bytes; of an integer its digits.
    pub(super) fn bytes(self) -> Cow<'a, [u8]> {
        match self {
            Value::Bytes(bytes) => bytes.into(),
            Value::Text(text) => text.as_bytes().into(),
            Value::Int(number) => number.to_string().into_bytes().into(),
        }
    }
}

pub(super) fn two_fields(name: &str) -> Error {
    Error::new(Kind::Usage, format!("it has two fields named '{}'", shown(name.as_bytes()))).with_hint(
        "rename one of the two; the field of an object is what follows the first dot of its name, in lower case",
    )
}
