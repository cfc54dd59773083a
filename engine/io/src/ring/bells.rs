//! Bells: how a runtime tells a ring which of its operations to look at again.
//!
//! Each operation has a bell for life, at its place in the table: the waker its future is polled with. A bell that rings
//! writes its number down once and wakes whoever has entered the runtime, so that a iteration looks at what moved instead
//! of at everything. Nothing is allocated after the start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// What all bells of a ring share.
#[derive(Debug, Default)]
struct Tower {
    /// Numbers of the bells that rang, each at most once.
    rung: Mutex<Vec<u32>>,
    /// Who is to be woken: the thread's present stay in the runtime.
    listener: Mutex<Option<Waker>>,
}

struct Bell {
    number: u32,
    noted: AtomicBool,
    tower: Arc<Tower>,
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        if self.noted.swap(true, Ordering::AcqRel) {
            return;
        }
        self.tower.rung.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        if let Some(listener) = &*self.tower.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            listener.wake_by_ref();
        }
    }
}

/// The bells of one ring.
pub(super) struct Bells {
    tower: Arc<Tower>,
    bells: Box<[Arc<Bell>]>,
    wakers: Box<[Waker]>,
}

impl Bells {
    pub(super) fn new(count: u32) -> Bells {
        let tower = Arc::new(Tower::default());
        tower.rung.lock().unwrap_or_else(PoisonError::into_inner).reserve_exact(count as usize);
        let bells: Box<[Arc<Bell>]> = (0..count)
            .map(|number| Arc::new(Bell { number, noted: AtomicBool::new(false), tower: tower.clone() }))
            .collect();
        let wakers = bells.iter().map(|bell| Waker::from(bell.clone())).collect();
        Bells { tower, bells, wakers }
    }

    /// What to poll the future at this place with.
    pub(super) fn waker(&self, number: u32) -> &Waker {
        &self.wakers[number as usize]
    }

    /// Sets who is woken by the next bell.
    pub(super) fn listen(&self, waker: &Waker) {
        let mut listener = self.tower.listener.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *listener {
            Some(there) => there.clone_from(waker),
            None => *listener = Some(waker.clone()),
        }
    }

    /// Nobody is woken from now on; bells are still noted.
    pub(super) fn unlisten(&self) {
        self.tower.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Appends the numbers of the bells that rang since the last time.
    pub(super) fn take(&self, out: &mut Vec<u32>) {
        out.append(&mut self.tower.rung.lock().unwrap_or_else(PoisonError::into_inner));
        for number in out.iter() {
            // Before the future is polled: what rings from now on is news.
            self.bells[*number as usize].noted.store(false, Ordering::Release);
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
    fn each_bell_is_noted_once_until_it_is_taken() {
        let bells = Bells::new(3);
        let listener = Arc::new(Count::default());
        bells.waker(1).wake_by_ref();
        bells.listen(&Waker::from(listener.clone()));
        for number in [2, 2, 1, 0, 2] {
            bells.waker(number).wake_by_ref();
        }
        let mut rung = Vec::new();
        bells.take(&mut rung);
        assert_eq!((rung.as_slice(), listener.0.load(Ordering::Relaxed)), (&[1, 2, 0][..], 2));
        bells.unlisten();
        let second = bells.waker(2).clone();
        second.wake();
        rung.clear();
        bells.take(&mut rung);
        assert_eq!((rung.as_slice(), listener.0.load(Ordering::Relaxed)), (&[2][..], 2));
    }
}
