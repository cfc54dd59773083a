//! What an io_uring ring is asked to be. Owns the checks of the asking; opens nothing.

use fuelrail_base::{Error, Kind, Result};

use super::zero_copy::CardQueue;
use crate::arena::Arena;

/// How to make an io_uring ring.
#[derive(Clone, Debug)]
pub struct UringConfig {
    /// Operations that can be in flight.
    pub entries: u32,
    /// Sockets that can be open.
    pub sockets: u32,
    /// Arena to register with the kernel, so that receives into one window skip the page look-up. Registering touches
    /// and locks all of it. When it is refused, the ring works without and [`RingFacts::refusals`](crate::RingFacts::refusals) says why.
    pub register: Option<Arena>,
    /// The queue of a network card to receive from without a copy by the kernel, set up for it by the administrator. Takes
    /// [`ZERO_COPY_BYTES`](crate::ZERO_COPY_BYTES) of locked memory besides the arena. When kernel or card refuse, receives are
    /// ordinary and [`RingFacts::refusals`](crate::RingFacts::refusals) says why.
    pub zero_copy_receive: Option<CardQueue>,
}

impl Default for UringConfig {
    /// 512 operations, 512 sockets, nothing registered, ordinary receives.
    fn default() -> UringConfig {
        UringConfig { entries: 512, sockets: 512, register: None, zero_copy_receive: None }
    }
}

impl UringConfig {
    /// Checks that such a ring can exist.
    ///
    /// # Errors
    /// `Usage` for counts of zero or beyond the kernel's limits.
    pub fn validate(&self) -> Result<()> {
        for (name, count, most) in [("operations", self.entries, 1 << 14), ("sockets", self.sockets, 1 << 15)] {
            if count == 0 || count > most {
                return Err(Error::new(Kind::Usage, format!("a ring has 1 to {most} {name}, not {count}")));
            }
        }
        Ok(())
    }
}
