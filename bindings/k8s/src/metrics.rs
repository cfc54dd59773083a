//! The page of metrics, by Prometheus' conventions, and the answers to Kubernetes' probes.
//!
//! No data set, pod or key is a label: their number has no limit.

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
#[derive(Debug, Default)]
pub struct Metrics {
    /// Looks at all data sets and pods.
    pub passes: AtomicU64,
    /// Time that they took, µs.
    pub passes_us: AtomicU64,
    /// Requests to the API server that failed, conflicts included.
    pub errors: AtomicU64,
    /// … because the view was stale (409).
    pub conflicts: AtomicU64,
    /// Jobs created.
    pub jobs: AtomicU64,
    /// Gates lifted.
    pub placements: AtomicU64,
    /// Whether this replica leads.
    pub leads: AtomicBool,
    /// Whether all of the cluster has been seen.
    pub synced: AtomicBool,
    /// Data sets.
    pub datasets: AtomicU64,
    /// … that are ready.
    pub datasets_ready: AtomicU64,
    /// … that are degraded.
    pub datasets_degraded: AtomicU64,
    /// Bytes on disks.
    pub held_bytes: AtomicU64,
    /// Pods behind the gate.
    pub pods_waiting: AtomicU64,
}

impl Metrics {
    /// Adds to a counter.
    pub(crate) fn add(&self, counter: fn(&Metrics) -> &AtomicU64, more: u64) {
        counter(self).fetch_add(more, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub(crate) fn set(&self, gauge: fn(&Metrics) -> &AtomicU64, value: u64) {
        gauge(self).store(value, Ordering::Relaxed);
    }

    /// The page.
    pub fn page(&self) -> String {
        let of = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
        let lines: [(&str, &str, &str, f64); 12] = [
            ("reconcile_passes_total", "counter", "Looks at all data sets and pods.", of(&self.passes)),
            ("reconcile_seconds_total", "counter", "Time that they took.", of(&self.passes_us) / 1e6),
            ("api_errors_total", "counter", "Requests to the API server that failed.", of(&self.errors)),
            ("api_conflicts_total", "counter", "Of these, those refused for a stale view.", of(&self.conflicts)),
            ("jobs_created_total", "counter", "Jobs created to load or clean.", of(&self.jobs)),
            ("placements_total", "counter", "Pods whose gate was lifted.", of(&self.placements)),
            ("leader", "gauge", "Whether this replica leads.", u8::from(self.leads.load(Ordering::Relaxed)).into()),
            ("datasets", "gauge", "Data sets.", of(&self.datasets)),
            ("datasets_ready", "gauge", "Data sets that are ready.", of(&self.datasets_ready)),
            ("datasets_degraded", "gauge", "Data sets that are degraded.", of(&self.datasets_degraded)),
            ("held_bytes", "gauge", "Bytes of data sets on disks.", of(&self.held_bytes)),
            ("pods_waiting", "gauge", "Pods behind the gate.", of(&self.pods_waiting)),
        ];
        let mut page = String::new();
        for (name, kind, help, value) in lines {
            let name = format!("fuelrail_operator_{name}");
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
        let name = "fuelrail_operator_build_info";
        let version = env!("CARGO_PKG_VERSION");
        let _ = write!(
            page,
            "# HELP {name} The operator's build.\n# TYPE {name} gauge\n{name}{{version=\"{version}\"}} 1\n"
        );
        page
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, text) = match request.uri().path() {
            "/metrics" => (StatusCode::OK, self.page()),
            "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
            "/readyz" if self.synced.load(Ordering::Relaxed) => (StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "the cluster has not been seen yet\n".to_owned()),
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
            // Out of descriptors, most likely: they come back.
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
            // A reader that goes away is no concern of ours.
            let _ = server.serve_connection(TokioIo::new(stream), serve).await;
        });
    }
}
