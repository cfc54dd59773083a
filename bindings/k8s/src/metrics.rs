//! The metrics page in Prometheus' text format, and the endpoints of Kubernetes' probes.
//!
//! No data set, pod or key is a label: their number is unbounded.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// What the operator counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Metric {
    Passes,
    PassesUs,
    Errors,
    Conflicts,
    Jobs,
    Placements,
    Leads,
    Datasets,
    DatasetsReady,
    DatasetsDegraded,
    HeldBytes,
    PodsWaiting,
}

/// Name, type, factor from the stored value to the unit, and help, in the order of [`Metric`].
const TABLE: [(&str, &str, f64, &str); 12] = [
    ("reconcile_passes_total", "counter", 1.0, "Reconcile passes over all data sets and pods."),
    ("reconcile_seconds_total", "counter", 1e-6, "Time spent in reconcile passes."),
    ("api_errors_total", "counter", 1.0, "Requests to the API server that failed."),
    ("api_conflicts_total", "counter", 1.0, "Requests refused with 409 Conflict: the view was stale."),
    ("jobs_created_total", "counter", 1.0, "Jobs created to load or clean."),
    ("placements_total", "counter", 1.0, "Pods whose gate was removed."),
    ("leader", "gauge", 1.0, "Whether this replica is the leader."),
    ("datasets", "gauge", 1.0, "Data sets."),
    ("datasets_ready", "gauge", 1.0, "Data sets with condition Ready."),
    ("datasets_degraded", "gauge", 1.0, "Data sets with condition Degraded."),
    ("held_bytes", "gauge", 1.0, "Bytes of data sets on disks."),
    ("pods_waiting", "gauge", 1.0, "Pods with the gate."),
];

/// The values.
#[derive(Debug, Default)]
pub struct Metrics {
    values: [AtomicU64; TABLE.len()],
    /// Whether the first listing of the cluster is complete.
    pub(crate) synced: AtomicBool,
}

impl Metrics {
    /// Adds to a counter.
    pub(crate) fn add(&self, metric: Metric, more: u64) {
        self.values[metric as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub(crate) fn set(&self, metric: Metric, value: u64) {
        self.values[metric as usize].store(value, Ordering::Relaxed);
    }

    /// Sets all gauges to 0: another replica knows them now.
    pub(crate) fn forget(&self) {
        for (value, (_, kind, ..)) in self.values.iter().zip(TABLE) {
            if kind == "gauge" {
                value.store(0, Ordering::Relaxed);
            }
        }
    }

    fn page(&self) -> String {
        let mut page = String::new();
        for (value, (name, kind, unit, help)) in self.values.iter().zip(TABLE) {
            let (name, value) = (format!("fuelrail_operator_{name}"), value.load(Ordering::Relaxed) as f64 * unit);
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
        let (name, version) = ("fuelrail_operator_build_info", env!("CARGO_PKG_VERSION"));
        let _ = write!(page, "# HELP {name} Its version.\n# TYPE {name} gauge\n{name}{{version=\"{version}\"}} 1\n");
        page
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, text) = match request.uri().path() {
            "/metrics" => (StatusCode::OK, self.page()),
            "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
            "/readyz" if self.synced.load(Ordering::Relaxed) => (StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "the cluster is not listed yet\n".to_owned()),
            _ => (StatusCode::NOT_FOUND, "not found: /metrics, /healthz, /readyz\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
        response
    }
}

/// Serves `/metrics`, `/healthz` and `/readyz` until the runtime ends.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely out of file descriptors, which are freed later.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        let serve = service_fn(move |request: Request<Incoming>| {
            let response = metrics.answer(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(async move {
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10)).keep_alive(false);
            // An error here means that the client closed the connection.
            let _ = server.serve_connection(TokioIo::new(stream), serve).await;
        });
    }
}
