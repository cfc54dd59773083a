//! `cargo x bench cores`: what more shards on more cores bring, and what each core does for it.

use std::process::ExitCode;

use crate::cores::{CoresReport, Coring, cores};
use fuelrail::ByteSize;

use fuelrail_cli::bench::shard_text;
use fuelrail_cli::failure::Outcome;
use fuelrail_cli::screen::{Bar, JsonTo, Table};

pub(crate) fn run(coring: &Coring) -> Outcome {
    let bar = Bar::new(Some(coring.counts().len() as u64 * u64::from(coring.rounds)), "runs");
    let mut done = 0;
    let report = cores(coring, &mut |run| {
        done += 1;
        bar.at(done, || format!("{} shard(s): {:.2} GB/s", run.shards, run.gb_per_s));
    })?;
    drop(bar);
    JsonTo::asked(coring.json.as_deref()).show(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &CoresReport) -> String {
    let mut table = Table::new(&[0, 1, 2, 3, 4, 5, 6]);
    table.row(["shards", "GB/s", "GB/s per core", "scaling", "work per core", "of work", "server CPU-s/GB"]);
    for row in &report.rows {
        let server = row.server_cpu_s_per_gb.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.3}"));
        table.row([
            row.shards.to_string(),
            format!("{:.3} ({:.3} to {:.3})", row.gb_per_s.median, row.gb_per_s.min, row.gb_per_s.max),
            format!("{:.3}", row.gb_per_core_s.median),
            format!("{:.2} ({:.2} to {:.2})", row.scaling.median, row.scaling.min, row.scaling.max),
            format!("{:.3} ({:.3} to {:.3})", row.work_per_core.median, row.work_per_core.min, row.work_per_core.max),
            format!("{:.2}", row.scaling_of_work),
            server,
        ]);
    }
    let mut text = table.text();
    for row in &report.rows {
        let last = report.runs.iter().rev().find(|run| run.shards == row.shards);
        for (number, shard) in last.into_iter().flat_map(|run| &run.per_shard).enumerate() {
            text.push_str(&format!("\n{} shard(s), shard {number}: {}", row.shards, shard_text(shard)));
        }
    }
    let size = ByteSize(report.object_bytes_mean);
    text.push_str(&format!("\n\nobjects of {size}, server {}; {}\n", report.origin, report.machine.line()));
    text
}
