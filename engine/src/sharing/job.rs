//! The job's side: its relay hands on the batches that another process reads, and reads alone where that ends.

use super::protocol::{
    Connection, Head, Heard, LeftOut, ToJob, ToReader, VERSION, garbled, message, samples, socket_name, terms,
};
use super::thread::{Progress, RelayEnds, RelayThread};
use crate::config::Config;
use crate::layout::Layout;
use crate::listing::Saved;
use crate::loader::{Delivery, Loader, Parts};
use crate::memory::{Mapped, Memory, MemoryStats, share_out};
use crate::prepared::{Prepared, settle_decoding};
use fuelrail_base::limits::OPEN_BATCHES_MAX;
use fuelrail_base::{BatchSeq, ByteSize, Duration, Error, Kind, Result};
use fuelrail_flow::{Assembled, Consumer, Finished, FreeLists, Objects, Outlet, PeerRoom, SampleSpan};
use fuelrail_io::{Arena, ArenaConfig, BorrowedMemory, LocalSocket, OwnDirectory, Sender, channel, wait_for};
use fuelrail_plan::run::{BatchSpec, Run};
use futures_core::Stream;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake};
use std::time::Instant;

/// How long the process that reads may take to answer: it lists first, as the job has.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How many times `stall_after` the process that reads may leave unanswered that a job waits: longer than the watchdog is silent by default.
const STALLS_MAX: u32 = 4;
/// The same before it lends its memory, which may take long to make.
const STALLS_AT_START_MAX: u32 = 60;
/// The longest sleep of a relay, and how often a job that waits says so.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A job's own memory where it decodes nothing.
const PAGE_BYTES: u64 = 4096;

/// A loader that takes its batches from the process that serves its URI; or reads alone, if there is none.
///
/// # Errors
/// `Usage` where that process has another setting; those of a loader.
pub(crate) fn join(mut prepared: Prepared) -> Result<Loader> {
    match agree(&prepared)? {
        Ok((connection, decodes)) => relayed(prepared, connection, decodes),
        Err(why) => {
            prepared.parts.notices.push(format!("shared_read: {why}; this job reads alone to the end of its run"));
            prepared.parts.config.network.shared_read = false;
            prepared.start()
        }
    }
}

/// The connection to the process that reads, and whether it decodes; or why the job reads alone.
fn agree(prepared: &Prepared) -> Result<Result<(Connection, bool), String>> {
    let Parts { config, run, .. } = &prepared.parts;
    let dir = config.network.share_dir.as_deref().expect("checked: shared_read has a share_dir");
    let found = OwnDirectory::find(dir).and_then(|own| match own {
        None => Ok(None),
        Some(own) => LocalSocket::connect(&own, &socket_name(&config.uri)),
    });
    let socket = match found {
        Ok(Some(socket)) => socket,
        Ok(None) => return Ok(Err(format!("no process serves {} in {}", config.uri, dir.display()))),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let start = run.config().start;
    let terms = terms(&prepared.parts);
    let hello = ToReader::Hello { version: VERSION, terms, epoch: start.epoch, position: start.position };
    let mut connection = Connection::over(socket);
    connection.say(message(&hello, &[]), None);
    let begun = Instant::now();
    loop {
        match connection.hear()? {
            Heard::Message(ToJob::Agreed { decodes }, ..) => return Ok(Ok((connection, decodes))),
            Heard::Message(ToJob::Alone { why }, ..) => return Ok(Err(why)),
            Heard::Message(ToJob::Refused { cause, hint }, ..) => {
                return Err(Error::new(Kind::Usage, format!("shared_read: {cause}")).with_hint(hint));
            }
            Heard::Message(..) => return Err(garbled("it does not answer the first")),
            Heard::Closed => return Ok(Err("the process that reads ended before it answered".into())),
            Heard::Nothing if begun.elapsed() > ANSWER_LIMIT => {
                return Ok(Err(format!("the process that reads did not answer within {} s", ANSWER_LIMIT.as_secs())));
            }
            Heard::Nothing => {
                connection.flush();
                wait_for([(connection.socket.as_fd(), connection.is_stuck())], LOOK_AGAIN);
            }
        }
    }
}

/// A loader whose batches come over this connection.
fn relayed(mut prepared: Prepared, connection: Connection, decoded: bool) -> Result<Loader> {
    prepared.settle();
    let Parts { config, objects, records, held, .. } = &prepared.parts;
    let topology = config.topology();
    let has_disk = !prepared.directories.is_empty();
    let layout = share_out(config, objects, &topology, records.as_deref(), (has_disk, PeerRoom::default(), *held))?;
    let decodes = config.decode.shape.is_some() && !decoded;
    let alone = alone(&mut prepared, decodes.then_some(&layout));
    // What is decoded here needs memory here; the rest waits until this job reads alone.
    let extra_bytes = if decodes { layout.extra_bytes } else { 0 };
    let memory = ArenaConfig { bytes: PAGE_BYTES + extra_bytes, extra_bytes, ..ArenaConfig::default() };
    let (arena, mut regions) = Arena::new(&memory)?;
    let Parts { config, objects, run, notices, .. } = &mut prepared.parts;
    let extra = regions.pop().filter(|_| decodes);
    let decoding = settle_decoding(config, &layout, &topology, notices).zip(extra);
    let memory = MemoryStats { batch_bytes: 0, ..MemoryStats::new(config, objects, &layout, &arena, &[]) };
    let (out, from) = channel(1);
    let dir = config.network.share_dir.as_deref().unwrap_or(Path::new(""));
    let (pid, socket) = (connection.socket.peer(), socket_name(&config.uri));
    let ends = RelayEnds::new(format!("process {pid} (socket {socket} below {})", dir.display()));
    let consumer = Arc::new(Consumer::default());
    let outlet = Outlet::new(vec![from], vec![ends.waker.clone()], Arc::clone(&consumer), run.batches());
    let reader = Reader {
        connection,
        memory: None,
        expected: Expected {
            run: run.clone(),
            objects: Arc::clone(objects),
            sample_bytes: config.decoded().filter(|_| decoded).map(|decode| decode.sample_bytes()),
            has_fields: !config.fields.is_empty(),
            lists: FreeLists::new(OPEN_BATCHES_MAX, 0, 0),
        },
        serves: true,
        told: None,
        stall_after: config.network.stall_after,
    };
    let relay = Relay {
        ends: ends.clone(),
        out,
        ready: VecDeque::new(),
        next: 0,
        reader: Some(reader),
        alone: Some(alone),
        loader: None,
        run: run.clone(),
        consumer: Arc::clone(&consumer),
    };
    let relay = Some(RelayThread::start(ends, &consumer, move || relay.serve())?);
    prepared.deliver(outlet, decoding, Delivery { relay, ..Delivery::of(consumer, arena, memory) })
}

/// The loader that reads alone where sharing ends. Where its batches are decoded after the relay, it leaves the memory for that.
fn alone(prepared: &mut Prepared, decoding: Option<&Layout>) -> Prepared {
    let Prepared { parts, ring, directories, packed, report, .. } = prepared;
    let mut config = Config { audit: None, metrics_listen: None, ..parts.config.clone() };
    // The loader in front watches the same shards.
    (config.watchdog_after, config.report_on_sigusr1) = (None, false);
    config.network.shared_read = false;
    if let Some(layout) = decoding {
        config.decode.shape = None;
        config.memory.limit = config.memory.limit.map(|limit| ByteSize(limit.0 - layout.extra_bytes));
    }
    // Errors are judged where they are delivered.
    let (saved, notices) = (Saved::default(), Vec::new());
    Prepared {
        parts: Parts { config, saved, notices, ..parts.clone() },
        ring: (ring.0, None),
        directories: core::mem::take(directories),
        packed: packed.clone(),
        horizons: None,
        report: Arc::clone(report),
    }
}

/// Takes batches from the process that reads, or from a loader of its own, and hands them on in order.
struct Relay {
    ends: RelayEnds,
    out: Sender<Finished>,
    /// Received and not handed on yet: as many as the other process gives ahead.
    ready: VecDeque<Finished>,
    /// The next batch to be received.
    next: u64,
    /// Stays as long as batches of it are held.
    reader: Option<Reader>,
    alone: Option<Prepared>,
    loader: Option<Loader>,
    run: Run,
    consumer: Arc<Consumer>,
}

/// Wakes the relay for its own loader.
struct Task(fuelrail_io::Waker);

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.0.wake();
    }
}

impl Relay {
    fn serve(mut self) -> Result<()> {
        let (event, task) = (self.ends.waker.event()?, Arc::new(Task(self.ends.waker.clone())).into());
        while !self.ends.is_stopped() {
            self.ends.waker.drain();
            let sleeps = self.ends.waker.arm();
            if !self.turn(&task)? && sleeps {
                // One that does not serve has nothing to say, and perhaps an end that wakes.
                let reader = self.reader.iter().filter(|reader| reader.serves).map(|reader| &reader.connection);
                let sockets = reader.map(|connection| (connection.socket.as_fd(), connection.is_stuck()));
                wait_for(sockets.chain([(event.as_fd(), false)]), LOOK_AGAIN);
            }
            self.ends.waker.disarm();
        }
        self.ready.clear();
        if let Some(reader) = &mut self.reader {
            reader.release();
            reader.connection.say(message(&ToReader::Leaves, &[]), None);
        }
        Ok(())
    }

    /// Whether anything moved.
    fn turn(&mut self, task: &std::task::Waker) -> Result<bool> {
        let mut moved = false;
        if let Some(reader) = &mut self.reader {
            reader.release();
            reader.connection.flush();
            let wants_more = self.next < self.run.batches() && self.ready.is_empty();
            let starves = wants_more && self.consumer.waits() && self.out.room() > 0;
            moved |= reader.hear(&mut self.next, &mut self.ready, &self.ends)?;
            if !reader.serves {
                // Others wait for that memory, perhaps.
                let mut borrowed = self.ready.iter_mut().filter_map(|batch| batch.result.as_mut().ok());
                borrowed.try_for_each(|batch| batch.slot.own())?;
                reader.release();
            } else if starves && !moved {
                reader.ask(self.next, &self.ends.progress);
            }
        }
        let is_served = self.reader.as_ref().is_some_and(|reader| reader.serves);
        self.reader.take_if(|reader| !reader.serves && reader.outstanding() == 0 && !reader.connection.is_stuck());
        if !is_served && self.ready.is_empty() && self.out.room() > 0 {
            self.read_alone(task)?;
        }
        while let Some(batch) = self.ready.pop_front() {
            match self.out.send(batch) {
                Ok(()) => moved = true,
                Err(batch) => {
                    self.ready.push_front(batch);
                    break;
                }
            }
        }
        self.ends.progress.next.store(self.next, Ordering::Relaxed);
        Ok(moved)
    }

    /// Takes the next batch of a loader of its own, which begins where the other process stopped.
    fn read_alone(&mut self, task: &std::task::Waker) -> Result<()> {
        let Some(spec) = self.run.batch(BatchSeq(self.next)) else { return Ok(()) };
        if let Some(mut prepared) = self.alone.take() {
            let last = self.next.checked_sub(1);
            let start = last.map_or(self.run.config().start, |last| self.run.cursor_after(BatchSeq(last)));
            prepared.parts.run = prepared.parts.run.starting_at(start)?;
            let loader = prepared.start()?;
            loader.notices().iter().for_each(|notice| tracing::info!("{notice}"));
            self.ends.lies_in(loader.memory());
            self.ends.progress.is_alone.store(true, Ordering::Relaxed);
            self.loader = Some(loader);
        }
        let Some(loader) = &mut self.loader else { return Ok(()) };
        let result = match Pin::new(loader).poll_next(&mut Context::from_waker(task)) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Some(Ok(batch))) => Ok(Assembled { spec, ..batch.into_assembled() }),
            Poll::Ready(Some(Err(error))) => Err(error),
            Poll::Ready(None) => return Err(garbled("its run ends early")),
        };
        self.ready.push_back(Finished { seq: BatchSeq(self.next), result });
        self.next += 1;
        Ok(())
    }
}

/// The process that reads, as a job sees it.
struct Reader {
    connection: Connection,
    memory: Option<BorrowedMemory>,
    expected: Expected,
    /// Batches come from it.
    serves: bool,
    /// The batch that it was told is waited for, and when it was told last.
    told: Option<(u64, Instant)>,
    stall_after: Duration,
}

impl Reader {
    /// Says what was let go of.
    fn release(&mut self) {
        let Reader { connection, memory, .. } = self;
        if let Some(memory) = memory {
            memory.take_released(|name| connection.say(message(&ToReader::Released(name), &[]), None));
        }
    }

    /// Says that batch `next` is waited for, and says so again until something is heard: a process that is neither stopped nor hangs answers that.
    /// One that does not for too long is treated as if it had gone.
    fn ask(&mut self, next: u64, progress: &Progress) {
        let (now, mut silence) = (Instant::now(), Duration::ZERO);
        if let Some((_, last)) = self.told.filter(|(told, _)| *told == next) {
            let since = now - last;
            if since < LOOK_AGAIN {
                return;
            }
            // Of the time in which this process was stopped, little counts.
            silence = Duration::from_millis(progress.silence_ms.load(Ordering::Relaxed)) + since.min(2 * LOOK_AGAIN);
        }
        self.told = Some((next, now));
        progress.silence_ms.store(silence.as_millis() as u64, Ordering::Relaxed);
        let stalls = if self.memory.is_some() { STALLS_MAX } else { STALLS_AT_START_MAX };
        if silence < self.stall_after.max(LOOK_AGAIN).saturating_mul(stalls) {
            self.connection.say(message(&ToReader::Waits(next), &[]), None);
            return;
        }
        // When it goes on, it finds this, and frees what it holds for this job.
        self.connection.say(message(&ToReader::Leaves, &[]), None);
        let why = format!("{} has not answered for {} s", progress.reader, silence.as_secs());
        self.end(&why, next);
    }

    fn outstanding(&self) -> usize {
        self.memory.as_ref().map_or(0, BorrowedMemory::outstanding)
    }

    /// Takes in what it says. Whether it said anything.
    fn hear(&mut self, next: &mut u64, ready: &mut VecDeque<Finished>, ends: &RelayEnds) -> Result<bool> {
        let mut heard = false;
        loop {
            match self.connection.hear()? {
                Heard::Nothing => break,
                // It has served before it knew that this job reads alone.
                Heard::Message(ToJob::Batch(head), ..) if !self.serves => {
                    self.connection.say(message(&ToReader::Released(head.name), &[]), None);
                }
                Heard::Message(..) if !self.serves => {}
                Heard::Closed if !self.serves => break,
                Heard::Closed => self.end("the process that reads has gone", *next),
                Heard::Message(ToJob::Alone { why }, ..) => self.end(&why, *next),
                Heard::Message(ToJob::Here, ..) => {}
                Heard::Message(ToJob::Memory, _, Some(memory)) if self.memory.is_none() => {
                    let memory = BorrowedMemory::map(&memory, &self.connection.socket, OPEN_BATCHES_MAX as u32)?;
                    memory.set_waker(ends.waker.clone());
                    ends.lies_in(Memory(Mapped::Borrowed(memory.whole())));
                    self.memory = Some(memory);
                }
                Heard::Message(ToJob::Batch(head), ..) if *next >= self.expected.run.batches() => {
                    // The process that reads has more epochs than this job.
                    self.connection.say(message(&ToReader::Leaves, &[]), None);
                    self.connection.say(message(&ToReader::Released(head.name), &[]), None);
                }
                Heard::Message(ToJob::Batch(head), table, _) => {
                    let memory = self.memory.as_mut().ok_or_else(|| garbled("a batch before the memory"))?;
                    let seq = BatchSeq(*next);
                    let batch = self.expected.read(seq, &head, &table, memory);
                    ready.push_back(Finished { seq, result: Ok(batch.map_err(|cause| garbled(&cause))?) });
                    *next += 1;
                }
                Heard::Message(..) => return Err(garbled("it is not due")),
            }
            heard = true;
        }
        if heard {
            ends.progress.silence_ms.store(0, Ordering::Relaxed);
        }
        Ok(heard)
    }

    fn end(&mut self, why: &str, next: u64) {
        self.serves = false;
        if self.expected.run.batch(BatchSeq(next)).is_some() {
            tracing::warn!("shared_read: {why}; this job reads alone from batch {next} on");
        }
    }
}

/// What a batch of the other process is checked against.
struct Expected {
    run: Run,
    objects: Arc<Objects>,
    /// Bytes of a sample, where they come decoded.
    sample_bytes: Option<u64>,
    /// Other fields of theirs may come, too.
    has_fields: bool,
    lists: FreeLists,
}

impl Expected {
    /// The batch of a message; what is wrong with it otherwise.
    fn read(&self, seq: BatchSeq, head: &Head, table: &[u8], memory: &mut BorrowedMemory) -> Result<Assembled, String> {
        let spec = self.run.batch(seq).ok_or("a batch after the last")?;
        if (head.epoch, head.from..head.to) != (spec.epoch, spec.positions.clone()) {
            let (epoch, positions) = (spec.epoch, &spec.positions);
            let of = format!("epoch {} and positions {}..{}", head.epoch, head.from, head.to);
            return Err(format!("a batch of {of} in the place of epoch {epoch} and {positions:?}"));
        }
        // In any order: what could not be fetched, then what could not be decoded.
        let mut left_out: Vec<_> = head.left_out.iter().map(LeftOut::read).collect();
        let mut given = samples(table).ok_or("a table that is cut")?;
        let (mut spans, mut missing) = (self.lists.list(), Vec::new());
        for (at, id) in self.run.samples(&spec).enumerate() {
            if let Some(found) = left_out.iter().position(|(out, _)| *out == id) {
                missing.push(left_out.swap_remove(found));
                continue;
            }
            let span =
                given.next().filter(|span| span.id == id).ok_or(format!("sample {} is not number {at}", id.0))?;
            let due = self.sample_bytes.unwrap_or_else(|| self.objects.catalog().size(id));
            let end = (span.offset as u64).checked_add(due).filter(|end| *end <= head.len);
            if span.len as u64 != due || end.is_none() {
                return Err(format!("sample {} of {due} bytes at {}+{} of {}", id.0, span.offset, span.len, head.len));
            }
            spans.push(span);
        }
        if given.len() > 0 || !left_out.is_empty() {
            return Err("more samples than the batch has".into());
        }
        self.is_dense(&spec, head, &spans)?;
        let slot = memory.slot(head.name, head.offset, head.len);
        let slot = slot.ok_or(format!("bytes {}+{} outside the memory, or too many batches", head.offset, head.len))?;
        Ok(Assembled { spec, slot, samples: spans, left_out: missing })
    }

    /// A decoded batch is its samples, one behind the other, and behind them their other fields.
    fn is_dense(&self, spec: &BatchSpec, head: &Head, spans: &[SampleSpan]) -> Result<(), String> {
        let Some(bytes) = self.sample_bytes else { return Ok(()) };
        let dense = spans.iter().zip(0..).all(|(span, at)| span.offset as u64 == bytes * at);
        let has_fields = self.has_fields || bytes * spans.len() as u64 == head.len;
        let cause = || format!("{} bytes for {} decoded samples of batch {}", head.len, spans.len(), spec.seq.0);
        if dense && has_fields { Ok(()) } else { Err(cause()) }
    }
}
