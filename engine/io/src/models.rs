//! Models of what this crate hands from thread to thread, for the checker of `cargo x prove models`.
//!
//! A thread that sleeps without a limit shows a wake-up that is lost: then no thread can go on. Each model is checked as the code is,
//! and with each of its orderings taken away in turn, which must fail.

use crate::arena::Mapping;
use crate::channel::{Receiver, channel};
use crate::remote_free::{Hold, RemoteFreeList};
use crate::wake::Waker;
use fuelrail_base::Duration;
use fuelrail_base::sync::atomic::{AtomicUsize, Ordering};
use fuelrail_base::sync::trial::{self, JoinHandle, UnsafeCell, thread};
use std::sync::Arc;

const FOREVER: Duration = Duration::from_secs(3600);

/// Sleeps until `done`, as every owner of a waker does: arm, sleep if that was granted, disarm, look.
fn sleep_until(waker: &Waker, mut done: impl FnMut() -> bool) {
    while !done() {
        if waker.arm() {
            waker.sleep(FOREVER);
        }
        waker.disarm();
    }
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("no panic");
}

fn a_wake_is_never_lost() {
    let (waker, items) = (Waker::sleeper(), Arc::new(AtomicUsize::new(0)));
    let producer = thread::spawn({
        let (waker, items) = (waker.clone(), items.clone());
        move || {
            for n in 1..=2 {
                items.store(n, Ordering::Relaxed);
                waker.wake();
            }
        }
    });
    sleep_until(&waker, || items.load(Ordering::Relaxed) == 2);
    join(producer);
}

/// A remote free list of two slots, and what two threads write to one slot or to one each.
struct Slots {
    remote: Arc<RemoteFreeList>,
    bytes: [UnsafeCell<u32>; 2],
    /// Claims dropped, without any ordering.
    given_up: AtomicUsize,
}

impl Slots {
    fn new() -> Arc<Slots> {
        let remote = Arc::new(RemoteFreeList::new(Mapping::none(), 2));
        Arc::new(Slots { remote, bytes: [0, 1].map(UnsafeCell::new), given_up: AtomicUsize::new(0) })
    }

    /// Writes what only the caller may access now: the checker fails when another thread may access it meanwhile.
    fn write(&self, at: usize) {
        // SAFETY: the pointer is valid, and the checker tracks all accesses.
        self.bytes[at].with_mut(|bytes| unsafe { *bytes += 1 });
    }

    /// A thread that writes to its part and drops its claim.
    fn drop_on_a_thread(self: &Arc<Slots>, hold: Hold, at: usize) -> JoinHandle<()> {
        let slots = self.clone();
        thread::spawn(move || {
            slots.write(at);
            drop(hold);
            slots.given_up.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Sleeps until so many slots are returned, and writes to all bytes.
    fn await_return(&self, waker: &Waker, slots: usize) {
        let mut found = 0;
        sleep_until(waker, || {
            self.remote.take_returned(|_| found += 1);
            found == slots
        });
        self.write(0);
        self.write(1);
        assert_eq!(self.remote.outstanding(), 0);
    }
}

/// Every slot is returned once, with what was written to it visible to the owner, and a sleeping owner is woken.
fn slots_are_returned() {
    let (slots, waker) = (Slots::new(), Waker::sleeper());
    assert!(slots.remote.set_waker(waker.clone()));
    let threads = [0, 1].map(|n| slots.drop_on_a_thread(slots.remote.hand_out(n), n as usize));
    slots.await_return(&waker, 2);
    threads.into_iter().for_each(join);
}

/// The last of two holders returns their slot, with what both have written, also to an owner that was not woken.
fn the_last_holder_returns_the_slot() {
    let slots = Slots::new();
    let hold = slots.remote.hand_out(0);
    let threads = [slots.drop_on_a_thread(hold.clone(), 0), slots.drop_on_a_thread(hold, 1)];
    // Read first, because the checker would not let the owner look after the others: of several loads of one atomic, by two threads, it
    // sees only the last one as in the way of a store.
    if slots.given_up.load(Ordering::Relaxed) == 2 {
        slots.remote.take_returned(|_| {
            slots.write(0);
            slots.write(1);
        });
    }
    threads.into_iter().for_each(join);
}

/// A slot that is returned while the owner sets its waker is found by looking afterwards, or wakes the owner.
fn slots_return_to_a_waker_set_late() {
    let (slots, waker) = (Slots::new(), Waker::sleeper());
    let thread = slots.drop_on_a_thread(slots.remote.hand_out(0), 0);
    assert!(slots.remote.set_waker(waker.clone()));
    slots.await_return(&waker, 1);
    join(thread);
}

/// A thread that finds itself the only holder sees what the others wrote; one that finds no read pin may write where they read.
fn the_last_holder_sees_what_the_others_did() {
    let slots = Slots::new();
    let hold = slots.remote.hand_out(0);
    let writer = slots.drop_on_a_thread(hold.clone(), 0);
    let pin = hold.read_pin();
    let reader = thread::spawn({
        let slots = slots.clone();
        move || {
            // SAFETY: as for `write`.
            slots.bytes[1].with(|bytes| unsafe { *bytes });
            drop(pin);
        }
    });
    if hold.others() == 0 {
        slots.write(0);
    }
    if hold.read_pins() == 0 {
        slots.write(1);
    }
    [writer, reader].into_iter().for_each(join);
}

/// Everything sent through a channel is received, and its end is seen, by a receiver that sleeps in between.
fn channels_wake() {
    send_and_receive(|receiver| receiver.is_closed(), |_| false);
}

/// Looks whether the channel is closed after what it received, which may be too early for what was sent last.
fn channels_looked_at_in_the_wrong_order() {
    send_and_receive(|_| false, |receiver| receiver.is_closed());
}

fn send_and_receive(before: fn(&Receiver<u32>) -> bool, behind: fn(&Receiver<u32>) -> bool) {
    let (mut sender, mut receiver) = channel(1);
    let waker = Waker::sleeper();
    receiver.set_waker(waker.clone());
    // An item that finds no room is not sent.
    let thread = thread::spawn(move || (0..2).filter(|n| sender.send(*n).is_ok()).count());
    let mut found = 0;
    sleep_until(&waker, || {
        let closed = before(&receiver);
        while receiver.recv().is_some() {
            found += 1;
        }
        closed || behind(&receiver)
    });
    assert_eq!(thread.join().expect("no panic"), found);
}

/// The same, when the receiver sets its waker late.
fn channels_wake_a_waker_set_late() {
    let (mut sender, mut receiver) = channel(1);
    let thread = thread::spawn(move || sender.send(0).expect("there is room"));
    let waker = Waker::sleeper();
    receiver.set_waker(waker.clone());
    let mut found = None;
    sleep_until(&waker, || {
        found = found.or(receiver.recv());
        found.is_some()
    });
    join(thread);
}

#[test]
fn wakers() {
    assert_eq!(trial::needless(&[a_wake_is_never_lost], &["wake.rs"]), Vec::<String>::new());
}

#[test]
fn slot_return() {
    const MODELS: [fn(); 3] =
        [slots_are_returned, the_last_holder_returns_the_slot, the_last_holder_sees_what_the_others_did];
    assert_eq!(trial::needless(&MODELS, &["remote_free.rs"]), Vec::<String>::new());
}

#[test]
fn slot_return_to_a_waker_set_late() {
    trial::check(slots_return_to_a_waker_set_late);
}

#[test]
fn channels() {
    trial::check(channels_wake);
}

#[test]
#[should_panic(expected = "left == right")]
fn channels_canary() {
    trial::check(channels_looked_at_in_the_wrong_order);
}

#[test]
fn channels_to_a_waker_set_late() {
    assert_eq!(trial::needless(&[channels_wake_a_waker_set_late], &["wake.rs"]), Vec::<String>::new());
}
