//! When a request that is under way should be sent a second time, over another connection: hedged requests (Dean, Barroso,
//! "The Tail at Scale", CACM 56(2), 2013).
//!
//! Three rules. *The delay follows what is measured*: a multiple of the 95th percentile of the time requests of that length take,
//! never below a floor, and none before enough of them have landed. *The budget is in requests*: each one sent earns a share of
//! another, hedges spend what was earned, and the delay stretches as it is spent, so that the slowest get what is left and a
//! bucket that is slow as a whole does not get every request twice. *A server that asks to slow down gets no hedges*.
//! Owns the estimates, the budget and the moments requests were sent. Never sends, and never sees a byte.

mod watch;

use crate::usage;
use fuelrail_base::{Duration, Instant, Result};
use watch::{Quantile, Watch};

/// The largest `percent` that may be configured.
pub const HEDGE_PERCENT_MAX: u32 = 20;

/// The delay is this many quarters of the percentile while the budget is full, …
const STRETCH_FULL: u64 = 6;
/// … and this many when it is spent.
const STRETCH_SPENT: u64 = 16;
/// Hedges that can be saved up: as many requests can go wrong at the same moment.
const BURST: i64 = 16;
/// After a server asked to slow down, nothing is hedged for so long.
const THROTTLED_PAUSE: Duration = Duration::from_secs(5);
/// The price of a hedge, in hundredths of a request.
const PRICE: i64 = 100;
/// Classes of length: requests of up to 64 KiB take as long as each other, longer ones by powers of four.
const CLASSES: usize = 6;
const CLASS_BITS_MIN: u32 = 16;

/// Of the connections, one in so many is kept for second requests.
const CONNECTIONS_KEPT_SHARE: usize = 16;

/// Connections for first requests: all, or, where requests are hedged, so many that a second one finds a connection when all of these are
/// in use.
pub fn first_requests(connections_max: usize, hedge_percent: u32) -> usize {
    connections_max - if hedge_percent > 0 { connections_max / CONNECTIONS_KEPT_SHARE } else { 0 }
}

/// How requests are hedged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HedgeConfig {
    /// Most requests sent a second time, in per cent of all; 0 sends none.
    pub percent: u32,
    /// No hedge comes sooner: below it, the difference is this machine's scheduling.
    pub delay_us_min: u64,
    /// Landings of about one length before their percentile means something.
    pub landings_min: u64,
}

impl Default for HedgeConfig {
    fn default() -> HedgeConfig {
        HedgeConfig { percent: 2, delay_us_min: 10_000, landings_min: 32 }
    }
}

impl HedgeConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Kind::Usage`], naming the field and its value.
    pub fn validate(&self) -> Result<()> {
        if self.percent > HEDGE_PERCENT_MAX {
            let cause = format!("hedge_percent is {}", self.percent);
            return usage(cause, "choose between 0 and 20; 2 is the default, 0 is off");
        }
        Ok(())
    }
}

/// Requests of about one length.
#[derive(Clone, Debug, Default)]
struct Class {
    took: Quantile,
    watch: Watch,
}

/// Decides on second requests; one per shard. Requests go by a number that is unique while they are under way.
#[derive(Clone, Debug)]
pub struct Hedge {
    config: HedgeConfig,
    classes: [Class; CLASSES],
    /// Saved up, in hundredths of a request. Below zero where hedges cost more than was known before.
    balance: i64,
    throttled_until: Instant,
}

impl Hedge {
    /// Hedging without measurements and with an empty budget.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the configuration is out of range.
    pub fn new(config: HedgeConfig) -> Result<Hedge> {
        config.validate()?;
        Ok(Hedge { config, classes: Default::default(), balance: 0, throttled_until: Instant::ZERO })
    }

    /// A request for `bytes` is sent. Without a number, it is not to be hedged.
    pub fn sent(&mut self, now: Instant, number: Option<u32>, bytes: u64) {
        if self.config.percent == 0 {
            return;
        }
        self.balance = (self.balance + i64::from(self.config.percent)).min(BURST * PRICE);
        if let Some(number) = number {
            self.class(bytes).watch.insert(number, now);
        }
    }

    /// A request is over, however it ended, or is not to be hedged any more.
    pub fn over(&mut self, number: u32, bytes: u64) {
        self.class(bytes).watch.remove(number);
    }

    /// A request for `bytes` took this long, or this long and more: then another had to bring its bytes.
    pub fn took(&mut self, bytes: u64, total: Duration) {
        if self.config.percent > 0 {
            self.class(bytes).took.record(total);
        }
    }

    /// The server asked to slow down.
    pub fn throttled(&mut self, now: Instant) {
        self.throttled_until = now.after(THROTTLED_PAUSE);
    }

    /// A request that should be sent a second time now: it is paid for, and no longer watched. To a core that is not `idle` it
    /// is due after twice the delay: its response may have arrived already, and not been read.
    pub fn due(&mut self, now: Instant, idle: bool) -> Option<u32> {
        let (at, class) = self.next()?;
        let patience = if idle { Duration::ZERO } else { self.delay_of(&self.classes[class])? };
        if at.after(patience) > now {
            return None;
        }
        self.balance -= PRICE;
        self.classes[class].watch.pop().map(|(number, _)| number)
    }

    /// The second request could not be sent: the first is watched anew, and nothing was spent.
    pub fn postponed(&mut self, now: Instant, number: u32, bytes: u64) {
        self.balance += PRICE;
        self.class(bytes).watch.insert(number, now);
    }

    /// The second request was sent, or failed: the fetch is watched anew.
    pub fn again(&mut self, now: Instant, number: u32, bytes: u64) {
        self.class(bytes).watch.insert(number, now);
    }

    /// A request has to be sent again because of a hedge: it stood behind one that was given up.
    pub fn displaced(&mut self) {
        self.balance -= PRICE;
    }

    /// When [`due`](Hedge::due) next returns a request, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.next().map(|(at, _)| at)
    }

    /// How long requests for `bytes` are waited for before they are sent again. `None` while too few have landed.
    pub fn delay(&self, bytes: u64) -> Option<Duration> {
        self.delay_of(&self.classes[class_of(bytes)])
    }

    /// The first moment a request is due, and its class.
    fn next(&self) -> Option<(Instant, usize)> {
        if self.balance < PRICE {
            return None;
        }
        let due = |class: &Class| Some(class.watch.oldest()?.after(self.delay_of(class)?));
        let first = self.classes.iter().enumerate().filter_map(|(at, class)| Some((due(class)?, at))).min()?;
        Some((first.0.max(self.throttled_until), first.1))
    }

    fn delay_of(&self, class: &Class) -> Option<Duration> {
        let usual = class.took.p95(self.config.landings_min)?;
        let saved = u64::try_from(self.balance.max(0)).unwrap_or(0);
        let full = (BURST * PRICE).unsigned_abs();
        let quarters = (STRETCH_SPENT * full - (STRETCH_SPENT - STRETCH_FULL) * saved.min(full)) as f64 / full as f64;
        Some(usual.mul_f64(quarters / 4.0).max(Duration::from_micros(self.config.delay_us_min)))
    }

    fn class(&mut self, bytes: u64) -> &mut Class {
        &mut self.classes[class_of(bytes)]
    }
}

fn class_of(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(CLASS_BITS_MIN).div_ceil(2) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests;
