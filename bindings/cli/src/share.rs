//! `fuelrail share`: reads a data set once for all jobs of a machine that train on it.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use fuelrail::{ByteSize, LoaderBuilder, SharingOptions, Stats, read_duration};
use serde::Serialize;
use serde_json::json;

use crate::bench::read::LoaderSettings;
use crate::failure::{Outcome, usage};
use crate::screen::{JsonTo, Table, note};
use crate::settings::{from_here, given, load};
use crate::signals::{apart, stop_on_signals};

const EXAMPLES: &str = "Examples:
  fuelrail share s3://bucket/training/ --share-dir /run/fuelrail --jobs 4 --batch-size 256 --epochs 90
  fuelrail share http://127.0.0.1:9000/bucket/ --share-dir /tmp --config run.toml --decode 224x224x3 --wait 30s
  fuelrail bench read http://127.0.0.1:9000/bucket/ --share-dir /tmp --shared-read --config run.toml

Start it before the jobs, which set shared_read = true and the same share_dir. What decides the batches must be set as it is here: seed, \
order, batch_size, rank, world and the like; where this process decodes, what it decodes to. Memory, cache and spill_dirs are this process's. \
With --passes-max jobs may come at any time: who comes too late for one pass takes part in another, which waits for --jobs no longer than --wait. \
It ends when the jobs have gone (with --stay it begins again), or with Ctrl-C; jobs that are left then read alone.";

/// Read a data set once for all jobs of this machine
#[derive(Args, Serialize, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Share {
    /// What to read, as the jobs name it
    uri: String,
    /// A local directory where the jobs find this process
    #[arg(long, value_name = "DIR", value_parser = from_here)]
    share_dir: PathBuf,
    /// Begin when so many jobs are there, at least one
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[serde(skip)]
    jobs: usize,
    /// Leave a slow job behind when others have waited for it so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = |text: &str| read_duration(text, "s"))]
    #[serde(skip)]
    wait: Duration,
    /// Most passes at once; each takes all of memory_limit, or its part of the default
    #[arg(long, value_name = "N", default_value = "1")]
    #[serde(skip)]
    passes_max: NonZeroUsize,
    /// When the jobs have gone, list again and wait for the next ones
    #[arg(long)]
    #[serde(skip)]
    stay: bool,
    #[command(flatten)]
    #[serde(flatten)]
    settings: LoaderSettings,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Print the counters of each pass at its end as one JSON document
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

pub(crate) fn run(args: &Share) -> Outcome {
    if args.jobs == 0 {
        return Err(usage("--jobs is 0: no job would ever be the first", "give the number of jobs to wait for"));
    }
    let config = load(args.config.as_deref(), &given(args))?;
    let stop = stop_on_signals()?;
    let (stopped, mut tell) = (|| stop.check().is_err(), note);
    let passes_max = args.passes_max.get();
    let options = SharingOptions { jobs: args.jobs, wait: args.wait, passes_max, stays: args.stay };
    let mut before = None;
    loop {
        let (config, options, last) = (config.clone(), options.clone(), before.take());
        // A bucket that serves nothing is waited for, unless a signal comes.
        let start = move || LoaderBuilder::new(config).share_after(options, last);
        let mut sharing = match apart("fuelrail-start", start, || stop.check()).and_then(|started| started) {
            Err(_) if args.stay && stop.is_asked() => return Ok(ExitCode::SUCCESS),
            started => started?,
        };
        note(&format!(
            "serving {} in {} to {} jobs or more; ends with Ctrl-C",
            args.uri,
            args.share_dir.display(),
            args.jobs
        ));
        let mut ended = sharing.serve(&stopped, &mut tell)?;
        if ended.is_none() && !args.stay {
            ended = Some(Stats::default());
        }
        while let Some(stats) = ended {
            show(args, &stats)?;
            ended = sharing.serve(&stopped, &mut tell)?;
        }
        match stop.check() {
            // It never ends by itself: a signal is how it is told to.
            Err(_) if args.stay => return Ok(ExitCode::SUCCESS),
            Err(interrupted) => return Err(interrupted.into()),
            Ok(()) if args.stay => before = Some(sharing),
            Ok(()) => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// The counters of a pass.
fn show(args: &Share, stats: &Stats) -> Outcome {
    let document = json!({ "schema": 1, "uri": args.uri, "stats": stats });
    JsonTo::output(args.json).show(&document, || {
        let read = format!("{} samples, {} in {} batches", stats.samples, ByteSize(stats.bytes), stats.batches);
        let requests = format!("{}, {} retries", stats.requests, stats.retries);
        let facts = [("read", read), ("requests", requests), ("cache hits", format!("{:.4}", stats.hit_ratio))];
        Table::facts(facts).text()
    })
}
