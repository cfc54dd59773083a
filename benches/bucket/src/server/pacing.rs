//! When the next bytes of a body may go: the connection's bandwidth and the bucket's together.

use core::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::pace::Pace;
use crate::script::Act;

/// Bandwidth of one connection, under the act it was last used with.
#[derive(Default)]
pub(crate) struct Bandwidth {
    pace: RefCell<Option<(Arc<Act>, Pace)>>,
}

impl Bandwidth {
    fn reserve(&self, act: &Arc<Act>, now: Instant, bytes: u64) -> Instant {
        let Some(rate) = act.script.bandwidth_connection_bytes_per_s else { return now };
        let mut pace = self.pace.borrow_mut();
        if !pace.as_ref().is_some_and(|(made_for, _)| Arc::ptr_eq(made_for, act)) {
            *pace = Some((Arc::clone(act), Pace::bytes(rate)));
        }
        pace.as_mut().map_or(now, |(_, pace)| pace.reserve(now, bytes))
    }
}

/// Bandwidth of one body: the connection's and the bucket's.
pub(crate) struct Pacing {
    bandwidth: Rc<Bandwidth>,
    act: Arc<Act>,
}

impl Pacing {
    /// Pacing of a body sent on a connection of this bandwidth under `act`; `None` when the act sets no pace.
    pub(crate) fn new(bandwidth: &Rc<Bandwidth>, act: &Arc<Act>) -> Option<Pacing> {
        act.is_paced().then(|| Pacing { bandwidth: Rc::clone(bandwidth), act: Arc::clone(act) })
    }

    pub(crate) fn frame_bytes(&self, largest: usize) -> usize {
        self.act.frame_bytes(largest)
    }

    /// Reserves bytes; they may go at the returned moment.
    pub(crate) fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        self.bandwidth.reserve(&self.act, now, bytes).max(self.act.reserve_total(now, bytes))
    }
}
