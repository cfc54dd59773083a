//! Serves the page of metrics of one loader, at the setting `metrics_listen`.
//!
//! The consumer passes on what it has counted with each batch; what the shards have counted is read when the page is asked for.

use crate::config::Config;
use crate::decode::Facts;
use crate::memory::MemoryStats;
use crate::serve::{Answer, HttpServer, address_of, listen};
use crate::stats::{Stats, Tally};
use crate::watch::Shards;
use fuelrail_base::Result;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a page waits for what the shards have counted.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections at a time: those who scrape are few.
const CONNECTIONS: usize = 16;
/// How long they may be silent.
const SILENCE: Duration = Duration::from_secs(30);

struct Shown {
    rank: u32,
    tally: Mutex<Tally>,
    shards: Shards,
    decode: Option<Arc<Facts>>,
    memory: MemoryStats,
    started: Instant,
}

/// The page, until this is dropped.
pub(crate) struct Metrics {
    shown: Arc<Shown>,
    _server: HttpServer,
}

impl Metrics {
    /// Serves it where the configuration says so.
    pub(crate) fn start(
        config: &Config,
        shards: Shards,
        decode: Option<&Arc<Facts>>,
        memory: MemoryStats,
    ) -> Result<Option<Metrics>> {
        let Some(address) = &config.metrics_listen else { return Ok(None) };
        let hint = "give each rank of a machine a port of its own";
        let socket = listen("metrics", address_of("metrics_listen", address)?, hint)?;
        let shown = Arc::new(Shown {
            rank: config.rank,
            tally: Mutex::default(),
            shards,
            decode: decode.cloned(),
            memory,
            started: Instant::now(),
        });
        let page = Arc::clone(&shown);
        let answer = move |_, request: Request<Incoming>| {
            let answer = page.answer(&request);
            async { answer }
        };
        let server =
            HttpServer::start("fuelrail-metrics", (socket, None), (CONNECTIONS, SILENCE), answer, async || {
                core::future::pending().await
            })?;
        Ok(Some(Metrics { shown, _server: server }))
    }

    /// Takes over what the consumer has counted.
    pub(crate) fn take(&self, tally: Tally) {
        *self.shown.tally.lock().unwrap_or_else(PoisonError::into_inner) = tally;
    }
}

impl Shown {
    fn answer(&self, request: &Request<Incoming>) -> Answer {
        let mut answer = Answer::new(Full::default());
        if !matches!(*request.method(), Method::GET | Method::HEAD) || request.uri().path() != "/metrics" {
            *answer.status_mut() = StatusCode::NOT_FOUND;
            return answer;
        }
        let tally = *self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let shards = self.shards.snapshots(PATIENCE);
        let stats = Stats::new(&tally, self.started.elapsed(), &shards).with_decode(self.decode.as_ref());
        let disk = stats.disk.map(|disk| disk.with_segment_manager(&self.shards.segments()));
        let on_disk = disk.as_ref().map_or(0, |disk| disk.index_bytes);
        let memory = MemoryStats { tables_bytes: self.memory.tables_bytes + on_disk, ..self.memory };
        let page = Stats { disk, memory, ..stats }.prometheus(self.rank);
        *answer.body_mut() = Full::new(Bytes::from(page));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }
}
