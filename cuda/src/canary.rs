//! Steps that tests can make the copy path omit, to prove that the checks notice. Outside this crate's own tests none is.
//!
//! Owns one value, which is empty in every build but the tests'.

/// A step that keeps order between host, copy stream and consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The host slot is held until the copy's event.
    HoldSlot,
    /// The copy waits for the consumer's event before it writes the buffer again.
    AwaitConsumer,
    /// The consumer's stream waits for the copy.
    AwaitCopy,
    /// Memory is unregistered at the end.
    Unregister,
}

#[cfg(test)]
thread_local! {
    /// For feeds that this thread starts from now on.
    pub(crate) static LEFT_OUT: core::cell::Cell<Option<Step>> = const { core::cell::Cell::new(None) };
}

/// The step a feed omits: none outside tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canary(Option<Step>);

impl Canary {
    /// For a feed started now.
    pub(crate) fn new() -> Canary {
        #[cfg(test)]
        return Canary(LEFT_OUT.get());
        #[cfg(not(test))]
        Canary(None)
    }

    /// Whether this step is taken.
    pub(crate) fn takes(self, step: Step) -> bool {
        self.0 != Some(step)
    }
}
