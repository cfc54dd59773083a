//! A frame with a `tf.Example`: its features are lists of one value, in the order of their names.

use super::value::Value;
use crate::tfrecord::{HEAD_BYTES, masked_crc};

/// The tags of fields 1 to 3 with bytes after them.
const TAGS: [u8; 4] = [0, 0x0A, 0x12, 0x1A];

/// Appends a record. Fields have different names.
pub(super) fn record(fields: &[(&str, Value<'_>)], out: &mut Vec<u8>) {
    let from = out.len();
    let features: usize = fields.iter().map(|(name, value)| part(entry_len(name, *value))).sum();
    let length = (part(features) as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    begin(1, features, out);
    for (name, value) in fields {
        begin(1, entry_len(name, *value), out);
        begin(1, name.len(), out);
        out.extend_from_slice(name.as_bytes());
        begin(2, feature_len(*value), out);
        begin(if matches!(value, Value::Int(_)) { 3 } else { 1 }, list_len(*value), out);
        match value {
            Value::Int(number) => {
                begin(1, varint_len(*number as u64), out);
                varint(*number as u64, out);
            }
            Value::Bytes(_) | Value::Text(_) => {
                let bytes = value.bytes();
                begin(1, bytes.len(), out);
                out.extend_from_slice(&bytes);
            }
        }
    }
    let sum = masked_crc(&out[from + HEAD_BYTES as usize..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// A list of one value, which is packed where it is an integer.
fn list_len(value: Value<'_>) -> usize {
    part(if let Value::Int(number) = value { varint_len(number as u64) } else { value.bytes().len() })
}

fn feature_len(value: Value<'_>) -> usize {
    part(list_len(value))
}

fn entry_len(name: &str, value: Value<'_>) -> usize {
    part(name.len()) + part(feature_len(value))
}

/// Bytes of a part of so many, with its tag and length.
fn part(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

fn begin(field: usize, len: usize, out: &mut Vec<u8>) {
    out.push(TAGS[field]);
    varint(len as u64, out);
}

fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
