//! `cargo x bench soak`: a long run at full speed under random faults, and whether anything leaks or goes missing.

use std::io::{stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::soak::{Canary, Moment, SoakReport, Soaking, serve, soak};
use clap::Args;
use fuelrail::ByteSize;

use crate::harness::Transport;
use crate::line::ring;
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table, note};
use fuelrail_cli::stop::stop_on_signals;

const EXAMPLES: &str = "Examples:
  cargo x bench soak
  cargo x bench soak --minutes 5 --ring poll --json soak.json
  cargo x bench soak --minutes 10 --transport tls --seed 7 --set cache_limit_bytes=0

An embedded bucket in a process of its own serves objects of a KiB to some MiB over real sockets and misbehaves in phases of a few
seconds drawn from the seed: answers of 500 and 503, connections reset, cut and closed, wrong lengths, stray entity tags,
garbage, stalls, trickles, and moments in which nobody listens. A loader reads them without end; its consumer hurries, holds batches,
works slowly, pauses, and now and then closes the loader and goes on from its state. Every batch is checked: order, bytes,
exactly once.

Memory is flat when the median of the last tenth is above that of the second tenth, and the least-squares line through the second half
grows, by no more than 2 % or 16 MiB; moments soon after an opening are left out. Its slope is judged once the 95 % interval is narrower than 8 MiB/h:
the upper end may be 8 MiB/h at most. Exit code 1 when anything does not hold.";

/// Soak a loader: a long run at full speed under random faults; memory flat, nothing leaked, no sample lost
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SoakArgs {
    /// How long [default: 30]
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    minutes: Option<f64>,
    /// How long, in seconds
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Go on for so long at most, until the slope of memory is known well enough to be judged [default: no longer than asked]
    #[arg(long, value_name = "N")]
    max_minutes: Option<f64>,
    /// Back-end of the ring: auto, uring, poll, tokio-uring or glommio
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ring)]
    ring: String,
    /// Over what
    #[arg(long, value_enum, default_value = "plain")]
    transport: Transport,
    /// Seed of order, faults and the consumer's whims
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Fewer and smaller objects: 1 is some 280 MiB
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    scale: f64,
    /// Where the objects are written, to be removed at the end [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// A setting of the loader over the soak's, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    settings: Vec<(String, String)>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Leak or lose something on purpose: the verdict must find it
    #[arg(long, value_enum, hide = true)]
    canary: Option<Canary>,
}

pub(crate) fn run(args: &SoakArgs) -> Outcome {
    let seconds = args.seconds.unwrap_or_else(|| args.minutes.unwrap_or(30.0) * 60.0);
    let positive = |seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
        time.ok_or_else(|| usage(format!("a soak of {seconds} s"), "give a positive number"))
    };
    let time = positive(seconds)?;
    let time_max = args.max_minutes.map_or(Ok(time), |minutes| positive(minutes * 60.0))?.max(time);
    if !(args.scale > 0.0 && args.scale <= 100.0) {
        return Err(usage(format!("--scale {}", args.scale), "give a share above 0, at most 100"));
    }
    let mut settings = vec![("ring".to_owned(), args.ring.clone())];
    settings.extend(args.settings.iter().cloned());
    let soaking = Soaking {
        time_max,
        seed: args.seed,
        scale: args.scale,
        folder: args.dir.clone(),
        settings,
        tls: args.transport == Transport::Tls,
        canary: args.canary,
        stop: stop_on_signals()?,
        ..Soaking::new(time, this_program()?)
    };
    let (bar, mut said) = (Bar::new(Some(time.as_secs().max(1)), "s"), Instant::now());
    let report = soak(&soaking, &mut |moment| {
        bar.at(moment.at_s as u64, || line(moment));
        if bar.is_hidden() && said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            note(&format!("{:.0} s: {}", moment.at_s, line(moment)));
        }
    })?;
    drop(bar);
    report.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&report, || text(&report))?;
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How often a line is said where no terminal watches.
const SAY_EVERY: Duration = Duration::from_secs(30);

fn line(moment: &Moment) -> String {
    let gauge = moment.gauge;
    format!(
        "{}, {} fds, {} threads, {} slots, {} ops, {} samples, {:.1} GB, {} retries, {} faults, {}",
        ByteSize(gauge.rss_bytes()),
        gauge.descriptors,
        gauge.threads,
        moment.slots,
        moment.operations,
        moment.samples,
        moment.gb,
        moment.retries,
        moment.faults.values().sum::<u64>(),
        moment.phase
    )
}

fn text(report: &SoakReport) -> String {
    let mut table = Table::new(&[]);
    for criterion in &report.criteria {
        let mark = match criterion.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "-",
        };
        table.row([criterion.name.as_str(), mark, criterion.text.as_str()]);
    }
    let totals = &report.totals;
    let faults: Vec<String> = totals.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!(
        "{}\n{:.2} GB in {} epochs of {} objects ({}); {} requests, {} connections ({} broken), {} of {} blocks from the cache; opened \
         anew {} times\nfaults: {}, away {}\n{}; {}; seed {}\n",
        table.text(),
        totals.bytes as f64 / 1e9,
        totals.epochs,
        report.objects,
        ByteSize(report.object_bytes),
        totals.requests,
        totals.connections,
        totals.connections_failed,
        totals.hits,
        totals.asks,
        totals.reopened,
        faults.join(", "),
        totals.absences,
        report.machine.line(),
        report.ring,
        report.seed
    )
}

/// Serve a folder to a soak (started by it)
#[derive(Args, Debug)]
pub(crate) struct SoakBucketArgs {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    tls: bool,
}

pub(crate) fn run_bucket(args: &SoakBucketArgs) -> Outcome {
    serve(&args.folder, args.tls, stdin().lock(), stdout())?;
    Ok(ExitCode::SUCCESS)
}
