//! Predicts what training from a bucket takes and costs.
//!
//! Step, checkpoint and cluster times fitted from measurements ([`fit`]), the data wait of a loader ([`deli`]), and policies for spot
//! machines under a deadline ([`spot`]), the epoch time of a [`loader`], the [`lives`] of spot machines,
//! the clusters of a [`scenario`], [compared](compare), the [`diagnosis`] of a slow run, and what to do on a [`notice`].
//!
//! Pure: text, facts and seeds are arguments, numbers are return values. Never reads a clock, opens a file or draws ambient randomness.
//! Times are seconds or hours and money is in one currency, as the names say.
#![forbid(unsafe_code)]

pub mod compare;
pub mod deli;
pub mod diagnosis;
pub mod fit;
pub mod lives;
pub mod loader;
pub mod notice;
pub mod scenario;
pub mod spot;
pub mod table;

const HOUR_S: f64 = 3600.0;
/// The 95th percentile of the standard normal distribution.
const ONE_IN_TWENTY: f64 = 1.645;

/// The refusal of a table, a setting or a call: what is wrong with it, and what to do.
fn usage<T>(cause: impl Into<String>, cure: impl Into<String>) -> fuelrail_base::Result<T> {
    Err(fuelrail_base::Error::new(fuelrail_base::Kind::Usage, cause).with_hint(cure))
}
