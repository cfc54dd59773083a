//! Sleeping to a tenth of a millisecond. Tokio's timers tick in milliseconds and round up, which would add one per cent
//! to a scripted 55 ms and double a scripted one. One thread waits on a condition variable for the earliest deadline
//! and wakes its tasks.

use core::cmp::Reverse;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::error::{Error, Result};

/// A waker by its deadline; ties are told apart by the number, which also makes the order total.
struct Entry {
    deadline: Instant,
    number: u64,
    waker: Waker,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.deadline, self.number) == (other.deadline, other.number)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> core::cmp::Ordering {
        (self.deadline, self.number).cmp(&(other.deadline, other.number))
    }
}

#[derive(Default)]
struct Queue {
    entries: BinaryHeap<Reverse<Entry>>,
    next_number: u64,
    stopped: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    earlier: Condvar,
}

/// The alarm thread; stops when dropped.
pub(crate) struct AlarmThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A handle that makes sleeps.
#[derive(Clone)]
pub(crate) struct Alarm {
    shared: Arc<Shared>,
}

impl AlarmThread {
    pub(crate) fn start() -> Result<AlarmThread> {
        let shared = Arc::new(Shared::default());
        let ringing = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("bucket-alarm".to_owned())
            .spawn(move || ringing.run())
            .map_err(|e| Error::system("starting the alarm thread", &e))?;
        Ok(AlarmThread { shared, thread: Some(thread) })
    }

    pub(crate) fn alarm(&self) -> Alarm {
        Alarm { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for AlarmThread {
    fn drop(&mut self) {
        self.shared.queue.lock().expect("no alarm holder panics").stopped = true;
        self.shared.earlier.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has already printed itself; there is nothing left to undo here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut due = Vec::new();
        let mut queue = self.queue.lock().expect("no alarm holder panics");
        while !queue.stopped {
            let now = Instant::now();
            while queue.entries.peek().is_some_and(|Reverse(first)| first.deadline <= now) {
                due.extend(queue.entries.pop().map(|Reverse(entry)| entry.waker));
            }
            if !due.is_empty() {
                // Wakers run foreign code: never under the lock.
                drop(queue);
                due.drain(..).for_each(Waker::wake);
                queue = self.queue.lock().expect("no alarm holder panics");
                continue;
            }
            let wait = queue.entries.peek().map(|Reverse(first)| first.deadline - now);
            queue = match wait {
                Some(wait) => self.earlier.wait_timeout(queue, wait).expect("no alarm holder panics").0,
                None => self.earlier.wait(queue).expect("no alarm holder panics"),
            };
        }
    }
}

impl Alarm {
    /// Ready at `deadline`.
    pub(crate) fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep { shared: Arc::clone(&self.shared), deadline, registered: None }
    }
}

/// Ready at its deadline. Dropping it early leaves one entry behind that wakes a task for nothing.
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    deadline: Instant,
    registered: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        if !self.registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            let waker = context.waker().clone();
            let mut queue = self.shared.queue.lock().expect("no alarm holder panics");
            queue.next_number += 1;
            let number = queue.next_number;
            let is_first = queue.entries.peek().is_none_or(|Reverse(first)| self.deadline < first.deadline);
            queue.entries.push(Reverse(Entry { deadline: self.deadline, number, waker: waker.clone() }));
            drop(queue);
            if is_first {
                self.shared.earlier.notify_one();
            }
            self.registered = Some(waker);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sleeps_end_in_the_order_of_their_deadlines_and_never_early() {
        let thread = AlarmThread::start().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        runtime.block_on(async {
            let start = Instant::now();
            let tasks: Vec<_> = [30u64, 10, 20, 0]
                .into_iter()
                .map(|ms| {
                    let (alarm, order) = (thread.alarm(), Arc::clone(&order));
                    tokio::spawn(async move {
                        let deadline = start + Duration::from_millis(ms);
                        alarm.sleep_until(deadline).await;
                        assert!(Instant::now() >= deadline);
                        order.lock().unwrap().push(ms);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(*order.lock().unwrap(), [0, 10, 20, 30]);
    }
}
