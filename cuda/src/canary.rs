//! What the copy path can be made to leave out, to see that the checks notice: outside this crate's own tests, nothing.
//!
//! Owns one value that every build but the tests' knows to be empty.

/// A step that keeps order between host, copy stream and consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code, reason = "only the tests leave steps out"))]
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

/// What a feed leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Canary {
    #[cfg(test)]
    left_out: Option<Step>,
}

impl Canary {
    /// For a feed started now.
    pub(crate) fn new() -> Canary {
        #[cfg(test)]
        return Canary { left_out: LEFT_OUT.get() };
        #[cfg(not(test))]
        Canary {}
    }

    /// Whether this step is taken: always, outside tests.
    #[cfg_attr(not(test), allow(clippy::unused_self, reason = "there is nothing in it"))]
    pub(crate) fn takes(self, step: Step) -> bool {
        #[cfg(test)]
        return self.left_out != Some(step);
        #[cfg(not(test))]
        {
            let _ = step;
            true
        }
    }
}
