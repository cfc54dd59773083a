//! The orders by name. Owns nothing.

/// Which shuffle a run goes by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OrderName {
    /// One permutation of everything per epoch: a sample lands on any rank.
    #[default]
    Global,
    /// A permutation per epoch in which a sample comes back to the same rank, as long as there are as many.
    Sticky,
}

fuelrail_base::named!(OrderName, "an order": Global = "global", Sticky = "sticky");
