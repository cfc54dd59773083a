//! Channels between shards, and between a shard and the threads beside it: bounded single-producer single-consumer queues, whose receiver is woken.
//!
//! Built on `rtrb` (wait-free). A channel never blocks and never allocates after it is made.

use std::sync::Arc;

#[cfg(loom)]
use fuelrail_base::sync::rtrb;

use crate::wake::{Waker, WakerCell};

/// A channel of at most `entries` items: the two ends, each for one thread.
///
/// # Panics
/// When `entries` is zero.
pub fn channel<T: Send>(entries: usize) -> (Sender<T>, Receiver<T>) {
    assert!(entries > 0, "a channel holds at least one item");
    let (producer, consumer) = rtrb::RingBuffer::new(entries);
    let waker = Arc::new(WakerCell::default());
    (Sender { producer, end: End(waker.clone()) }, Receiver { consumer, waker })
}

/// The sending end. Dropping it closes the channel and wakes the receiver, which still gets what was sent.
#[derive(Debug)]
pub struct Sender<T> {
    /// Dropped before the receiver is woken, which then sees the channel closed.
    producer: rtrb::Producer<T>,
    end: End,
}

/// Wakes the receiver when the sender has gone.
#[derive(Debug)]
struct End(Arc<WakerCell>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl<T> Sender<T> {
    /// Sends one item and wakes the receiver.
    ///
    /// # Errors
    /// Gives the item back when the channel is full or [closed](Sender::is_closed).
    pub fn send(&mut self, item: T) -> Result<(), T> {
        self.push(item)?;
        self.wake();
        Ok(())
    }

    /// Sends one of several items without a wake: call [`wake`](Sender::wake) after the last.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_closed() {
            return Err(item);
        }
        self.producer.push(item).map_err(|rtrb::PushError::Full(item)| item)
    }

    /// Items that can be sent before the channel is full.
    pub fn room(&self) -> usize {
        self.producer.slots()
    }

    /// Whether the receiving end is gone.
    pub fn is_closed(&self) -> bool {
        self.producer.is_abandoned()
    }

    /// Wakes the receiver.
    pub fn wake(&self) {
        self.end.0.wake();
    }
}

/// The receiving end. Dropping it closes the channel; items not yet received are dropped with it.
#[derive(Debug)]
pub struct Receiver<T> {
    consumer: rtrb::Consumer<T>,
    waker: Arc<WakerCell>,
}

impl<T> Receiver<T> {
    /// The oldest item, if any.
    pub fn recv(&mut self) -> Option<T> {
        self.consumer.pop().ok()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Items waiting.
    pub fn len(&self) -> usize {
        self.consumer.slots()
    }

    /// Whether the sending end is gone. Items may still be waiting.
    pub fn is_closed(&self) -> bool {
        self.consumer.is_abandoned()
    }

    /// Sets the waker that each send wakes. Check once after this call for items sent before it.
    ///
    /// # Panics
    /// When it was set before: a channel has one receiver for life.
    pub fn set_waker(&self, waker: Waker) {
        assert!(self.waker.set(waker), "a channel's waker is set once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_closed_at_both_ends() {
        let (mut tx, mut rx) = channel::<u32>(2);
        assert_eq!((tx.send(1), tx.send(2), tx.send(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((tx.room(), rx.len(), rx.recv()), (0, 2, Some(1)));
        drop(tx);
        assert!(rx.is_closed() && !rx.is_empty());
        assert_eq!((rx.recv(), rx.recv()), (Some(2), None));

        let (mut tx, rx) = channel::<u32>(2);
        drop(rx);
        assert!(tx.is_closed());
        assert_eq!(tx.send(7), Err(7), "a closed channel gives the item back");
    }

    #[test]
    fn sends_and_the_drop_wake_the_receiver() {
        let (mut tx, rx) = channel::<u32>(2);
        tx.send(1).unwrap();
        let waker = Waker::flag();
        rx.set_waker(waker.clone());
        assert!(!waker.is_notified() && !rx.is_empty());
        tx.send(2).unwrap();
        assert!(waker.is_notified());
        waker.disarm();
        drop(tx);
        assert!(waker.is_notified() && rx.is_closed());
    }

    /// All items arrive once and in order while the receiver sleeps without a timeout between them.
    #[test]
    fn everything_arrives_in_order_across_threads() {
        const ITEMS: u64 = 100_000;
        let (mut tx, mut rx) = channel::<u64>(64);
        let waker = Waker::sleeper();
        rx.set_waker(waker.clone());
        let sender = std::thread::spawn(move || {
            for mut item in 0..ITEMS {
                while let Err(back) = tx.send(item) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < ITEMS {
            while let Some(item) = rx.recv() {
                assert_eq!(item, expected);
                expected += 1;
            }
            if waker.arm() && rx.is_empty() && expected < ITEMS {
                waker.sleep(std::time::Duration::from_secs(3600));
            }
            waker.disarm();
        }
        sender.join().unwrap();
        assert!(rx.is_closed() && rx.is_empty());
    }
}
