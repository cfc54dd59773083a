//! The wake bridge: through it a runtime tells a ring which operations to poll again.
//!
//! Each place in the table has a task, whose waker its future is polled with. A wake notes the task's number once and wakes
//! the thread that is inside the runtime, so that an iteration polls what moved instead of everything. Nothing is allocated
//! after the start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// What all tasks of a bridge share.
#[derive(Debug, Default)]
struct Shared {
    /// Numbers of the tasks that were woken, each at most once.
    notified: Mutex<Vec<u32>>,
    /// Waker of the thread's present stay in the runtime.
    listener: Mutex<Option<Waker>>,
}

struct Task {
    number: u32,
    noted: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Task>) {
        if self.noted.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.notified.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        if let Some(listener) = &*self.shared.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            listener.wake_by_ref();
        }
    }
}

/// The tasks of one ring, and which of them were woken.
pub(super) struct WakeBridge {
    shared: Arc<Shared>,
    tasks: Box<[Arc<Task>]>,
    wakers: Box<[Waker]>,
}

impl WakeBridge {
    pub(super) fn new(count: u32) -> WakeBridge {
        let shared = Arc::new(Shared::default());
        shared.notified.lock().unwrap_or_else(PoisonError::into_inner).reserve_exact(count as usize);
        let tasks: Box<[Arc<Task>]> = (0..count)
            .map(|number| Arc::new(Task { number, noted: AtomicBool::new(false), shared: shared.clone() }))
            .collect();
        let wakers = tasks.iter().map(|task| Waker::from(task.clone())).collect();
        WakeBridge { shared, tasks, wakers }
    }

    /// The waker to poll the future at this place with.
    pub(super) fn waker(&self, number: u32) -> &Waker {
        &self.wakers[number as usize]
    }

    /// Sets the waker that the next notified task wakes.
    pub(super) fn listen(&self, waker: &Waker) {
        let mut listener = self.shared.listener.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *listener {
            Some(there) => there.clone_from(waker),
            None => *listener = Some(waker.clone()),
        }
    }

    /// Removes that waker; tasks are still noted.
    pub(super) fn unlisten(&self) {
        self.shared.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Appends the numbers of the tasks that were woken since the last call.
    pub(super) fn take(&self, out: &mut Vec<u32>) {
        out.append(&mut self.shared.notified.lock().unwrap_or_else(PoisonError::into_inner));
        for number in out.iter() {
            // Before the future is polled: a wake from now on is a new one.
            self.tasks[*number as usize].noted.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_task_is_noted_once_until_it_is_taken() {
        let bridge = WakeBridge::new(3);
        let listener = Arc::new(Count::default());
        bridge.waker(1).wake_by_ref();
        bridge.listen(&Waker::from(listener.clone()));
        for number in [2, 2, 1, 0, 2] {
            bridge.waker(number).wake_by_ref();
        }
        let mut notified = Vec::new();
        bridge.take(&mut notified);
        assert_eq!((notified.as_slice(), listener.0.load(Ordering::Relaxed)), (&[1, 2, 0][..], 2));
        bridge.unlisten();
        let second = bridge.waker(2).clone();
        second.wake();
        notified.clear();
        bridge.take(&mut notified);
        assert_eq!((notified.as_slice(), listener.0.load(Ordering::Relaxed)), (&[2][..], 2));
    }
}
