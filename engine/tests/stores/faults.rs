//! The suite against the embedded bucket on its bad days: every kind of fault on some requests of all of it.

use crate::suite::{Server, conforms};
use crate::writable;
use fuelrail::{Access, LoaderBuilder};
use fuelrail_bucket::{Bucket, FaultKind};

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
        builder.stall_after_ms(300)
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
    let drawn = FaultKind::DRAWN.map(|kind| {
        // A second stray entity tag in a row means that an object did change.
        let most = if matches!(kind, FaultKind::WrongEtag | FaultKind::Changed) { 1 } else { 2 };
        let lasts = if kind == FaultKind::Stall { "/900ms" } else { "" };
        format!("{kind}=0.2{lasts},per_key_max={most}")
    });
    for script in drawn {
        assert!(under(&script) > 0, "{script} did nothing");
    }
    for script in ["close_after=3", "drop_after=3", "slowdown_rps=200", "latency=pareto:2ms/1.5"] {
        under(script);
    }
}
