//! The line question at a bucket that is there already: the floors and the loader over its objects, whatever they are.
//!
//! Owns what replaces a shape: the listing as a manifest, and a set without a known hash. There are no bars: those are for sets
//! that everybody can have.

use std::time::Instant;

use fuelrail::{ByteSize, Error, Kind, Listed, Result, write_manifest};

use crate::harness::{
    Contest, Contested, Entry, Findings, SetFacts, ShapeName, Task, Transport, Venue, VenueConfig, VenueKind, hold,
};
use crate::line::{Line, Step, cast, entitlement, findings};
use crate::own::split;

/// A bucket and how it is read.
#[derive(Clone, Debug)]
pub struct External {
    /// `http[s]://HOST[:PORT]/BUCKET/PREFIX`.
    pub uri: String,
    /// Its objects, by whole keys.
    pub listing: Vec<Listed>,
    /// Samples a batch.
    pub batch_size: u32,
    /// Memory the payload is placed in.
    pub arena_bytes: u64,
}

/// Asks the line question at a bucket. Shapes, scale, repeats and transports of `line` are not looked at.
///
/// # Errors
/// `Usage` for a bucket without objects, and as [`line`](crate::line::line).
pub fn external(
    line: &Line,
    bucket: &External,
    client_cores: &[usize],
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Findings> {
    let start = Instant::now();
    let bytes: u64 = bucket.listing.iter().map(|object| object.size).sum();
    if bytes == 0 {
        return Err(Error::new(Kind::Usage, format!("{} has no bytes to read", bucket.uri)).cure("check the prefix"));
    }
    let uri = split(&bucket.uri).0.to_owned();
    let transport = if uri.starts_with("https:") { Transport::Tls } else { Transport::Plain };
    let venue = Venue::open(&VenueConfig {
        kind: VenueKind::External,
        uri: Some(uri.clone()),
        client_cores: client_cores.to_vec(),
        ..VenueConfig::default()
    })?;
    let manifest = venue.folder().join("external.tsv");
    write_manifest(&manifest, &bucket.listing)?;
    let (batch_size, arena_bytes) = (bucket.batch_size, bucket.arena_bytes);
    let task = Task { uri, manifest, batch_size, arena_bytes, seed: line.seed };
    let contest =
        Contest { rounds: line.rounds, place: venue.place().clone(), stop: line.stop.clone(), ..Contest::default() };
    // Who takes part in a shape of middling objects can read any object.
    let cast = cast(line, &venue, ShapeName::Mid, transport)?;
    let entries: Vec<Entry> = cast.into_iter().map(|contestant| Entry::new(contestant, task.clone())).collect();
    let scores = hold(&contest, &entries, &mut |turn| watch(Step::Turn("external", turn)))?;
    let set = SetFacts {
        name: "external".into(),
        scale: None,
        objects: bucket.listing.len() as u64,
        bytes,
        batch_size,
        arena_bytes,
        hash: None,
    };
    let mut contested = Contested::new(set, transport, scores, &[]);
    if transport == Transport::Plain {
        contested.entitlement_gb_per_s = entitlement(line, &contest, &task)?;
    }
    let mut findings = findings(line, &venue);
    for name in ["scale", "repeats"] {
        findings.config.remove(name);
    }
    if arena_bytes > bytes {
        let (arena, set) = (ByteSize(arena_bytes), ByteSize(bytes));
        findings.notices.push(format!("the arena of {arena} is larger than the set of {set}: its memory stays cold"));
    }
    findings.contests.push(contested);
    findings.wall_s = start.elapsed().as_secs_f64();
    Ok(findings)
}
