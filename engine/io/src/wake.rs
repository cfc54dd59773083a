//! Waking a sleeping shard (or any thread) from another one, without losing a wake-up and without a system call when
//! it is not asleep.
//!
//! A waker is a three-state cell: idle, armed (its owner is about to sleep or sleeps), notified. A wake that finds the
//! owner awake leaves `notified` behind, and the next [`Waker::arm`] refuses, so the owner does not go to sleep over
//! it. An owner that looks at its queues after every [`Waker::disarm`] therefore misses nothing.

use std::fs::File;
use std::io::{Read as _, Write as _};
#[cfg(any(feature = "glommio", all(test, feature = "tokio-uring")))]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use fuelrail_base::sync::atomic::{AtomicU8, Ordering, fence};
use fuelrail_base::sync::{Condvar, Mutex, OnceLock, sleep_while};
use fuelrail_base::{Duration, Error, Kind, Result};
use rustix::event::EventfdFlags;

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const NOTIFIED: u8 = 2;

/// A handle that wakes one owner. Clones wake the same owner.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    means: Means,
}

/// How the owner sleeps.
#[derive(Debug)]
enum Means {
    /// In a ring that polls this eventfd, or the other end of this descriptor.
    Event(File),
    /// In [`Waker::sleep`], or in a loop of the program's own.
    Sleeper(Mutex<()>, Condvar, std::sync::Mutex<OwnLoop>),
    /// In virtual time: the world looks at the state.
    Flag,
}

/// Wakes a program that has a loop of its own.
#[derive(Debug, Default)]
struct OwnLoop {
    /// The task to be polled again.
    task: Option<core::task::Waker>,
    /// Readable after a wake.
    event: Option<Arc<File>>,
    /// When the last wake came that found the waker armed.
    woken: Option<Instant>,
}

impl OwnLoop {
    fn announce(&self) {
        if let Some(event) = &self.event {
            // Refused only when it is readable many times over.
            let _ = (&**event).write(&1u64.to_ne_bytes());
        }
    }
}

fn eventfd() -> Result<File> {
    let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
        Error::from_errno(Kind::Environment, "creating an eventfd", errno.raw_os_error())
            .with_hint("raise the limit of open files (ulimit -n)")
    })?;
    Ok(File::from(fd))
}

impl Waker {
    fn new(means: Means) -> Waker {
        Waker { shared: Arc::new(Shared { state: AtomicU8::new(IDLE), means }) }
    }

    /// A waker for whoever calls [`sleep`](Waker::sleep): the sleeping thread may be another one each time.
    pub fn sleeper() -> Waker {
        Waker::new(Means::Sleeper(Mutex::new(()), Condvar::new(), std::sync::Mutex::default()))
    }

    /// A waker nobody sleeps on: virtual time looks at its state.
    pub(crate) fn flag() -> Waker {
        Waker::new(Means::Flag)
    }

    /// A waker whose owner polls an eventfd.
    ///
    /// # Errors
    /// `Environment` when the process has no file descriptor left.
    pub(crate) fn eventfd() -> Result<Waker> {
        Ok(Waker::new(Means::Event(eventfd()?)))
    }

    fn own_loop(&self) -> std::sync::MutexGuard<'_, OwnLoop> {
        let Means::Sleeper(.., own) = &self.shared.means else { panic!("only a sleeper has a loop of its own") };
        own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that a wake polls again, besides a thread in [`sleep`](Waker::sleep).
    ///
    /// # Panics
    /// When this waker is not a [`sleeper`](Waker::sleeper).
    pub fn set_task(&self, task: &core::task::Waker) {
        let kept = &mut self.own_loop().task;
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(task)) {
            *kept = Some(task.clone());
        }
    }

    /// An eventfd that is readable after a wake that found this waker armed, and where it is not armed at first. Made at the first call.
    ///
    /// # Errors
    /// `Environment` when the process has no file descriptor left.
    ///
    /// # Panics
    /// When this waker is not a [`sleeper`](Waker::sleeper).
    pub fn event(&self) -> Result<Arc<File>> {
        let mut own = self.own_loop();
        if let Some(event) = &own.event {
            return Ok(Arc::clone(event));
        }
        let event = Arc::clone(own.event.insert(Arc::new(eventfd()?)));
        // Earlier wakes had no eventfd to write to, and later ones write only while this waker is armed: until then it is readable, so
        // that its owner looks and arms it.
        if self.shared.state.load(Ordering::Acquire) != ARMED {
            own.announce();
        }
        Ok(event)
    }

    /// When a wake last found this waker armed.
    ///
    /// # Panics
    /// When this waker is not a [`sleeper`](Waker::sleeper).
    pub fn woken(&self) -> Option<Instant> {
        self.own_loop().woken
    }

    /// Makes the eventfd readable, where there is one.
    pub fn announce(&self) {
        self.own_loop().announce();
    }

    /// Makes the eventfd unreadable again, where there is one.
    pub fn drain(&self) {
        if let Some(event) = &self.own_loop().event {
            // Refused when there is nothing to read.
            let _ = (&**event).read(&mut [0; 8]);
        }
    }

    /// A waker whose owner reads the other end of this descriptor, a pipe or socket.
    #[cfg(any(feature = "glommio", all(test, feature = "tokio-uring")))]
    pub(crate) fn writing(fd: OwnedFd) -> Waker {
        Waker::new(Means::Event(File::from(fd)))
    }

    /// The eventfd behind this waker, for the ring that polls it.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.shared.means {
            Means::Event(file) => Some(file.as_fd()),
            Means::Sleeper(..) | Means::Flag => None,
        }
    }

    /// Announces that the owner is about to sleep. False when a wake came since the last [`disarm`](Waker::disarm):
    /// the owner should look at its queues instead of sleeping. Calling it twice is harmless.
    pub fn arm(&self) -> bool {
        // Relaxed: `disarm` is what makes visible, and the state alone says who came first.
        match self.shared.state.compare_exchange(IDLE, ARMED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(state) => state == ARMED,
        }
    }

    /// Sleeps while armed, at most `limit`; returns at once when a wake came since [`arm`](Waker::arm).
    ///
    /// # Panics
    /// When this waker is not a [`sleeper`](Waker::sleeper).
    pub fn sleep(&self, limit: Duration) {
        let Means::Sleeper(lock, condvar, _) = &self.shared.means else { panic!("only a sleeper sleeps here") };
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(sleep_while(condvar, guard, limit, || self.shared.state.load(Ordering::Relaxed) == ARMED));
    }

    /// Announces that the owner is awake, and forgets wakes so far: the owner must look at its queues *after* this.
    pub fn disarm(&self) {
        // AcqRel: what a waking thread published before its wake is visible after this.
        self.shared.state.swap(IDLE, Ordering::AcqRel);
    }

    /// Whether a wake is waiting to be noticed.
    pub fn is_notified(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Wakes the owner: one atomic exchange, and a system call only when it sleeps.
    pub fn wake(&self) {
        if self.shared.state.swap(NOTIFIED, Ordering::AcqRel) == ARMED {
            self.signal();
        }
    }

    /// Wakes the owner whatever its state.
    #[cold]
    pub(crate) fn signal(&self) {
        match &self.shared.means {
            Means::Event(file) => {
                // Refused only when the counter (2^64 - 2 unread wakes) or the pipe is full: the owner is being woken.
                let _ = (&*file).write(&1u64.to_ne_bytes());
            }
            Means::Sleeper(lock, condvar, own) => {
                // Taken so that the wake cannot fall between the sleeper's look at the state and its sleep.
                drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
                condvar.notify_all();
                let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
                // Before anybody learns of it.
                own.woken = Some(Instant::now());
                own.announce();
                if let Some(task) = &own.task {
                    task.wake_by_ref();
                }
            }
            Means::Flag => {}
        }
    }
}

/// The waker of an event source: set once, perhaps after the first event.
#[derive(Debug, Default)]
pub struct WakerCell {
    waker: OnceLock<Waker>,
}

impl WakerCell {
    /// Sets the waker; the caller checks *after* this for earlier events. False when it was set already.
    pub fn set(&self, waker: Waker) -> bool {
        let first = self.waker.set(waker).is_ok();
        // Pairs with the fence in `wake`: of this store and the waking thread's, at least one is seen by the other side.
        fence(Ordering::SeqCst);
        first
    }

    /// Wakes the owner, if it is known. What the owner shall find has been published before.
    pub fn wake(&self) {
        let known = self.waker.get().or_else(|| {
            fence(Ordering::SeqCst);
            self.waker.get()
        });
        if let Some(waker) = known {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_before_arm_refuses_sleep_once() {
        let waker = Waker::flag();
        assert!(waker.arm());
        waker.disarm();
        waker.wake();
        assert!(waker.is_notified());
        assert!(!waker.arm(), "a wake since the last disarm must keep the owner awake");
        waker.disarm();
        assert!(waker.arm());
        assert!(waker.arm(), "arming twice is harmless");
    }

    #[test]
    fn an_eventfd_made_behind_a_wake_is_readable() {
        let waker = Waker::sleeper();
        let read = |waker: &Waker| (&*waker.event().unwrap()).read(&mut [0; 8]).is_ok();
        assert!(waker.arm());
        waker.wake();
        assert!(read(&waker) && !read(&waker), "once");
        waker.disarm();
        assert!(waker.arm() && !read(&waker));
        waker.wake();
        assert!(read(&waker));
        let idle = Waker::sleeper();
        assert!(idle.arm() && !read(&idle), "it was not woken");
    }
}
