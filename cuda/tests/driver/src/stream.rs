//! Streams: a thread and a queue each, late on purpose, so that they end their work in an order of their own.
//!
//! Owns the threads, the order between streams that the legacy default stream asks for, the random delays and the fates
//! of copies (hung, lost). What the work does to bytes is said in [`crate::tables::transfer`].

use crate::code::{Code, Outcome};
use crate::driver::{Held, State, changed, hold};
use crate::fault::Blow;
use crate::tables::stream::{IN_CALLBACK, LEGACY_HANDLES, NON_BLOCKING, Random, Stream};
use crate::tables::work::{Touch, Work};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The legacy default stream, by its two names.
const LEGACY: [u64; 2] = [0, 1];
/// The default stream of the calling thread.
const PER_THREAD: u64 = 2;
/// Those streams have handles of their own inside, one for each device and thread. They have all bits of `LEGACY_HANDLES`, by which streams are
/// told from those that the user made.
const PER_THREAD_HANDLES: u64 = 0x00ff_0000_0000_0000;

static THREADS: AtomicU64 = AtomicU64::new(0);
thread_local! {
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// For a handle that means a default stream: the handle inside of the one on device 0.
fn default_handle(handle: u64) -> Option<u64> {
    if LEGACY.contains(&handle) {
        return Some(LEGACY_HANDLES);
    }
    (handle == PER_THREAD).then(|| PER_THREAD_HANDLES + THREAD.with(|n| n << 8))
}

fn legacy_handle(device: u32) -> u64 {
    LEGACY_HANDLES + u64::from(device)
}

impl State {
    /// Makes a stream on a device.
    pub(crate) fn make_stream(&mut self, device: u32, flags: u32) -> Outcome<u64> {
        if flags > NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        let handle = self.new_handle();
        self.add_stream(handle, device, flags)?;
        Ok(handle)
    }

    fn add_stream(&mut self, handle: u64, device: u32, flags: u32) -> Outcome {
        self.streams_made += 1;
        let mut random = Random(self.settings.seed ^ (self.streams_made << 32));
        random.next();
        let stream = Stream { device, flags, queue: VecDeque::new(), submitted: 0, done: 0, live: true, random };
        self.streams.insert(handle, stream);
        let name = format!("stream {:x}", handle & 0xffff);
        let started = std::thread::Builder::new().name(name).spawn(move || serve(handle));
        if started.is_err() {
            self.streams.remove(&handle);
            return Err(Code::OPERATING_SYSTEM);
        }
        Ok(())
    }

    /// Finds the stream that a handle means; a default stream is that of the current context.
    pub(crate) fn stream(&mut self, call: &str, handle: u64) -> Outcome<u64> {
        if let Some(first) = default_handle(handle) {
            let device = self.current_device(call)?;
            let inner = first + u64::from(device);
            if !self.streams.contains_key(&inner) {
                self.add_stream(inner, device, 0)?;
            }
            return Ok(inner);
        }
        let Some(device) = self.streams.get(&handle).filter(|s| s.live).map(|s| s.device) else {
            return Err(self.bad_handle(call, "stream", handle));
        };
        self.alive(call, device)?;
        Ok(handle)
    }

    /// Destroys a stream's handle; its thread ends when its work has.
    pub(crate) fn destroy_stream(&mut self, call: &str, handle: u64) -> Outcome {
        if LEGACY.contains(&handle) {
            return Err(Code::INVALID_HANDLE);
        }
        match self.streams.get_mut(&handle).filter(|s| s.live) {
            Some(stream) => stream.live = false,
            None => return Err(self.bad_handle(call, "stream", handle)),
        }
        changed();
        Ok(())
    }

    /// Puts work at the end of a stream's queue, after what the legacy default stream asks to wait for.
    pub(crate) fn submit(&mut self, handle: u64, work: Work, touches: Vec<Touch>) {
        if self.captures.contains_key(&handle) {
            return; // part of a graph now
        }
        for (stream, done) in self.before(handle) {
            self.push(handle, Work::AwaitStream { stream, done }, Vec::new());
        }
        self.push(handle, work, touches);
        changed();
    }

    fn push(&mut self, handle: u64, work: Work, touches: Vec<Touch>) {
        self.work_made += 1;
        let id = self.work_made;
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.queue.push_back((id, work));
            stream.submitted += 1;
            self.pending.insert(id, touches);
        }
    }

    /// What a new piece of work of a stream must wait for: for the legacy stream, all blocking streams of its device; for
    /// those, the legacy stream.
    fn before(&self, handle: u64) -> Vec<(u64, u64)> {
        let Some(stream) = self.streams.get(&handle) else { return Vec::new() };
        let legacy = legacy_handle(stream.device);
        let wanted = |(other, s): &(&u64, &Stream)| {
            let pair = if handle == legacy { s.blocking() } else { stream.blocking() && **other == legacy };
            pair && **other != handle && s.device == stream.device && s.done < s.submitted
        };
        self.streams.iter().filter(wanted).map(|(other, s)| (*other, s.submitted)).collect()
    }

    /// Whether a stream has done this much; one that is gone has.
    fn has_done(&self, handle: u64, done: u64) -> bool {
        self.streams.get(&handle).is_none_or(|s| s.done >= done)
    }

    /// Pieces of work that have not ended.
    pub(crate) fn unfinished(&self) -> u64 {
        self.streams.values().map(|s| s.submitted - s.done).sum()
    }

    /// How long the next piece of work of a stream waits.
    fn delay(&mut self, handle: u64) -> Duration {
        let (low, high) = (*self.settings.delay_us.start(), *self.settings.delay_us.end());
        let Some(stream) = self.streams.get_mut(&handle) else { return Duration::ZERO };
        let draw = stream.random.next();
        Duration::from_micros(low + draw % (high.saturating_sub(low) + 1))
    }
}

impl Held {
    /// Waits until a stream has done all that it was asked so far.
    pub(crate) fn drain(&mut self, handle: u64) -> Outcome {
        let Some((device, goal)) = self.streams.get(&handle).map(|s| (s.device, s.submitted)) else { return Ok(()) };
        self.wait_until(device, |state| state.has_done(handle, goal))
    }
}

/// Ends the process when a stream's thread panics: whoever waits for the stream would wait for ever.
struct Unbroken;

impl Drop for Unbroken {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("test driver: the thread of a stream panicked");
            std::process::abort();
        }
    }
}

/// The life of a stream's thread.
fn serve(handle: u64) {
    let _unbroken = Unbroken;
    let mut held = hold();
    loop {
        let Some(stream) = held.streams.get_mut(&handle) else { return };
        let Some((id, work)) = stream.queue.pop_front() else {
            if !stream.live {
                held.streams.remove(&handle);
                changed();
                return;
            }
            held.wait();
            continue;
        };
        held = perform(held, handle, work);
        held.pending.remove(&id);
        if let Some(stream) = held.streams.get_mut(&handle) {
            stream.done += 1;
        }
        changed();
    }
}

/// Does one piece of work. When its device is lost, nothing is done any more: a lost device reads and writes no memory.
fn perform(mut held: Held, handle: u64, work: Work) -> Held {
    let device = held.streams.get(&handle).map_or(0, |stream| stream.device);
    if held.lost.contains_key(&device) {
        return held;
    }
    match work {
        // A loss ends the waiting; the next piece of work then sees it too.
        Work::Await(marker) => drop(held.wait_until(device, |_| marker.reached().is_some())),
        Work::AwaitStream { stream, done } => drop(held.wait_until(device, |state| state.has_done(stream, done))),
        Work::Reach(marker) => marker.reach(),
        Work::Copy(copy) => {
            if !fate(&mut held, device) {
                return held;
            }
            let through = held.book_link(&copy);
            let complaint;
            (held, complaint) = late(held, (handle, device), || copy.run());
            if let Some(text) = complaint.flatten() {
                held.violation(text);
            }
            if let Some(rest) = through.and_then(|at| at.checked_duration_since(Instant::now())) {
                drop(held);
                std::thread::sleep(rest);
                held = hold();
            }
        }
        Work::Call(callback) => {
            let delay = held.delay(handle);
            drop(held);
            std::thread::sleep(delay);
            IN_CALLBACK.set(true);
            // SAFETY: whoever called cuLaunchHostFunc keeps function and argument valid until the stream has called it.
            unsafe { (callback.function)(callback.argument as *mut std::ffi::c_void) };
            IN_CALLBACK.set(false);
            held = hold();
        }
    }
    held
}

/// Waits a piece of work's delay and does it without the lock; not at all if the device was lost meanwhile. While it is
/// done it counts as running: nobody hears of a loss before it has ended.
fn late<T>(mut held: Held, (handle, device): (u64, u32), work: impl FnOnce() -> T) -> (Held, Option<T>) {
    let delay = held.delay(handle);
    drop(held);
    std::thread::sleep(delay);
    held = hold();
    if held.lost.contains_key(&device) {
        return (held, None);
    }
    held.running += 1;
    drop(held);
    let result = work();
    held = hold();
    held.running -= 1;
    changed();
    (held, Some(result))
}

/// Lets the faults have their say about a copy. False: it must not run.
fn fate(held: &mut Held, device: u32) -> bool {
    match held.faults.at_copy() {
        Some(Blow::Hang) => held.wait_until(device, |state| state.released).is_ok(),
        Some(Blow::Lose(code)) => {
            held.lost.insert(device, code);
            changed();
            false
        }
        Some(Blow::Fail(_)) | None => true,
    }
}
