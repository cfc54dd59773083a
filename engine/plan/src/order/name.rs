//! The orders by name. Owns nothing.

use core::fmt;
use core::str::FromStr;
use fuelrail_base::{Error, Kind, Result};

/// Which shuffle a run goes by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OrderName {
    /// One permutation of everything per epoch: a sample lands on any rank.
    #[default]
    Global,
    /// A permutation per epoch in which a sample comes back to the same rank, as long as there are as many.
    Sticky,
}

impl OrderName {
    /// All of them, for help texts and tests.
    pub const ALL: [OrderName; 2] = [OrderName::Global, OrderName::Sticky];

    /// The name as written in configuration and states.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            OrderName::Global => "global",
            OrderName::Sticky => "sticky",
        }
    }
}

impl fmt::Display for OrderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for OrderName {
    type Err = Error;

    fn from_str(text: &str) -> Result<OrderName> {
        OrderName::ALL
            .into_iter()
            .find(|name| name.word() == text)
            .ok_or_else(|| Error::new(Kind::Usage, format!("'{text}' is not an order")).cure("use global or sticky"))
    }
}
