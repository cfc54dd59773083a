//! DELI's prefetch: a sampler that watches its queue fall to the threshold, and a service that fetches what it asks for.
//!
//! Owns the service's thread and connections. Kept as published: the service takes one request after the other; for each it
//! lists the whole bucket again; it starts one OS thread per sample; and nothing enters the cache before all has landed.
//! The logic of the watermarks is the shipping one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::prefetch::{View, Watermarks};

use super::cache::ItemCache;
use super::http::Client;
use super::scale::Scale;

/// Stack of a thread that fetches one sample: it calls a handful of functions deep.
const FETCH_STACK_BYTES: usize = 128 << 10;

/// DELI's two published settings for a cache of C items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Setting {
    /// Threshold 0, fetch size C.
    FullFetch,
    /// Threshold and fetch size C/2.
    HalfAndHalf,
}

impl Setting {
    fn fetch_size(self, cache_samples: u64) -> u64 {
        match self {
            Setting::FullFetch => cache_samples,
            Setting::HalfAndHalf => cache_samples / 2,
        }
    }

    fn watermarks(self, cache_samples: u64) -> Result<Watermarks> {
        match self {
            Setting::FullFetch => Watermarks::full_fetch(cache_samples),
            Setting::HalfAndHalf => Watermarks::half_and_half(cache_samples),
        }
    }
}

/// The sampler: hands samples to the trainer and asks the service for those to come.
#[derive(Debug)]
pub(super) struct Sampler {
    setting: Setting,
    cache_samples: u64,
    watermarks: Watermarks,
    epoch: Vec<SampleId>,
    taken: usize,
    asked: usize,
    service: Service,
}

impl Sampler {
    /// A sampler with a service that fills `cache` from `bucket` at `addr`.
    pub(super) fn new(
        setting: Setting,
        scale: &Scale,
        addr: SocketAddr,
        bucket: &str,
        cache: Arc<ItemCache>,
    ) -> Result<Sampler> {
        let watermarks = setting.watermarks(scale.cache_samples)?;
        let service = Service::start(scale, addr, bucket, cache)?;
        let cache_samples = scale.cache_samples;
        Ok(Sampler { setting, cache_samples, watermarks, epoch: Vec::new(), taken: 0, asked: 0, service })
    }

    /// Starts an epoch with an empty queue: DELI never looks across the edge.
    pub(super) fn begin_epoch(&mut self, samples: Vec<SampleId>) -> Result<()> {
        self.watermarks = self.setting.watermarks(self.cache_samples)?;
        (self.epoch, self.taken, self.asked) = (samples, 0, 0);
        Ok(())
    }

    /// The trainer takes the next `count` samples from the queue; the service is asked whenever the queue is short.
    ///
    /// # Errors
    /// What an earlier request failed with.
    pub(super) fn take(&mut self, count: usize) -> Result<()> {
        let fetch_size = self.setting.fetch_size(self.cache_samples) as usize;
        for _ in 0..count {
            let view = View {
                opened_samples: self.asked as u64,
                queued_samples: self.asked.saturating_sub(self.taken) as u64,
                ..View::default()
            };
            let credit = usize::try_from(self.watermarks.credit(&view)).unwrap_or(usize::MAX);
            let until = self.asked.saturating_add(credit).min(self.epoch.len());
            for request in self.epoch[self.asked..until].chunks(fetch_size) {
                self.service.ask(request.to_vec())?;
            }
            self.asked = until;
            self.taken += 1;
        }
        Ok(())
    }

    /// Objects and listing pages the service has read.
    pub(super) fn reads(&self) -> (u64, u64) {
        let shared = &self.service.shared;
        (shared.gets.load(Ordering::Relaxed), shared.list_pages.load(Ordering::Relaxed))
    }
}

/// The prefetch service. Dropping it ends its thread after the fetch under way.
#[derive(Debug)]
struct Service {
    shared: Arc<Shared>,
    requests: Option<Sender<Vec<SampleId>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    gets: AtomicU64,
    list_pages: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Service {
    fn start(scale: &Scale, addr: SocketAddr, bucket: &str, cache: Arc<ItemCache>) -> Result<Service> {
        let shared = Arc::<Shared>::default();
        let (requests, received) = channel();
        let fetcher = Fetcher {
            shared: Arc::clone(&shared),
            cache,
            lister: Client::new(addr, bucket),
            page_keys: scale.list_page_keys,
            connections: Connections::new(scale.fetch_connections, || Client::new(addr, bucket)),
        };
        let thread = std::thread::Builder::new()
            .name("deli-service".to_owned())
            .spawn(move || fetcher.serve(&received))
            .map_err(|e| Error::new(Kind::Environment, format!("starting the prefetch service: {e}")))?;
        Ok(Service { shared, requests: Some(requests), thread: Some(thread) })
    }

    fn ask(&self, samples: Vec<SampleId>) -> Result<()> {
        let sent = self.requests.as_ref().is_some_and(|requests| requests.send(samples).is_ok());
        if sent {
            return Ok(());
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(failure.unwrap_or_else(|| Error::new(Kind::Cancelled, "the prefetch service has ended")))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has already printed itself.
            let _ = thread.join();
        }
    }
}

/// The service's own side.
struct Fetcher {
    shared: Arc<Shared>,
    cache: Arc<ItemCache>,
    lister: Client,
    page_keys: usize,
    connections: Connections,
}

impl Fetcher {
    fn serve(mut self, requests: &Receiver<Vec<SampleId>>) {
        while let Ok(samples) = requests.recv() {
            if self.shared.stopped.load(Ordering::Relaxed) {
                return;
            }
            match self.fetch(&samples) {
                Ok(landed) => self.cache.put(landed),
                Err(error) => {
                    // Told to the trainer at its next request, as the channel closes behind this.
                    *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return;
                }
            }
        }
    }

    /// All of the samples, in the order asked for.
    fn fetch(&mut self, samples: &[SampleId]) -> Result<Vec<(SampleId, Box<[u8]>)>> {
        let keys = self.list()?;
        let landed = Mutex::new(Vec::with_capacity(samples.len()));
        let (connections, shared, landed_in) = (&self.connections, &self.shared, &landed);
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(samples.len());
            for (place, id) in samples.iter().enumerate() {
                let key = keys.get(id.0 as usize).ok_or_else(|| {
                    Error::new(Kind::NotFound, format!("sample {} is not among the {} listed", id.0, keys.len()))
                })?;
                let body = move || -> Result<()> {
                    let mut bytes = Vec::new();
                    connections.lend(|client| client.get(key, &mut bytes))?;
                    shared.gets.fetch_add(1, Ordering::Relaxed);
                    let sample = (place, *id, bytes.into_boxed_slice());
                    landed_in.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                    Ok(())
                };
                let thread = std::thread::Builder::new().stack_size(FETCH_STACK_BYTES).spawn_scoped(scope, body);
                threads.push(thread.map_err(|e| no_thread(samples.len(), &e))?);
            }
            for thread in threads {
                thread.join().map_err(|_| Error::new(Kind::Cancelled, "a fetching thread panicked"))??;
            }
            Ok(())
        })?;
        let mut landed = landed.into_inner().unwrap_or_else(PoisonError::into_inner);
        landed.sort_unstable_by_key(|(place, ..)| *place);
        Ok(landed.into_iter().map(|(_, id, bytes)| (id, bytes)).collect())
    }

    /// Every key of the bucket, in order.
    fn list(&mut self) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let page = self.lister.list_page(self.page_keys, token.as_deref())?;
            self.shared.list_pages.fetch_add(1, Ordering::Relaxed);
            keys.extend(page.keys);
            if page.next.is_none() || self.shared.stopped.load(Ordering::Relaxed) {
                return Ok(keys);
            }
            token = page.next;
        }
    }
}

fn no_thread(samples: usize, error: &std::io::Error) -> Error {
    Error::new(Kind::Environment, format!("starting one of DELI's {samples} fetching threads: {error}"))
        .cure("raise the limit on threads (ulimit -u, the cgroup's pids.max), or run a smaller scale")
}

/// Connections that the threads of a fetch share.
#[derive(Debug)]
struct Connections {
    free: Mutex<Vec<Client>>,
    returned: Condvar,
}

impl Connections {
    fn new(count: usize, make: impl Fn() -> Client) -> Connections {
        Connections { free: Mutex::new((0..count).map(|_| make()).collect()), returned: Condvar::new() }
    }

    /// Waits for a free connection and uses it.
    fn lend<T>(&self, job: impl FnOnce(&mut Client) -> T) -> T {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.returned.wait_while(free, |free| free.is_empty()).unwrap_or_else(PoisonError::into_inner);
        let client = free.pop();
        drop(free);
        let mut client = client.expect("the wait ended because one is free");
        let result = job(&mut client);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        self.returned.notify_one();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
    use std::time::Duration;

    const SET: u64 = 300;

    fn bucket(script: &str) -> Bucket {
        let source = Source::Generated(DataSet::digits(SET, 4));
        Bucket::start(BucketConfig { source, script: script.parse().unwrap(), ..BucketConfig::default() }).unwrap()
    }

    fn sampler(setting: Setting, bucket: &Bucket) -> (Sampler, Arc<ItemCache>) {
        let scale = Scale { cache_samples: 40, list_page_keys: 100, ..Scale::quick(0) };
        let cache = Arc::new(ItemCache::new(scale.cache_samples));
        (Sampler::new(setting, &scale, bucket.addr(), "bucket", Arc::clone(&cache)).unwrap(), cache)
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        for _ in 0..2_000 {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("never: {what}");
    }

    #[test]
    fn fetches_come_at_the_watermarks_and_list_every_time() {
        let bucket = bucket("");
        for (setting, fetches) in [(Setting::FullFetch, [40, 40, 80]), (Setting::HalfAndHalf, [40, 60, 80])] {
            let (mut sampler, cache) = sampler(setting, &bucket);
            sampler.begin_epoch((0..SET).rev().map(SampleId).collect()).unwrap();
            let mut taken = 0;
            for (until_taken, gets) in [1, 21, 41].into_iter().zip(fetches) {
                sampler.take(until_taken - taken).unwrap();
                taken = until_taken;
                until("the fetches land", || sampler.reads().0 == gets);
            }
            let fetch_size = setting.fetch_size(40);
            let lists = 80 / fetch_size * 3;
            assert_eq!(sampler.reads(), (80, lists), "{setting:?}");
            let mut out = Vec::new();
            until("the last fetch is visible", || cache.read(SampleId(SET - 80), &mut Vec::new()));
            assert!(cache.read(SampleId(SET - 41), &mut out) && !cache.read(SampleId(SET - 1), &mut out));
        }
    }

    #[test]
    fn the_queue_ends_with_the_epoch() {
        let bucket = bucket("");
        let (mut sampler, _cache) = sampler(Setting::HalfAndHalf, &bucket);
        for _ in 0..2 {
            sampler.begin_epoch((0..30).map(SampleId).collect()).unwrap();
            sampler.take(30).unwrap();
            assert_eq!(sampler.asked, 30);
        }
        until("both epochs land", || sampler.reads().0 == 60);
    }

    #[test]
    fn a_failed_fetch_reaches_the_trainer() {
        let bucket = bucket("error=1.0,per_key_max=1000");
        let (mut sampler, _cache) = sampler(Setting::HalfAndHalf, &bucket);
        sampler.begin_epoch((0..SET).map(SampleId).collect()).unwrap();
        let mut outcome = Ok(());
        for _ in 0..SET {
            outcome = sampler.take(1);
            if outcome.is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(outcome.unwrap_err().kind(), Kind::Server);
    }
}
