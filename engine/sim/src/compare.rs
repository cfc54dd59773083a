//! `fuelrail-sim orders`: how well each order shuffles, and what ranks hit in caches of their own.

use clap::Args;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_plan::order::quality::Quality;
use fuelrail_sim::orders::{OrderAnswer, OrdersRun, compare};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Compare the orders: how well each shuffles, and what ranks hit in caches of their own
#[derive(Args)]
#[command(after_help = "Examples:\n  cargo x sim -- orders --world 3 --cache-share 0.5\n  \
                        cargo x sim -- orders --samples 60000 --world 8 --batch-size 32 --json")]
pub(crate) struct Orders {
    #[command(flatten)]
    run: OrdersRun,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Orders) -> ExitCode {
    match answer(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuelrail-sim: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn answer(args: &Orders) -> Result<()> {
    let question = &args.run;
    let orders = compare(question)?;
    let text = if args.json {
        let orders: Vec<Value> = orders.iter().map(document).collect();
        format!("{:#}\n", json!({ "schema": 1, "question": question, "orders": orders }))
    } else {
        table(question, &orders)
    };
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| Error::from_io(Kind::File, "writing to standard output", error))
}

type Number = fn(&Quality) -> f64;

/// One measure of a shuffle: name in documents, heading, number and decimal places.
const NUMBERS: [(&str, &str, Number, usize); 7] = [
    ("serial_sigmas", "positions of two epochs, correlation, sigmas", |q| q.serial_sigmas, 1),
    ("neighbours", "neighbours apart in the next epoch, 1 by chance", |q| q.neighbours, 3),
    ("step_sigmas", "make-up of steps, sigmas from chance", |q| q.step_sigmas, 1),
    ("batch_sigmas", "make-up of ranks' batches, sigmas", |q| q.batch_sigmas, 1),
    ("step_mates", "different mates in a step, 1 by chance", |q| q.step_mates, 3),
    ("batch_mates", "different mates in a rank's batch", |q| q.batch_mates, 3),
    ("kept", "back at the same rank in the next epoch", |q| q.kept, 3),
];

fn document(order: &OrderAnswer) -> Value {
    let mut document = json!({ "name": order.name, "hit_ratio": order.hit_ratio });
    for (name, _, number, _) in NUMBERS {
        document[name] = number(&order.quality).into();
    }
    document
}

/// A line for each number, a column for each order.
fn table(question: &OrdersRun, orders: &[OrderAnswer]) -> String {
    let OrdersRun { samples, world, batch_size, epochs, cache_share, .. } = question;
    let mut text = format!("{samples} samples over {world} ranks x {batch_size}, {epochs} epochs\n");
    let mut line = |name: &str, cell: &dyn Fn(&OrderAnswer) -> String| {
        let cells: String = orders.iter().map(|order| format!("{:>18}", cell(order))).collect();
        let _ = writeln!(text, "{name:<50}{cells}");
    };
    line("", &|order| order.name.clone());
    for (_, name, number, places) in NUMBERS {
        line(name, &|order| format!("{:.places$}", number(&order.quality)));
    }
    let hits = |order: &OrderAnswer| order.hit_ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    line(&format!("hits in own caches of {:.0} % of a part", cache_share * 100.0), &hits);
    text
}
