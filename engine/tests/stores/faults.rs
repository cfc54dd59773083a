//! The suite against the embedded bucket on its bad days: every kind of fault on some requests of all of it.

use super::suite::{Server, conforms};
use super::writable;
use crate::common::side_by_side;
use fuelrail::{Access, LoaderBuilder};
use fuelrail_bucket::{Bucket, FaultKind};
use std::time::Duration;

/// The embedded bucket under a script.
struct Faulty {
    bucket: Bucket,
    name: String,
}

impl Server for Faulty {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn uri(&self, key: &str) -> String {
        format!("{}{key}", self.bucket.url(""))
    }

    fn access(&self) -> Access {
        Access::default()
    }

    /// Less than a stall of the script lasts.
    fn tuned(&self, builder: LoaderBuilder) -> LoaderBuilder {
        builder.stall_after(Duration::from_millis(300))
    }
}

fn under(script: &str) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let bucket = writable(dir.path(), script);
    let kind = script.split('=').next().unwrap();
    let server = Faulty { bucket, name: format!("the embedded bucket with {kind}") };
    conforms(&server);
    server.bucket.counters().faults_total()
}

#[test]
fn every_fault_is_lived_through() {
    let mut scripts = Vec::new();
    for kind in FaultKind::DRAWN {
        let rate = match kind {
            FaultKind::Stall => "0.2/900ms,per_key_max=2",
            // A second stray entity tag in a row means that an object did change.
            FaultKind::WrongEtag => "0.2,per_key_max=1",
            // One for `get`, which cannot tell, and one for the loader, which can.
            FaultKind::Changed => "1,per_key_max=2",
            // The one request of all that it can meet.
            FaultKind::HiddenError => "1,per_key_max=2",
            _ => "0.2,per_key_max=2",
        };
        scripts.extend((0..4).map(|seed| format!("{kind}={rate},seed={seed}")));
    }
    side_by_side(scripts, |script| assert!(under(script) > 0, "{script} did nothing"));
    for script in ["close_after=3", "drop_after=3", "slowdown_rps=200", "latency=pareto:2ms/1.5"] {
        under(script);
    }
}
