//! Tables of anything: every parser gives a report or a refusal with a hint, and never panics.

use fuelrail_cost::table::Table;
use fuelrail_cost::{deli, fit};
use proptest::prelude::*;

const CELLS: [&str; 14] =
    ["", "N/A", "0", "1", "2", "3", "-1", "0.5", "1e308", "1e-308", "nan", "x", "99999999999999999999", "\"a,b\""];
const HEADERS: [&str; 4] = [
    "model,gflops,tensors,parameters,step_s_mean",
    "model,checkpoint_mb,save_s,x,y",
    "model,workers,parameter_servers,steps_per_s_median,samples",
    "Cache Size,Fetch Size,Minimum Queue Size,Epoch,Number of Accesses",
];

fn checked<T>(outcome: fuelrail_base::Result<T>) {
    if let Err(error) = outcome {
        assert!(error.hint().is_some(), "{error}");
    }
}

fn read(text: &str) {
    let setup = deli::Setup {
        samples: 30,
        nodes: 3,
        batch: 4,
        compute_s_per_batch: 1.0,
        bucket_s: 0.05,
        cache_s: 0.0,
        fetch_fixed_s: 1.0,
        fetch_per_sample_s: 0.0,
        fetch_size: 8,
        seed: 0,
    };
    match Table::read(text) {
        Ok(table) => {
            checked(fit::fit(&table));
            checked(deli::predict(&setup, &table));
        }
        refused => checked(refused),
    }
}

proptest! {
    #[test]
    fn text(text in "[a-z0-9,\"\n\r. \u{feff}é-]{0,200}") {
        read(&text);
    }

    #[test]
    fn cells(header in 0..HEADERS.len(), rows in prop::collection::vec([0..CELLS.len(), 2..9, 2..9, 2..9, 2..9], 1..14)) {
        let mut text = HEADERS[header].to_owned();
        for (number, row) in rows.iter().enumerate() {
            // Mostly models of their own, so that some tables are fitted.
            let first = if row[0] < 4 { CELLS[row[0]].to_owned() } else { format!("{}", 1 + number / 2) };
            let others: Vec<&str> = row[1..].iter().map(|cell| CELLS[*cell]).collect();
            text.push_str(&format!("\n{first},{}", others.join(",")));
        }
        read(&text);
    }
}

proptest! {
    // Each fits a predictor.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(5)))]
    #[test]
    fn numbers(header in 0..3usize, rows in prop::collection::vec([1.0..9.0f64, 1e-300..1e300, 1.0..4.0f64, 1e-9..1e9f64], 6..12)) {
        let mut text = HEADERS[header].to_owned();
        for (number, row) in rows.iter().enumerate() {
            let cells = row.map(|cell| if header == 2 { cell.min(8.0).ceil().to_string() } else { format!("{cell:e}") });
            text.push_str(&format!("\nm{number},{}", cells.join(",")));
        }
        read(&text);
    }
}
