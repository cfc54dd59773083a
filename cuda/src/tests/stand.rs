//! What the tests share: a bucket, loaders over it, and a consumer that reads every batch back on a stream of its own.
#![cfg(test)]

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent, CUstream};
use fuelrail::{Backend, ByteSize, Decode, Loader, LoaderBuilder};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_cuda_driver::{Control, Settings, on_device};

use crate::context::Context;
use crate::{Device, DeviceBatch, Feed, FeedConfig, RawStream};

/// Longest wait for something that must come. Far beyond what is needed: only a hang meets it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Filling this eight times keeps a device busy for longer than the copy of a batch takes.
const BUSY_BYTES: usize = 64 << 20;

/// Most samples of a batch that is read back.
const LABELS_MAX: usize = 64;

/// A bucket of small objects, its keys in the order of sample numbers.
pub(super) struct Store {
    pub(super) set: DataSet,
    pub(super) keys: Vec<String>,
    pub(super) bucket: Bucket,
    pixels: OnceLock<Vec<Vec<u8>>>,
}

impl Store {
    pub(super) fn digits(samples: u64) -> Store {
        let set = DataSet::digits(samples, 7);
        let mut keys: Vec<String> = (0..samples).map(|i| set.key(i)).collect();
        keys.sort_unstable();
        let config = BucketConfig { source: Source::Generated(set.clone()), ..BucketConfig::default() };
        Store { set, keys, bucket: Bucket::start(config).unwrap(), pixels: OnceLock::new() }
    }

    /// What every sample decodes to.
    fn pixels(&self) -> &[Vec<u8>] {
        self.pixels.get_or_init(|| {
            let mut pixels = vec![Vec::new(); self.keys.len()];
            for batch in self.loader().decode(Decode::exact(28, 28, 1)).build().unwrap() {
                batch.unwrap().samples().for_each(|sample| pixels[sample.id.0 as usize] = sample.bytes.to_vec());
            }
            pixels
        })
    }

    /// A small loader of one shard.
    pub(super) fn loader(&self) -> LoaderBuilder {
        Loader::builder(self.bucket.url(""))
            .memory_limit("6MB".parse().unwrap())
            .shards(1)
            .connections_max(8)
            .pin(false)
            .ring(Backend::Poll)
            .watchdog_after(Duration::from_secs(10))
    }
}

/// The builder with the least memory it is not refused with, and `more` bytes: so little that slots go round all the time.
pub(super) fn tight(builder: LoaderBuilder, more: u64) -> LoaderBuilder {
    let refused = builder.clone().memory_limit(ByteSize(4096)).build().unwrap_err().to_string();
    let number = refused.split("raise memory_limit to ").nth(1).and_then(|rest| rest.split(',').next());
    builder.memory_limit(ByteSize(number.unwrap().parse::<u64>().unwrap() + more))
}

/// The driver's control functions.
pub(super) fn control() -> Control {
    Control::find().unwrap()
}

/// Settings under which every early reuse of a slot is seen.
pub(super) fn watching() -> Settings {
    Settings { watch_sources: true, forbid_pageable: true, ..Settings::default() }
}

#[track_caller]
pub(super) fn check(result: sys::CUresult) {
    result.result().unwrap();
}

/// Pinned host memory that a batch is read back into.
struct Landing {
    at: *mut u8,
    bytes: usize,
    used: usize,
    ids: Vec<u64>,
    offsets: Vec<usize>,
    lens: Vec<usize>,
    labels: Vec<u32>,
    decoded: bool,
    done: CUevent,
    busy: bool,
}

/// A trainer without a network: reads every batch back on its own stream and compares it later, when the stream is past it.
pub(super) struct Consumer {
    context: Arc<Context>,
    stream: CUstream,
    landings: VecDeque<Landing>,
    /// Device memory that is filled before every read, where no driver of ours is late on purpose: 0 for none.
    busy: u64,
    /// Samples found right.
    pub(super) right: Vec<u64>,
    /// What was found wrong.
    pub(super) wrong: Vec<String>,
}

impl Consumer {
    /// With room to read back `depth` batches of at most `bytes` at a time.
    pub(super) fn new(device: u32, depth: usize, bytes: usize) -> Consumer {
        let context = Arc::clone(Device::open(device).unwrap().context());
        let entered = context.enter().unwrap();
        let mut stream = core::ptr::null_mut();
        // SAFETY: writes one handle, to a variable that lives through the call; the stand destroys what it makes, when nothing
        // uses it any more.
        check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) });
        let landing = |_| {
            let (mut at, mut done) = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: writes one address; freed when the stream is past all copies to it.
            check(unsafe { sys::cuMemHostAlloc(&raw mut at, bytes + LABELS_MAX * 8, 0) });
            // SAFETY: writes one handle, to a variable that lives through the call.
            check(unsafe { sys::cuEventCreate(&raw mut done, 2) });
            let (ids, offsets, lens, labels) = Default::default();
            Landing { at: at.cast(), bytes, used: 0, ids, offsets, lens, labels, decoded: false, done, busy: false }
        };
        let landings = (0..depth).map(landing).collect();
        let mut busy = 0;
        if on_device() && depth > 0 {
            // SAFETY: writes one address, to a variable that lives through the call; freed when the stream is past its last use.
            check(unsafe { sys::cuMemAlloc_v2(&raw mut busy, BUSY_BYTES) });
        }
        drop(entered);
        Consumer { context, stream, landings, busy, right: Vec::new(), wrong: Vec::new() }
    }

    pub(super) fn stream(&self) -> RawStream {
        // SAFETY: the stand drops batches before the stream is destroyed.
        unsafe { RawStream::from_raw(self.stream.cast()) }
    }

    /// Asks the stream to read a batch back.
    pub(super) fn read(&mut self, batch: &DeviceBatch, store: &Store) {
        let mut landing = self.landings.pop_front().unwrap();
        if landing.busy {
            self.compare(&mut landing, store);
        }
        landing.used = batch.bytes();
        landing.decoded = batch.shape().len() == 4;
        assert!(landing.used <= landing.bytes, "the stand has room for every batch");
        landing.ids = batch.ids().iter().map(|id| id.0).collect();
        landing.offsets = batch.offsets().to_vec();
        landing.lens = batch.lens().to_vec();
        landing.labels = batch.labels().to_vec();
        assert!(landing.labels.len() <= LABELS_MAX, "the stand has room for every label");
        let _entered = self.context.enter().unwrap();
        for byte in (0..8).filter(|_| self.busy != 0) {
            // SAFETY: the memory is the stand's own, and so long.
            check(unsafe { sys::cuMemsetD8Async(self.busy, byte, BUSY_BYTES, self.stream) });
        }
        // SAFETY: the batch's buffer is held until the stream is past this copy: the batch marks its end after it. The target
        // is pinned memory of the stand.
        unsafe {
            check(sys::cuMemcpyDtoHAsync_v2(landing.at.cast(), batch.pointer(), landing.used, self.stream));
            let (labels, bytes) = (landing.at.add(landing.bytes).cast(), landing.labels.len() * 8);
            check(sys::cuMemcpyDtoHAsync_v2(labels, batch.labels_pointer(), bytes, self.stream));
            check(sys::cuEventRecord(landing.done, self.stream));
        }
        landing.busy = true;
        self.landings.push_back(landing);
    }

    fn compare(&mut self, landing: &mut Landing, store: &Store) {
        let _entered = self.context.enter().unwrap();
        // SAFETY: the event is the stand's own.
        check(unsafe { sys::cuEventSynchronize(landing.done) });
        // SAFETY: the stream is past the copy that wrote it, and no other was asked for.
        let bytes = unsafe { core::slice::from_raw_parts(landing.at, landing.used) };
        for ((id, offset), len) in landing.ids.iter().zip(&landing.offsets).zip(&landing.lens) {
            let (sample, found) = (*id as usize, &bytes[*offset..*offset + *len]);
            let verdict = match landing.decoded {
                true if found == store.pixels()[sample] => Ok(()),
                true => Err(format!("sample {id} decoded")),
                false => store.set.verify(&store.keys[sample], found).map_err(|error| error.to_string()),
            };
            match verdict {
                Ok(()) => self.right.push(*id),
                Err(error) => self.wrong.push(error),
            }
        }
        // SAFETY: as above; after the bytes there is room for the labels.
        let labels = unsafe { core::slice::from_raw_parts(landing.at.add(landing.bytes), landing.labels.len() * 8) };
        let found = labels.as_chunks().0.iter().map(|label| i64::from_ne_bytes(*label));
        if !found.eq(landing.labels.iter().map(|&label| i64::from(label))) {
            self.wrong.push(format!("labels of {:?}", landing.ids));
        }
        landing.busy = false;
    }

    /// Compares what is still on its way.
    pub(super) fn finish(&mut self, store: &Store) {
        for mut landing in core::mem::take(&mut self.landings) {
            if landing.busy {
                self.compare(&mut landing, store);
            }
            self.landings.push_back(landing);
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // What it returns matters to nobody: a test that lost the device ends here too.
        // SAFETY: what the stand made is used by nobody any more once the stream is empty.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            if self.busy != 0 {
                let _ = sys::cuMemFree_v2(self.busy);
            }
            for landing in self.landings.drain(..) {
                let _ = sys::cuMemFreeHost(landing.at.cast());
                let _ = sys::cuEventDestroy_v2(landing.done);
            }
        }
    }
}

/// One run over a random feed with a random consumer.
pub(super) struct Trial {
    pub(super) depth: usize,
    pub(super) batch_size: u32,
    pub(super) seed: u64,
    /// Most batches the consumer holds at a time.
    pub(super) hold_max: usize,
    /// After how many batches the feed is dropped; `None` for never.
    pub(super) stop_after: Option<usize>,
    /// The chance that a batch goes to another stream before it is read.
    pub(super) move_chance: f64,
    /// The loader decodes.
    pub(super) decode: bool,
}

impl Trial {
    pub(super) fn random(seed: u64) -> Trial {
        let mut random = Prng::new(seed);
        let depth = 1 + random.below(4) as usize;
        Trial {
            depth,
            batch_size: 1 + random.below(24) as u32,
            seed,
            hold_max: random.below(depth as u64) as usize,
            stop_after: random.chance(0.25).then(|| random.below(12) as usize),
            move_chance: if random.chance(0.3) { 0.5 } else { 0.0 },
            decode: random.chance(0.1),
        }
    }

    /// Sets the driver's delays for this seed.
    pub(super) fn set_driver(&self) {
        let mut random = Prng::new(self.seed ^ 0xd21e);
        let most = [0, 40, 150, 400][random.below(4) as usize];
        control().set("seed", &self.seed.to_string());
        control().set("delay_us", &format!("0..={most}"));
        control().set("gbps", ["0", "0", "0.5"][random.below(3) as usize]);
    }

    /// Runs to the end or where it is to stop. Returns the consumer, and how many samples were taken.
    pub(super) fn run(&self, store: &Store) -> (Consumer, u64) {
        let mut random = Prng::new(self.seed ^ 0xc025);
        let mut builder = store.loader().batch_size(self.batch_size).seed(self.seed).shards(1 + random.below(2) as u16);
        if self.decode {
            builder = builder.decode(Decode::exact(28, 28, 1));
        }
        let loader = tight(builder, random.below(5) * 4096).build().unwrap();
        let room = loader.batch_bytes_max() as usize;
        let config = FeedConfig { depth: self.depth, ..FeedConfig::default() };
        let mut feed = Some(Feed::start(loader, config).unwrap());
        let mut consumer = Consumer::new(0, 1 + random.below(6) as usize, room);
        let other = Consumer::new(0, 0, 0);
        let (mut held, mut taken, mut samples) = (VecDeque::new(), 0, 0);
        while let Some(open) = feed.as_mut().filter(|_| self.stop_after != Some(taken)) {
            let stream = if random.chance(self.move_chance) { other.stream() } else { consumer.stream() };
            let Some(batch) = open.next(stream) else { break };
            let mut batch = batch.unwrap();
            batch.move_to(consumer.stream()).unwrap();
            (taken, samples) = (taken + 1, samples + batch.len() as u64);
            let (pixels, bytes) = ([batch.len() as i64, 28, 28, 1], [batch.bytes() as i64]);
            assert_eq!(batch.shape(), if self.decode { &pixels[..] } else { &bytes[..] });
            consumer.read(&batch, store);
            held.push_back(batch);
            while held.len() > self.hold_max || !held.is_empty() && random.chance(0.4) {
                drop(held.remove(random.below(held.len() as u64) as usize));
            }
        }
        // Some batches outlive their feed, some do not.
        if random.chance(0.5) {
            held.clear();
        }
        let remains = feed.take().map(Feed::close);
        assert_eq!(remains.flatten().map(|remains| remains.operations), Some(0));
        drop(held);
        consumer.finish(store);
        (consumer, samples)
    }
}

/// Waits until `done`; panics with `what` when it never is.
pub(super) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One bucket for all runs of a process.
pub(super) fn store() -> &'static Store {
    static STORE: LazyLock<Store> = LazyLock::new(|| Store::digits(90));
    &STORE
}
