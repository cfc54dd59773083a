//! The demo's last words: the rows as a table, the claims as sentences, where the reports are.

use crate::deli::{Row, RowName};
use crate::report::Report;
use fuelrail::ByteSize;

use crate::screen::{Table, micros};

const HEAD: [&str; 9] =
    ["", "data wait", "reduction", "epoch", "first batch", "miss rate", "p99 wait", "CPU", "peak memory"];

/// Everything printed at the end.
pub(super) fn text(report: &Report, paths: &[String]) -> String {
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6, 7, 8]);
    table.row(HEAD);
    for row in &report.rows {
        table.row(cells(row));
    }
    let mut text = format!("\n{}\n", table.text());
    for verdict in &report.verdicts {
        let mark = if verdict.holds { "yes" } else { "NO " };
        text.push_str(&format!("{mark}  {}\n", verdict.text));
    }
    text.push_str(
        "\nTimes are per epoch, means over ranks and epochs; miss rates of the last epoch; CPU without the bucket's. The \
         trainer's step\nis simulated by waiting; every delivered byte was compared with the generator.\n",
    );
    for path in paths {
        text.push_str(&format!("report: {path}\n"));
    }
    text
}

fn cells(row: &Row) -> [String; HEAD.len()] {
    let time = |s: f64| micros((s * 1e6).round() as u64);
    let shared = if row.side_by_side.is_empty() { "" } else { "<= " };
    [
        row.name.word().to_owned(),
        time(row.data_wait_s),
        if row.name == RowName::Bucket { "-".to_owned() } else { format!("{:.2} %", row.wait_reduction * 100.0) },
        time(row.epoch_s),
        time(row.first_batch_ms / 1e3),
        format!("{:.4}", row.miss_rate),
        time(row.batch_wait_p99_ms / 1e3),
        time(row.cpu_s),
        format!("{shared}{}", ByteSize(row.peak_rss_bytes)),
    ]
}
