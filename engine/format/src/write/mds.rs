//! Samples and heads of MDS shards, and the `index.json` that names them.

use super::value::Value;
use crate::{shown, unsupported};
use fuelrail_base::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// What a column holds, by its encoding in `index.json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bytes.
    Bytes,
    /// Text.
    Str,
    /// An integer of 8 bytes.
    Int,
}

/// The columns of a data set, by name in their order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(String, Kind)>", into = "Vec<(String, Kind)>")]
pub struct Columns {
    pub(super) columns: Vec<(String, Kind)>,
    /// The writer's settings, which every shard repeats.
    pub(super) settings: String,
}

impl From<Vec<(String, Kind)>> for Columns {
    fn from(columns: Vec<(String, Kind)>) -> Columns {
        let settings = document(&columns).to_string();
        Columns { columns, settings }
    }
}

impl From<Columns> for Vec<(String, Kind)> {
    fn from(columns: Columns) -> Vec<(String, Kind)> {
        columns.columns
    }
}

impl Columns {
    /// Those of a record whose fields are in the order of their names.
    pub(super) fn of(fields: &[(&str, Value<'_>)]) -> Columns {
        let kind = |value: &Value<'_>| match value {
            Value::Bytes(_) => Kind::Bytes,
            Value::Text(_) => Kind::Str,
            Value::Int(_) => Kind::Int,
        };
        fields.iter().map(|(name, value)| ((*name).to_owned(), kind(value))).collect::<Vec<_>>().into()
    }

    /// Appends a sample: the sizes of its variable columns, then the data of all.
    pub(super) fn sample(&self, fields: &[(&str, Value<'_>)], out: &mut Vec<u8>) -> Result<()> {
        let known = self.columns.iter().map(|(name, _)| name.as_str());
        let own = fields.iter().map(|(name, _)| *name);
        if !known.clone().eq(own.clone()) {
            let [own, known] =
                [own.collect::<Vec<_>>(), known.collect()].map(|names| shown(names.join(", ").as_bytes()));
            let cause = format!("it has the fields {own}, and the first record {known}");
            return Err(unsupported(
                cause,
                "every record of MDS and Parquet has all columns: pack as webdataset, or add what is missing",
            ));
        }
        for ((name, kind), (_, value)) in self.columns.iter().zip(fields) {
            match (kind, value) {
                (Kind::Int, Value::Int(_)) => {}
                (Kind::Int, _) => return Err(of_another_type(name, "an integer")),
                (Kind::Str, Value::Bytes(_)) => return Err(of_another_type(name, "text")),
                _ => out.extend_from_slice(&(value.bytes().len() as u32).to_le_bytes()),
            }
        }
        for ((_, kind), (_, value)) in self.columns.iter().zip(fields) {
            match (kind, value) {
                (Kind::Int, Value::Int(number)) => out.extend_from_slice(&number.to_le_bytes()),
                _ => out.extend_from_slice(&value.bytes()),
            }
        }
        Ok(())
    }

    /// Bytes of a shard's head.
    pub(super) fn head_bytes(&self, samples: usize) -> usize {
        4 * (samples + 2) + self.settings.len()
    }

    /// The head of a shard whose samples end so many bytes after it: how many there are, where each begins and the last ends, and the
    /// writer's settings.
    pub(super) fn head(&self, ends: &[u32]) -> Vec<u8> {
        let begin = self.head_bytes(ends.len()) as u32;
        let mut head = (ends.len() as u32).to_le_bytes().to_vec();
        for end in [0].iter().chain(ends) {
            head.extend_from_slice(&(begin + end).to_le_bytes());
        }
        head.extend_from_slice(self.settings.as_bytes());
        head
    }

    /// The `index.json` of shards: name, bytes, records and XXH3-64 in hexadecimal of each.
    pub fn index<'s>(&self, shards: impl Iterator<Item = (&'s str, u64, u64, &'s str)>) -> Vec<u8> {
        let of_shard = |(name, bytes, records, xxh3)| {
            let mut document = document(&self.columns);
            document["raw_data"] = json!({ "basename": name, "bytes": bytes, "hashes": { "xxh3_64": xxh3 } });
            document["samples"] = json!(records);
            document["zip_data"] = Json::Null;
            document
        };
        let shards: Vec<Json> = shards.map(of_shard).collect();
        json!({ "shards": shards, "version": 2 }).to_string().into_bytes()
    }
}

/// What the head of a shard and its entry in `index.json` have in common.
fn document(columns: &[(String, Kind)]) -> Json {
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let encodings: Vec<Kind> = columns.iter().map(|(_, kind)| *kind).collect();
    let sizes: Vec<Option<u32>> = encodings.iter().map(|kind| (*kind == Kind::Int).then_some(8)).collect();
    json!({
        "column_encodings": encodings, "column_names": names, "column_sizes": sizes, "compression": null, "format": "mds",
        "hashes": ["xxh3_64"], "size_limit": null, "version": 2,
    })
}

fn of_another_type(name: &str, kind: &str) -> Error {
    let cause = format!("its field '{}' is not {kind}, as that of the first record is", shown(name.as_bytes()));
    unsupported(cause, "a column has one type: change the value, or pack as webdataset")
}
