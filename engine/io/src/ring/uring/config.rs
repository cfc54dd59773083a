//! Configuration of an io_uring ring, and its checks. Opens nothing.

use fuelrail_base::{Error, Kind, Result};

use crate::arena::Arena;

/// How to make an io_uring ring.
#[derive(Clone, Debug)]
pub struct UringConfig {
    /// Operations that can be in flight.
    pub entries: u32,
    /// Sockets that can be open.
    pub sockets: u32,
    /// Arena to register with the kernel, so that receives into one window skip the page lookup. Registering touches
    /// and locks all of it. When it is refused, the ring works without it and [`RingFacts::refusals`](crate::RingFacts::refusals) says why.
    pub register: Option<Arena>,
}

impl Default for UringConfig {
    /// 512 operations, 512 sockets, nothing registered.
    fn default() -> UringConfig {
        UringConfig { entries: 512, sockets: 512, register: None }
    }
}

impl UringConfig {
    /// Checks the counts.
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
