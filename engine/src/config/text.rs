//! Settings as text: what each field is read as. Knows the fields by name, and nothing of what they mean.

use fuelrail_base::{ByteSize, Error, Kind, Result};

/// Fields that are sizes: their text may carry units.
const SIZES: [&str; 5] =
    ["memory_limit_bytes", "cache_limit_bytes", "block_bytes", "spill_limit_bytes", "spill_floor_bytes"];
/// Fields that are lists: as text, their items stand between commas.
const LISTS: [&str; 1] = ["spill_dirs"];
/// Fields that are text: their value is never read as a number.
const TEXTS: [&str; 19] = [
    "uri",
    "region",
    "endpoint",
    "addressing",
    "manifest",
    "ca_file",
    "profile",
    "order",
    "cache_policy",
    "spill_policy",
    "prefetch",
    "bad_samples",
    "ring",
    "importance",
    "decode",
    "decode_fit",
    "audit",
    "share_dir",
    "listing_dir",
];

/// Fields that say how a bucket is reached.
pub(super) const ACCESS: [&str; 8] =
    ["ca_file", "tls_insecure", "region", "endpoint", "addressing", "profile", "anonymous", "requester_pays"];

/// Reads sizes that a file has as text.
pub(super) fn read_sizes(table: &mut toml::Table) -> Result<()> {
    for name in SIZES {
        if let Some(toml::Value::String(text)) = table.get(name) {
            let bytes = whole(text.parse::<ByteSize>()?.0)?;
            table.insert(name.into(), bytes);
        }
    }
    Ok(())
}

fn whole(n: u64) -> Result<toml::Value> {
    i64::try_from(n).map(toml::Value::Integer).map_err(|_| Error::new(Kind::Usage, format!("{n} is too large")))
}

/// Puts a value written as text into the table; its type follows from what the text looks like and the field needs.
pub(super) fn set(table: &mut toml::Table, field: &str, text: &str) -> Result<()> {
    let value = if SIZES.contains(&field) {
        whole(text.parse::<ByteSize>()?.0)?
    } else if LISTS.contains(&field) {
        let items = text.split(',').filter(|item| !item.is_empty());
        toml::Value::Array(items.map(|item| toml::Value::String(item.into())).collect())
    } else if TEXTS.contains(&field) {
        toml::Value::String(text.into())
    } else if let Ok(n) = text.parse::<i64>() {
        toml::Value::Integer(n)
    } else if let Ok(b) = text.parse::<bool>() {
        toml::Value::Boolean(b)
    } else {
        toml::Value::String(text.into())
    };
    table.insert(field.into(), value);
    Ok(())
}
