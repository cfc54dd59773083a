//! `cargo x bench soak`: a long run at full speed under random faults, and whether anything leaks or goes missing.

use std::io::{stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::soak::{Moment, SoakReport, Soaking, serve, soak};
use clap::Args;
use fuelrail::ByteSize;

use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::Outcome;
use fuelrail_cli::screen::{Bar, JsonTo, Table, note};
use fuelrail_cli::stop::stop_on_signals;

pub(crate) fn run(args: Soaking) -> Outcome {
    let soaking = Soaking { program: this_program()?, stop: stop_on_signals()?, ..args };
    let (bar, mut said) = (Bar::new(Some(soaking.time().as_secs().max(1)), "s"), Instant::now());
    let report = soak(&soaking, &mut |moment| {
        bar.at(moment.at_s as u64, || line(moment));
        if bar.is_hidden() && said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            note(&format!("{:.0} s: {}", moment.at_s, line(moment)));
        }
    })?;
    drop(bar);
    report.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(soaking.json.as_deref()).show(&report, || text(&report))?;
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
        "{}\n{:.2} GB in {} epochs of {} objects ({}); {} requests, {} connections ({} broken), of {} blocks {} from the cache and {} \
         from disk; opened anew {} times\nfaults: {}, away {}\n{}; {}; seed {}\n",
        table.text(),
        totals.bytes as f64 / 1e9,
        totals.epochs,
        report.objects,
        ByteSize(report.object_bytes),
        totals.requests,
        totals.connections,
        totals.connections_failed,
        totals.asks,
        totals.hits,
        totals.disk_hits,
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
