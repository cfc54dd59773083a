//! Settings as text: what each field is read as. Knows the fields by name, and nothing of what they mean.

use fuelrail_base::{ByteSize, Error, Kind, Result};

/// Fields that say how a bucket is reached.
pub(super) const ACCESS: [&str; 8] =
    ["ca_file", "tls_insecure", "region", "endpoint", "addressing", "profile", "anonymous", "requester_pays"];

/// Fields whose names end so are sizes: their text may carry units.
const SIZE: &str = "_bytes";

/// Reads sizes that a file has as text.
pub(super) fn read_sizes(table: &mut toml::Table) -> Result<()> {
    for (_, value) in table.iter_mut().filter(|(name, _)| name.ends_with(SIZE)) {
        if let toml::Value::String(text) = value {
            *value = size(text)?;
        }
    }
    Ok(())
}

fn size(text: &str) -> Result<toml::Value> {
    let ByteSize(n) = text.parse()?;
    i64::try_from(n).map(toml::Value::Integer).map_err(|_| Error::new(Kind::Usage, format!("{n} is too large")))
}

/// Puts a value written as text into the table, as the type that the field has in `defaults`. What has no default is text, too, but for a
/// few.
pub(super) fn set(table: &mut toml::Table, defaults: &toml::Table, field: &str, text: &str) -> Result<()> {
    let value = match defaults.get(field) {
        _ if field.ends_with(SIZE) => size(text)?,
        Some(toml::Value::Array(_)) => {
            let items = text.split(',').filter(|item| !item.is_empty());
            toml::Value::Array(items.map(|item| toml::Value::String(item.into())).collect())
        }
        Some(toml::Value::String(_)) => toml::Value::String(text.into()),
        None if !["anonymous", "near"].contains(&field) => toml::Value::String(text.into()),
        _ => match (text.parse(), text.parse()) {
            (Ok(n), _) => toml::Value::Integer(n),
            (_, Ok(b)) => toml::Value::Boolean(b),
            _ => toml::Value::String(text.into()),
        },
    };
    table.insert(field.into(), value);
    Ok(())
}
