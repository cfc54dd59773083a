//! Shards on cores against nginx on the same cores: everything that is told is there, and adds up.

use clap::Parser;
use fuelrail::Kind;
use fuelrail_benches::cores::{Coring, cores};

use crate::skip::skip_or_fail;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    coring: Coring,
}

fn coring(shards: &str) -> Coring {
    let text = format!(
        "cores --batch-size 4 --object-size 100000 --shard-memory 64MiB --shards {shards} --seconds 0.1 --rounds 2"
    );
    Line::parse_from(text.split(' ')).coring
}

#[test]
fn every_run_tells_its_shards_and_rows_sum_them_up() {
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let cores_here = std::thread::available_parallelism().unwrap().get();
    let (counts, shards) = if cores_here > 1 { (2, "1,2") } else { (1, "1") };
    let mut heard = 0;
    let report = match cores(&coring(shards), &mut |_| heard += 1) {
        Err(error) if error.kind() == Kind::Environment => return skip_or_fail("nginx", error),
        report => report.unwrap(),
    };
    assert_eq!((heard, report.runs.len(), report.rows.len()), (2 * counts, heard, counts));
    assert_eq!((report.origin.as_str(), report.object_bytes_mean), ("nginx", 100_000));
    for run in &report.runs {
        assert_eq!(run.per_shard.len(), usize::from(run.shards));
        assert!(run.gb_per_s > 0.0 && run.gb_per_core_s > 0.0 && run.server_cpu_s_per_gb.is_some(), "{run:?}");
    }
    // A short run may live on what was fetched before it, all of them may not.
    let shards = || report.runs.iter().flat_map(|run| &run.per_shard);
    assert!(shards().any(|shard| shard.landed_bytes > 0) && shards().any(|shard| shard.enters > 0), "{report:?}");
    let first = &report.rows[0];
    assert_eq!((first.shards, first.scaling.median, first.work_per_core.median), (1, 1.0, 1.0));
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before, "this thread is let go again");
    let back = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(report, back, "a result reads back as it was written");
}

#[test]
fn counts_without_cores_are_refused() {
    for shards in ["0", "1,9999"] {
        assert_eq!(cores(&coring(shards), &mut |_| {}).unwrap_err().kind(), Kind::Usage);
    }
}
