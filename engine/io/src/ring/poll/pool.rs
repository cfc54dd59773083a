//! A pool of threads for file operations: files are always "ready" for epoll, and block then.
//!
//! An operation belongs to the pool, with all its memory, from submission until it is collected. The threads start with the
//! first file, as many as the system allows, and end with the pool, which waits for their operations.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use fuelrail_base::{Error, Kind, Result};

use crate::ring::Op;
use crate::ring::calls::on_file;
use crate::ring::file::MORE_THREADS;
use crate::ring::table::Name;
use crate::wake::Waker;

/// Threads of one ring: as many operations are with the disk at once.
const THREADS: usize = 4;

/// An operation to be done.
pub(super) struct Job {
    pub(super) name: Name,
    pub(super) op: Op,
    /// `None` where one is to be opened.
    pub(super) file: Option<Arc<File>>,
}

/// A done operation and its result: a count, or a negative error number.
pub(super) struct Outcome {
    pub(super) name: Name,
    pub(super) op: Op,
    pub(super) result: i32,
}

#[derive(Default)]
struct Queues {
    waiting: VecDeque<Job>,
    done: Vec<Outcome>,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    work: Condvar,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread.
    fn work(&self, waker: &Waker) {
        loop {
            let waiting = |queues: &mut Queues| queues.waiting.is_empty() && !queues.closing;
            let mut queues = self.work.wait_while(self.queues(), waiting).unwrap_or_else(PoisonError::into_inner);
            let Some(Job { name, mut op, file }) = queues.waiting.pop_front() else { return };
            drop(queues);
            let result = on_file(&mut op, file.as_deref());
            // Dropped before the ring sees the outcome: the ring may close the file then.
            drop(file);
            self.queues().done.push(Outcome { name, op, result });
            waker.wake();
        }
    }
}

pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    waker: Waker,
}

impl Pool {
    /// A pool without threads, which wakes this ring.
    pub(super) fn new(waker: Waker) -> Pool {
        Pool { shared: Arc::default(), threads: Vec::new(), waker }
    }

    /// Starts the threads, once. Where the system refuses some of them, the others do the work.
    ///
    /// # Errors
    /// `Environment` when it refuses all.
    pub(super) fn start(&mut self) -> Result<()> {
        if !self.threads.is_empty() {
            return Ok(());
        }
        for _ in 0..THREADS {
            let (shared, waker) = (self.shared.clone(), self.waker.clone());
            let thread = std::thread::Builder::new().name("fuelrail-file".to_owned());
            match thread.spawn(move || shared.work(&waker)) {
                Ok(thread) => self.threads.push(thread),
                Err(_) if !self.threads.is_empty() => break,
                Err(error) => {
                    return Err(Error::from_io(Kind::Environment, "starting a thread for file operations", error)
                        .with_hint(MORE_THREADS));
                }
            }
        }
        Ok(())
    }

    /// Submits operations, in order.
    pub(super) fn submit(&self, jobs: &mut Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        self.shared.queues().waiting.extend(jobs.drain(..));
        self.shared.work.notify_all();
    }

    /// Removes an operation that no thread has begun.
    pub(super) fn take_back(&self, name: Name) -> Option<Job> {
        let mut queues = self.shared.queues();
        let at = queues.waiting.iter().position(|job| job.name == name)?;
        queues.waiting.remove(at)
    }

    /// Appends what is done to `out`.
    pub(super) fn collect(&self, out: &mut Vec<Outcome>) {
        if !self.threads.is_empty() {
            out.append(&mut self.shared.queues().done);
        }
    }
}

impl Drop for Pool {
    /// Drops operations that no thread has begun and waits for the others: after this the pool owns nothing.
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        let waiting = {
            let mut queues = self.shared.queues();
            queues.closing = true;
            core::mem::take(&mut queues.waiting)
        };
        drop(waiting);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has dropped its operation, and printed the panic.
            let _ = thread.join();
        }
    }
}
