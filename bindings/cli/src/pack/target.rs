//! Where shards are written to, and `pack.json` beside them.

use std::collections::HashMap;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use fuelrail::{Access, Error, Kind, Listed, PutOptions, State};
use fuelrail_format::write::mds;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::arguments::Pack;
use super::source::Source;
use crate::failure::{Outcome, Stop, usage};
use crate::put;
use crate::settings::located;

const MANIFEST: &str = "pack.json";
const INDEX: &str = "index.json";
const VERSION: u32 = 1;

/// What decides the bytes of the shards.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
pub(super) struct Made {
    /// A hash over the names, lengths and entity tags of the source's objects.
    pub(super) source: String,
    pub(super) source_format: String,
    pub(super) format: String,
    pub(super) shuffle: bool,
    pub(super) seed: u64,
    pub(super) shard_bytes_max: u64,
    /// Those that are taken of each record; all where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<String>,
}

/// A shard that was written.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) records: u64,
    pub(super) xxh3: String,
    /// What the bucket called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<String>,
}

/// `pack.json`.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Manifest {
    version: u32,
    /// For people: what decides is in `made`.
    source: String,
    made: Made,
    /// Whether the last shard is there.
    pub(super) complete: bool,
    /// Of MDS and Parquet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) columns: Option<mds::Columns>,
    /// Where a loader over a source of shards begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<State>,
    pub(super) shards: Vec<Shard>,
}

pub(super) struct Target {
    access: Access,
    /// It ends with a slash.
    uri: String,
    there: HashMap<String, Listed>,
    pub(super) manifest: Manifest,
    stop: Stop,
}

impl Target {
    /// Reads what an earlier run left, and checks that it was made of the same. Which of its shards are whole is the second part.
    pub(super) fn open(args: &Pack, source: &Source, made: Made, stop: &Stop) -> Outcome<(Target, Vec<bool>)> {
        let uri = format!("{}/", located(&args.target)?.trim_end_matches('/'));
        let access = args.trust.access(&uri)?;
        let [own, around] = [places(&access, &uri)?, places(&source.access, &source.uri)?];
        if own.iter().any(|own| around.iter().any(|place| own.starts_with(place.as_str()))) {
            return Err(usage("the target lies inside the source", "pack into a folder or prefix beside it"));
        }
        let listed = match fuelrail::list_with(&access, &uri, |_| {}) {
            Err(error) if error.kind() == Kind::NotFound => Vec::new(),
            listed => listed?,
        };
        let root = access.cloud.endpoint(&uri)?.prefix.len();
        let there = listed.into_iter().map(|one| (one.key.get(root..).unwrap_or(&one.key).to_owned(), one)).collect();
        let (source, shards) = (source.uri.clone(), Vec::new());
        let manifest = Manifest { version: VERSION, source, made, complete: false, columns: None, state: None, shards };
        let mut target = Target { access, uri, there, manifest, stop: stop.clone() };
        if target.there.contains_key(MANIFEST) {
            target.go_on()?;
        } else if !target.there.is_empty() {
            let cause = format!("there are {} objects in {}, and no pack.json", target.there.len(), target.uri);
            let hint = "name an empty folder or prefix: shards of two runs would mix";
            return Err(Error::new(Kind::Exists, cause).with_hint(hint).into());
        }
        if !target.uri.contains("://") {
            fuelrail::internal::forget_unfinished(&target.uri, true);
        }
        let whole: Outcome<Vec<bool>> = target.manifest.shards.iter().map(|shard| target.is_whole(shard)).collect();
        Ok((target, whole?))
    }

    /// Takes over the manifest that is there.
    fn go_on(&mut self) -> Outcome<()> {
        let mut json = Vec::new();
        fuelrail::get_with(&self.access, &self.uri_of(MANIFEST), &mut json)?;
        let flawed = |cause: String| {
            let error = Error::new(Kind::Undecodable, format!("{}: {cause}", self.uri_of(MANIFEST)));
            error.with_hint("pack into another folder, or remove this one's shards and pack.json")
        };
        let was: Manifest =
            serde_json::from_slice(&json).map_err(|error| flawed(format!("not a manifest: {error}")))?;
        if was.version != VERSION {
            return Err(flawed(format!("it has version {}, this program writes {VERSION}", was.version)).into());
        }
        if was.made != self.manifest.made {
            let [old, new] = [&was.made, &self.manifest.made].map(|made| serde_json::json!(made));
            let changed = new.as_object().into_iter().flatten().filter(|(name, new)| old[*name] != **new);
            let changed: Vec<_> = changed.map(|(name, new)| format!("{name} {} there, {new} now", old[name])).collect();
            let (uri, changed) = (self.uri_of(MANIFEST), changed.join(", "));
            let cause = format!("{uri} says that the shards were made of something else, {}: {changed}", was.source);
            let hint = "pack into another folder or prefix, or with the source and settings of then";
            return Err(Error::new(Kind::Exists, cause).with_hint(hint).into());
        }
        self.manifest = was;
        Ok(())
    }

    /// Whether a shard is there, as long as it was and with its checksum. Of a bucket an unchanged entity tag says so.
    fn is_whole(&self, shard: &Shard) -> Outcome<bool> {
        let Some(there) = self.there.get(&shard.name).filter(|there| there.size == shard.bytes) else {
            return Ok(false);
        };
        if !self.is_folder() && there.etag.is_some() && there.etag == shard.etag {
            return Ok(true);
        }
        let mut bytes = Vec::with_capacity(shard.bytes as usize);
        fuelrail::get_with(&self.access, &self.uri_of(&shard.name), &mut bytes)?;
        Ok(format!("{:016x}", xxh3_64(&bytes)) == shard.xxh3)
    }

    /// Writes an object, whole or not at all. Its entity tag, where the bucket gave it one.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Outcome<Option<String>> {
        let (options, to) = (PutOptions::default(), (&self.access, self.uri.as_str(), name));
        let stored = put::send(&self.stop, &options, to, &mut Cursor::new(bytes), |_| {});
        let stored = stored.map_err(|error| {
            let first = error.hint().map_or(String::new(), |hint| format!("{hint}; then "));
            error.with_hint(format!("{first}run the same command again: it goes on"))
        })?;
        Ok(stored.etag.filter(|_| !self.is_folder()))
    }

    pub(super) fn save(&self) -> Outcome<()> {
        let mut json = serde_json::to_vec_pretty(&self.manifest).expect("a manifest is a plain structure");
        json.push(b'\n');
        self.put(MANIFEST, &json).map(drop)
    }

    /// All shards are there: of MDS, names them in an index.
    pub(super) fn finish(&self) -> Outcome<()> {
        if let Some(columns) = self.manifest.columns.as_ref().filter(|_| self.manifest.made.format == "mds") {
            let shards = self.manifest.shards.iter();
            let index = columns.index(shards.map(|shard| (&*shard.name, shard.bytes, shard.records, &*shard.xxh3)));
            self.put(INDEX, &index)?;
        }
        Ok(())
    }

    fn uri_of(&self, name: &str) -> String {
        format!("{}{name}", self.uri)
    }

    fn is_folder(&self) -> bool {
        !self.uri.contains("://") || self.uri.starts_with("file:")
    }
}

/// Every place that a URI stands for, as text that begins with that of any place around it.
fn places(access: &Access, uri: &str) -> Outcome<Vec<String>> {
    let source = access.cloud.source(uri)?;
    let endpoint = &source.endpoint;
    if uri.contains("://") && !uri.starts_with("file:") {
        let bucket = format!("{} {}{}/", endpoint.authority(), endpoint.base, endpoint.bucket);
        return Ok(source.prefixes.iter().map(|prefix| format!("{bucket}{prefix}")).collect());
    }
    let place = |prefix: &String| {
        let mut path = String::new();
        endpoint.push_file_path(&mut path, prefix);
        let (folder, start) = path.split_at(path.rfind('/').map_or(0, |slash| slash + 1));
        format!("{}/{start}", real(Path::new(folder)).display())
    };
    Ok(source.prefixes.iter().map(place).collect())
}

/// A folder without links and dots, also where its last parts are not there yet.
fn real(folder: &Path) -> PathBuf {
    fs::canonicalize(folder).unwrap_or_else(|_| match (folder.parent(), folder.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => folder.to_owned(),
    })
}
