//! The same names over loom, and models of the queues of other crates, with those crates' orderings.
//!
//! Every ordering that our code uses passes through [`trial`], which can take one away.

pub use loom::sync::{Condvar, Mutex, MutexGuard};

/// Atomics, as `std::sync::atomic` has them.
pub mod atomic {
    use super::trial::{order, order_of_two};
    use core::panic::Location;
    pub use std::sync::atomic::Ordering;

    /// As `std::sync::atomic::fence`; no fence when its ordering is taken away.
    #[track_caller]
    pub fn fence(ordering: Ordering) {
        if order(ordering, Location::caller()) != Ordering::Relaxed {
            loom::sync::atomic::fence(ordering);
        }
    }

    macro_rules! atomics {
        ($($name:ident $value:ty),*) => { $(
            /// As its namesake in `std::sync::atomic`.
            #[derive(Debug, Default)]
            pub struct $name(loom::sync::atomic::$name);

            #[allow(missing_docs, reason = "as their namesakes")]
            impl $name {
                pub fn new(value: $value) -> $name {
                    $name(loom::sync::atomic::$name::new(value))
                }
                #[track_caller]
                pub fn load(&self, by: Ordering) -> $value {
                    self.0.load(order(by, Location::caller()))
                }
                #[track_caller]
                pub fn store(&self, value: $value, by: Ordering) {
                    self.0.store(value, order(by, Location::caller()));
                }
                #[track_caller]
                pub fn swap(&self, value: $value, by: Ordering) -> $value {
                    self.0.swap(value, order(by, Location::caller()))
                }
                #[track_caller]
                pub fn compare_exchange(
                    &self, old: $value, new: $value, by: Ordering, failed: Ordering,
                ) -> Result<$value, $value> {
                    let (by, failed) = order_of_two(by, failed, Location::caller());
                    self.0.compare_exchange(old, new, by, failed)
                }
                #[track_caller]
                pub fn compare_exchange_weak(
                    &self, old: $value, new: $value, by: Ordering, failed: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(old, new, by, failed)
                }
            }
        )* };
    }
    macro_rules! counters {
        ($($name:ident $value:ty),*) => {
            atomics!($($name $value),*);
            $(#[allow(missing_docs, reason = "as their namesakes")]
            impl $name {
                #[track_caller]
                pub fn fetch_add(&self, value: $value, by: Ordering) -> $value {
                    self.0.fetch_add(value, order(by, Location::caller()))
                }
                #[track_caller]
                pub fn fetch_sub(&self, value: $value, by: Ordering) -> $value {
                    self.0.fetch_sub(value, order(by, Location::caller()))
                }
            })*
        };
    }
    atomics!(AtomicBool bool);
    counters!(AtomicU8 u8, AtomicU32 u32, AtomicU64 u64, AtomicI64 i64, AtomicUsize usize);
}

/// Runs of a model, as the code is and with one ordering taken away.
pub mod trial {
    use core::cell::{Cell, RefCell};
    use core::panic::Location;
    use core::sync::atomic::Ordering;
    use std::collections::BTreeSet;
    use std::process::{Command, Stdio};
    use std::thread as thread_of_the_system;

    pub use loom::cell::UnsafeCell;
    pub use loom::thread::{self, JoinHandle};

    /// Names the place whose ordering is taken away.
    const RELAXED_BY: &str = "FUELRAIL_RELAXED";

    type Place = &'static Location<'static>;

    // The model's threads take turns on one thread of the system: these are common to them.
    thread_local! {
        static PLACES: RefCell<BTreeSet<Place>> = const { RefCell::new(BTreeSet::new()) };
        static RELAXED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// The ordering that `place` gets. Where several are weaker than it, they are all given up.
    pub(super) fn order(ordering: Ordering, place: Place) -> Ordering {
        order_of_two(ordering, Ordering::Relaxed, place).0
    }

    pub(super) fn order_of_two(first: Ordering, second: Ordering, place: Place) -> (Ordering, Ordering) {
        if (first, second) == (Ordering::Relaxed, Ordering::Relaxed) {
            return (first, second);
        }
        PLACES.with_borrow_mut(|places| places.insert(place));
        if RELAXED.get().is_some_and(|relaxed| relaxed == place.to_string()) {
            (Ordering::Relaxed, Ordering::Relaxed)
        } else {
            (first, second)
        }
    }

    /// Checks a model: every interleaving with at most three preemptions, and every value that a load may see.
    ///
    /// # Panics
    /// When one of them panics or can go no further.
    pub fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.max_branches = 10_000;
        builder.check(model);
    }

    /// Checks models of one thing, and then that they need every ordering of the files `of`: the places without which all of them hold,
    /// too. Each place is tried by this test in a process of its own, because what is wrong may abort it.
    ///
    /// # Panics
    /// When a model fails as it is, or when this is not the thread of a test.
    #[must_use]
    pub fn needless(models: &[fn()], of: &[&str]) -> Vec<String> {
        if let Ok(relaxed) = std::env::var(RELAXED_BY) {
            RELAXED.set(Some(relaxed.leak()));
            models.iter().copied().for_each(check);
            return Vec::new();
        }
        models.iter().copied().for_each(check);
        let places = PLACES.with_borrow(Clone::clone);
        let places = places.into_iter().filter(|place| of.iter().any(|file| place.file().ends_with(file)));
        places.map(Location::to_string).filter(|place| holds(place)).collect()
    }

    /// Whether a model that is wrong on purpose is found to be: a canary.
    ///
    /// # Panics
    /// In the process of its own in which the model is tried, and when this is not the thread of a test.
    #[must_use]
    pub fn fails(model: fn()) -> bool {
        if std::env::var_os(RELAXED_BY).is_some() {
            check(model);
            // This test passes here: the model was not found to be wrong.
            return true;
        }
        !holds("nothing")
    }

    /// Whether this test passes in a process of its own, without the ordering of `place`.
    fn holds(place: &str) -> bool {
        let this = thread_of_the_system::current();
        let mut again = Command::new(std::env::current_exe().expect("the program of the tests"));
        again.args([this.name().expect("a test's thread has its name"), "--exact"]).env(RELAXED_BY, place);
        let status = again.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs once more");
        assert!(status.code() != Some(2), "the program of the tests takes a name");
        status.success()
    }
}

/// As the standard library's.
#[derive(Debug)]
pub struct OnceLock<T> {
    ready: loom::sync::atomic::AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

#[allow(missing_docs, reason = "as their namesakes")]
impl<T> OnceLock<T> {
    pub fn new() -> OnceLock<T> {
        OnceLock { ready: loom::sync::atomic::AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.ready.store(true, atomic::Ordering::Release);
        Ok(())
    }
    pub fn get(&self) -> Option<&T> {
        self.ready.load(atomic::Ordering::Acquire).then(|| self.value.get()).flatten()
    }
}

/// As the crate `rtrb`: a position that the producer releases and one that the consumer releases.
#[allow(missing_docs, reason = "as their namesakes")]
pub mod rtrb {
    use core::marker::PhantomData;
    use loom::sync::atomic::{AtomicBool, AtomicUsize};
    use std::collections::VecDeque;
    use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
    use std::sync::{Arc, Mutex};

    #[derive(Debug)]
    struct Shared<T> {
        /// Never fought over: the model's threads take turns, and none is sent to sleep while it holds this.
        items: Mutex<VecDeque<T>>,
        capacity: usize,
        head: AtomicUsize,
        tail: AtomicUsize,
        abandoned: AtomicBool,
    }

    #[derive(Debug)]
    pub struct RingBuffer<T>(PhantomData<T>);
    #[derive(Debug)]
    pub struct Producer<T> {
        shared: Arc<Shared<T>>,
        /// What it released last: a load would hide the consumer's from the checker, which knows one reader of an atomic at a time.
        tail: usize,
    }
    #[derive(Debug)]
    pub struct Consumer<T> {
        shared: Arc<Shared<T>>,
        /// What it released last.
        head: usize,
    }
    #[derive(Debug)]
    pub enum PushError<T> {
        Full(T),
    }

    impl<T> RingBuffer<T> {
        #[allow(clippy::new_ret_no_self, reason = "as its namesake")]
        pub fn new(capacity: usize) -> (Producer<T>, Consumer<T>) {
            let [head, tail] = [0, 0].map(AtomicUsize::new);
            let (items, abandoned) = (Mutex::default(), AtomicBool::new(false));
            let shared = Arc::new(Shared { items, capacity, head, tail, abandoned });
            (Producer { shared: shared.clone(), tail: 0 }, Consumer { shared, head: 0 })
        }
    }

    impl<T> Producer<T> {
        pub fn push(&mut self, item: T) -> Result<(), PushError<T>> {
            if self.slots() == 0 {
                return Err(PushError::Full(item));
            }
            self.shared.items.lock().expect("no panic inside").push_back(item);
            self.tail += 1;
            self.shared.tail.store(self.tail, Release);
            Ok(())
        }
        pub fn slots(&self) -> usize {
            self.shared.capacity - (self.tail - self.shared.head.load(Acquire))
        }
        pub fn is_abandoned(&self) -> bool {
            self.shared.abandoned.load(Acquire)
        }
    }

    impl<T> Consumer<T> {
        pub fn pop(&mut self) -> Result<T, ()> {
            if self.slots() == 0 {
                return Err(());
            }
            let item = self.shared.items.lock().expect("no panic inside").pop_front();
            self.head += 1;
            self.shared.head.store(self.head, Release);
            Ok(item.expect("pushed before its position was released"))
        }
        pub fn slots(&self) -> usize {
            self.shared.tail.load(Acquire) - self.head
        }
        pub fn is_empty(&self) -> bool {
            self.slots() == 0
        }
        pub fn is_abandoned(&self) -> bool {
            self.shared.abandoned.load(Acquire)
        }
    }

    impl<T> Drop for Producer<T> {
        fn drop(&mut self) {
            self.shared.abandoned.swap(true, AcqRel);
        }
    }
    impl<T> Drop for Consumer<T> {
        fn drop(&mut self) {
            self.shared.abandoned.swap(true, AcqRel);
        }
    }
}
