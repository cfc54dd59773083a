//! `fuelrail pack`: many small objects, or the records of other shards, become shards.
//!
//! Which records a shard holds is a function of the source, the seed and the size of shards, so a run that was stopped goes on, and its
//! shards are those that one run would have written. What is there is told from `pack.json`, whose sizes and checksums are verified.

mod arguments;
mod objects;
mod reader;
mod source;
mod target;

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use fuelrail::{ByteSize, Error, Format, Kind};
use fuelrail_format::write::{Value, Writer};
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use self::arguments::Pack;
use self::reader::Reader;
use self::source::Source;
use self::target::{Made, Shard, Target};
use crate::failure::{Outcome, Stop, usage};
use crate::screen::{Bar, JsonTo, note};

pub(crate) fn run(args: &Pack, stop: &Stop) -> Outcome {
    let start = Instant::now();
    Writer::new(args.format, args.shard_size, None)?;
    let source = Source::list(args)?;
    let made = Made {
        source: source.identity(),
        source_format: args.source_format.to_string(),
        format: args.format.to_string(),
        shuffle: args.shuffle,
        seed: args.seed,
        shard_bytes_max: args.shard_size,
        fields: args.fields.clone(),
    };
    let (mut target, whole) = Target::open(args, &source, made, stop)?;
    let skipped = whole.iter().filter(|whole| **whole).count();
    if !(target.manifest.complete && skipped == whole.len()) {
        pack(args, &source, &mut target, &whole, stop)?;
    }
    target.finish()?;
    let (shards, wall_s) = (&target.manifest.shards, start.elapsed().as_secs_f64());
    let (records, bytes) = shards.iter().fold((0, 0), |sum, shard| (sum.0 + shard.records, sum.1 + shard.bytes));
    if args.json {
        let done = json!({
            "schema": 1, "source": args.source, "target": args.target, "format": args.format.to_string(), "records": records,
            "bytes": bytes, "shards": shards.len(), "skipped": skipped, "wall_s": wall_s,
        });
        JsonTo::Output.show(&done, String::new)?;
    } else {
        let there = if skipped > 0 { format!(", {skipped} of them were there") } else { String::new() };
        note(&format!("{records} records in {} shards{there}, {} in {wall_s:.2} s", shards.len(), ByteSize(bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the shards that are not there: those of the manifest that are missing or damaged, and all after them.
fn pack(args: &Pack, source: &Source, target: &mut Target, whole: &[bool], stop: &Stop) -> Outcome<()> {
    let mut begin = 0;
    let mut jobs: Vec<Job> = Vec::new();
    for (number, shard) in target.manifest.shards.iter().enumerate() {
        if !whole[number] {
            jobs.push(Job { number, records: begin..begin.saturating_add(shard.records) });
        }
        begin = begin.saturating_add(shard.records);
    }
    let first = jobs.first().map_or(begin, |job| job.records.start);
    let mut reader = Reader::open(args, source, target.manifest.state.as_ref(), first)?;
    let (records, is_complete) = (reader.records(), target.manifest.complete);
    if records == 0 {
        return Err(usage("the source has no record", "check the path, and --source-format"));
    }
    if begin > records || is_complete != (begin == records) {
        let cause = format!("pack.json has {begin} records in shards, and the source {records}");
        return Err(Error::new(Kind::Undecodable, cause).with_hint("pack into another folder or prefix").into());
    }
    if !is_complete {
        jobs.push(Job { number: whole.len(), records: begin..records });
    }
    target.manifest.state = reader.state();
    target.save()?;
    let wanted: Vec<Range<u64>> = jobs.iter().map(|job| job.records.clone()).collect();
    let bar = Bar::new(Some(wanted.iter().map(|wanted| wanted.end - wanted.start).sum()), "records");
    let writer = Writer::new(args.format, args.shard_size, target.manifest.columns.clone())?;
    let extension = if args.format == Format::WebDataset { "tar" } else { args.format.word() };
    let mut packer = Packer { target, writer, jobs: jobs.into(), extension };
    let mut done = 0;
    reader.read(&wanted, &mut |key, fields| {
        stop.check().map_err(|error| error.with_hint("run the same command again to go on"))?;
        done += 1;
        bar.at(done, String::new);
        let taken = fields.iter().filter(|(name, _)| fuelrail_format::is_named(&args.fields, name)).copied();
        packer.take(key, &taken.collect::<Vec<_>>())
    })?;
    if let Some(job) = packer.jobs.front().filter(|job| !job.records.is_empty()) {
        let cause = format!("the source ended before record {} of {}", job.records.start, job.records.end);
        return Err(Error::new(Kind::Truncated, cause).into());
    }
    Ok(())
}

/// Records that become shards from this number on.
struct Job {
    number: usize,
    /// Records that are not written yet, as positions in the order.
    records: Range<u64>,
}

struct Packer<'t> {
    target: &'t mut Target,
    writer: Writer,
    jobs: std::collections::VecDeque<Job>,
    extension: &'static str,
}

impl Packer<'_> {
    /// Takes the record that is next, and writes each shard when it is full.
    fn take(&mut self, key: Option<&str>, fields: &[(&str, Value<'_>)]) -> Outcome<()> {
        let fits = self.writer.push(key, fields)?;
        let Some(job) = self.jobs.front_mut() else { return Ok(()) };
        if !fits {
            let number = job.number;
            job.number += 1;
            self.close(number)?;
            self.writer.push(key, fields)?;
        }
        let Some(job) = self.jobs.front_mut() else { return Ok(()) };
        job.records.start += 1;
        if job.records.is_empty() {
            let number = job.number;
            self.jobs.pop_front();
            // Nothing comes after the last one.
            self.target.manifest.complete |= self.jobs.is_empty();
            self.close(number)?;
        }
        Ok(())
    }

    /// Writes the shard that was filled.
    fn close(&mut self, number: usize) -> Outcome<()> {
        let name = format!("shard-{number:06}.{}", self.extension);
        let records = self.writer.records();
        let bytes = self.writer.finish();
        let xxh3 = format!("{:016x}", xxh3_64(bytes));
        let shard = Shard { name, bytes: bytes.len() as u64, records, xxh3, etag: None };
        let known = self.target.manifest.shards.get(number);
        if known.is_some_and(|known| (&known.xxh3, known.bytes) != (&shard.xxh3, shard.bytes)) {
            let cause = format!("{} would not be what pack.json says it was", shard.name);
            return Err(Error::new(Kind::Changed, cause)
                .with_hint("pack into another folder: the source has changed")
                .into());
        }
        let shard = Shard { etag: self.target.put(&shard.name, bytes)?, ..shard };
        match self.target.manifest.shards.get_mut(number) {
            Some(known) => *known = shard,
            None => self.target.manifest.shards.push(shard),
        }
        self.target.manifest.columns = self.writer.columns().cloned();
        self.writer.clear();
        self.target.save()
    }
}
