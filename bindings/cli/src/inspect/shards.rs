//! What a shard holds: how many records, their fields, the first keys. Every byte is read, and checksums with it.

use std::collections::BTreeMap;

use fuelrail::internal::OPEN_END;
use fuelrail::{ByteSize, Error, Format, Kind};
use serde::Serialize;

use crate::failure::Outcome;
use crate::records::each_record;
use crate::screen::Table;
use crate::settings::{Trust, given, load, located, once};

/// Keys that are shown.
const KEYS: usize = 3;

#[derive(Serialize)]
pub(super) struct Shards {
    format: String,
    records: u64,
    bytes: u64,
    first_keys: Vec<String>,
    fields: Vec<Column>,
}

#[derive(Serialize)]
struct Column {
    name: String,
    records: u64,
    bytes: u64,
    largest_bytes: u64,
}

/// The format of a file or URI whose name tells it. An index.json is that of MDS.
pub(super) fn format_of(file: &str) -> Option<Format> {
    let name = file.rsplit('/').next().unwrap_or(file);
    let format = if name == "index.json" { Format::Mds } else { Format::of_keys([name].into_iter()) };
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_text = ["json", "jsonl", "log", "state", "tsv", "csv"].contains(&extension) && format != Format::Mds;
    (file.contains("://") || format != Format::Objects && !is_text).then_some(format)
}

pub(super) fn inspect(file: &str, format: Format, trust: &Trust) -> Outcome<(Shards, String)> {
    let mut uri = located(file)?;
    // A shard of MDS is nothing without its index, which names the others, too.
    if format == Format::Mds {
        uri.truncate(uri.rfind('/').map_or(0, |slash| slash + 1));
    }
    let mut config = load(None, &[given(trust), vec![("uri".into(), uri.clone())]].concat())?;
    let mut listed = fuelrail::list_with(config.access(), &uri, |_| {})?;
    // A kept index does not say how an archive ends.
    config.network.listing_dir = None;
    if !file.contains("://") && format != Format::Mds {
        listed.retain(|object| uri.ends_with(&format!("/{}", object.key)));
    }
    let format =
        if format == Format::Objects { Format::of_keys(listed.iter().map(|object| &*object.key)) } else { format };
    if format == Format::Objects {
        let error = Error::new(Kind::File, format!("{file}: unrecognised file type"));
        return Err(error.with_hint("name shards: tar, MDS, TFRecord or Parquet").into());
    }
    let loader = once(config, Some(format)).listing(listed).batch_size(16);
    let (mut keys, mut fields, mut records) = (Vec::new(), BTreeMap::<String, Column>::new(), 0);
    let notices = each_record(loader, &[], &mut |key, read| {
        records += 1;
        if keys.len() < KEYS {
            keys.push(key.to_owned());
        }
        for (name, bytes) in read {
            let new = || Column { name: (*name).to_owned(), records: 0, bytes: 0, largest_bytes: 0 };
            let column = fields.entry((*name).to_owned()).or_insert_with(new);
            let len = bytes.len() as u64;
            (column.records, column.bytes) = (column.records + 1, column.bytes + len);
            column.largest_bytes = column.largest_bytes.max(len);
        }
        Ok(())
    })?;
    if notices.iter().any(|notice| notice.starts_with(OPEN_END)) {
        let error = Error::new(Kind::Undecodable, format!("{file}: an archive has no end-of-archive mark"));
        return Err(error.with_hint("it may have been cut between two records: write or upload it again").into());
    }
    let fields: Vec<Column> = fields.into_values().collect();
    let bytes = fields.iter().map(|field| field.bytes).sum();
    let found = Shards { format: format.to_string(), records, bytes, first_keys: keys, fields };
    let text = text(&found);
    Ok((found, text))
}

fn text(found: &Shards) -> String {
    let mut table = Table::new(&[1, 2, 3]);
    table.row(["field", "records", "bytes", "largest"]);
    for Column { name, records, bytes, largest_bytes } in &found.fields {
        table.row([name.escape_debug().to_string(), records.to_string(), bytes.to_string(), largest_bytes.to_string()]);
    }
    let keys: Vec<String> = found.first_keys.iter().map(|key| key.escape_debug().to_string()).collect();
    let Shards { format, records, bytes, .. } = found;
    format!("{format}, {records} records, {}, the first {}\n{}", ByteSize(*bytes), keys.join(", "), table.text())
}
