//! `fuelrail-sim orders`: how well each order shuffles, and what ranks hit in caches of their own.

use clap::Args;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_sim::orders::{OrderAnswer, OrdersRun, compare};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Compare the orders: how well each shuffles, and what ranks hit in caches of their own
#[derive(Args)]
#[command(after_help = "Examples:\n  cargo x sim -- orders --world 3 --cache-share 0.5\n  \
                        cargo x sim -- orders --samples 60000 --world 8 --batch-size 32 --json")]
pub(crate) struct Orders {
    /// Samples of the data set
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    samples: u32,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    world: u32,
    /// Samples per batch and rank
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Epochs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=100))]
    epochs: u64,
    /// Each rank's cache, as a share of its part of the data set
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    cache_share: f64,
    /// Samples in the window of the weak shuffle beside them
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    window: u32,
    /// Seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    schema: u32,
    question: OrdersRun,
    orders: Vec<OrderAnswer>,
}

pub(crate) fn run(args: &Orders) -> ExitCode {
    match answer(args).and_then(|answer| show(args, &answer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuelrail-sim: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn answer(args: &Orders) -> Result<Answer> {
    let &Orders { samples, world, batch_size, epochs, cache_share, window, seed, .. } = args;
    let question = OrdersRun { samples, world, batch_size, epochs, cache_share, window, seed };
    Ok(Answer { schema: 1, orders: compare(&question)?, question })
}

fn show(args: &Orders, answer: &Answer) -> Result<()> {
    let text =
        if args.json { serde_json::to_string_pretty(answer).expect("a plain structure") + "\n" } else { table(answer) };
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| Error::new(Kind::File, format!("writing to standard output: {error}")))
}

/// One of the numbers of an answer.
type Number = fn(&OrderAnswer) -> f64;

/// A line for each number, a column for each order.
fn table(answer: &Answer) -> String {
    let OrdersRun { samples, world, batch_size, epochs, cache_share, .. } = &answer.question;
    let mut text = format!("{samples} samples over {world} ranks x {batch_size}, {epochs} epochs\n");
    let mut line = |name: &str, cells: Vec<String>| {
        let _ = write!(text, "{name:<50}");
        cells.iter().for_each(|cell| {
            let _ = write!(text, "{cell:>18}");
        });
        text.push('\n');
    };
    line("", answer.orders.iter().map(|order| order.name.clone()).collect());
    let numbers: [(&str, Number, usize); 7] = [
        ("positions of two epochs, correlation, sigmas", |o| o.serial_sigmas, 1),
        ("neighbours apart in the next epoch, 1 by chance", |o| o.neighbours, 3),
        ("make-up of steps, sigmas from chance", |o| o.step_sigmas, 1),
        ("make-up of ranks' batches, sigmas", |o| o.batch_sigmas, 1),
        ("different mates in a step, 1 by chance", |o| o.step_mates, 3),
        ("different mates in a rank's batch", |o| o.batch_mates, 3),
        ("back at the same rank in the next epoch", |o| o.kept, 3),
    ];
    for (name, of, places) in numbers {
        line(name, answer.orders.iter().map(|order| format!("{:.places$}", of(order))).collect());
    }
    let hits = answer.orders.iter().map(|order| order.hit_ratio.map_or("-".into(), |ratio| format!("{ratio:.3}")));
    line(&format!("hits in own caches of {:.0} % of a part", cache_share * 100.0), hits.collect());
    text
}
