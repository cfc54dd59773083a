//! Checks of sleeping and waking.

use fuelrail_base::Duration;

use super::fixture::{Fixture, PATIENCE};
use super::harness::{Harness, Script};
use crate::channel::channel;
use crate::ring::{Op, Ring};

pub(super) fn a_wait_ends_in_time<V: Harness>(fixture: &mut Fixture<'_, V>) {
    // Over at once, with nothing to do, in the past and now.
    for until in [fixture.ring.now(), fuelrail_base::Instant::ZERO] {
        fixture.ring.wait(Some(until)).unwrap();
    }
    let sock = fixture.connect(Script::Silent);
    let into = fixture.one_window(10).0;
    fixture.push(Op::Recv { sock, into });
    let until = fixture.ring.now().after(Duration::from_millis(30));
    let mut iterations = 0;
    while fixture.ring.now() < until {
        fixture.ring.wait(Some(until)).unwrap();
        fixture.harness.pass();
        assert!(fixture.ring.pop().is_none(), "a completion out of nothing");
        iterations += 1;
        assert!(iterations < 100, "waiting does not wait");
    }
    fixture.ring.close(sock);
    fixture.next();
}

pub(super) fn a_wake_ends_a_wait<V: Harness>(fixture: &mut Fixture<'_, V>) {
    for pause in [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(10)] {
        let waker = fixture.ring.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(pause);
            waker.wake();
        });
        let until = fixture.ring.now().after(PATIENCE);
        fixture.ring.wait(Some(until)).unwrap();
        assert!(fixture.ring.now() < until, "a wake did not end the wait");
        thread.join().expect("the waking thread panicked");
    }
}

/// Another thread sends items one by one; the ring sleeps whenever its channel is empty. A lost wake-up ends in patience.
pub(super) fn no_wake_up_is_lost<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const ITEMS: u32 = 50_000;
    let (mut tx, mut rx) = channel::<u32>(8);
    rx.set_waker(fixture.ring.waker());
    let sender = std::thread::spawn(move || {
        for mut item in 0..ITEMS {
            while let Err(back) = tx.send(item) {
                if tx.is_closed() {
                    return;
                }
                item = back;
                std::thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < ITEMS {
        while let Some(item) = rx.recv() {
            assert!(item == expected, "item {item} instead of {expected}");
            expected += 1;
        }
        if expected < ITEMS && !rx.is_closed() {
            let until = fixture.ring.now().after(PATIENCE);
            fixture.ring.wait(Some(until)).unwrap();
            assert!(fixture.ring.now() < until, "a wake-up was lost after {expected} items");
        }
    }
    sender.join().expect("the sending thread panicked");
}

/// Echo goes on undisturbed while another thread wakes without pause.
pub(super) fn wakes_do_not_disturb_operations<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let sock = fixture.connect(Script::Echo);
    let waker = fixture.ring.waker();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            waker.wake();
            std::thread::yield_now();
        }
    });
    for round in 0..100u8 {
        fixture.send_all(sock, vec![round; 100]);
        let mut left = 100;
        while left > 0 {
            let bytes = fixture.receive(sock, left).unwrap();
            assert!(!bytes.is_empty() && bytes.iter().all(|b| *b == round), "round {round}: {bytes:?}");
            left -= bytes.len();
        }
    }
    drop(stop);
    thread.join().expect("the waking thread panicked");
    fixture.ring.close(sock);
}
