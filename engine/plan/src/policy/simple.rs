//! Rules of a line or two: what came first, what was used last, what is used next, and none.

use super::contract::PolicyName;
use super::ranked::Rule;
use crate::schedule::UseTime;
use core::cmp::Reverse;
use fuelrail_base::BlockId;

/// What came first leaves first, or what was used longest ago.
#[derive(Default)]
pub(super) struct Oldest<const BY_USE: bool> {
    moment: u64,
}

/// First in, first out: the published baseline (DELI). Ignores uses.
pub(super) type Fifo = Oldest<false>;
/// Least recently used: the usual baseline. Over epochs it does badly: what was used longest ago is what comes again soonest.
pub(super) type Lru = Oldest<true>;

impl<const BY_USE: bool> Rule for Oldest<BY_USE> {
    type Key = Reverse<u64>;
    const NAME: PolicyName = if BY_USE { PolicyName::Lru } else { PolicyName::Fifo };

    fn first(&mut self, _block: BlockId, _bytes: u64, _next_use: Option<UseTime>) -> Option<Reverse<u64>> {
        self.moment += 1;
        Some(Reverse(self.moment))
    }

    fn again(&mut self, key: Reverse<u64>, _bytes: u64, _next_use: Option<UseTime>) -> Option<Reverse<u64>> {
        self.moment += u64::from(BY_USE);
        Some(if BY_USE { Reverse(self.moment) } else { key })
    }
}

/// Farthest next use leaves first (Belady 1966), with bypass: optimal when the order is known, and here it is. A block not used
/// again within the horizon is not kept, nor one that is used later than all that would have to go for it.
pub(super) struct NextUse;

impl Rule for NextUse {
    type Key = UseTime;
    const NAME: PolicyName = PolicyName::NextUse;

    fn first(&mut self, _block: BlockId, _bytes: u64, next_use: Option<UseTime>) -> Option<UseTime> {
        next_use
    }

    fn again(&mut self, _key: UseTime, _bytes: u64, next_use: Option<UseTime>) -> Option<UseTime> {
        next_use
    }
}

/// First come stays: fills up and never evicts (MinIO in CoorDL, Mohan et al., VLDB 2021). It needs to know nothing about the future,
/// and over uniform epochs it loses nothing by it.
pub(super) struct Pinned;

impl Rule for Pinned {
    type Key = ();
    const NAME: PolicyName = PolicyName::Pinned;

    fn first(&mut self, _block: BlockId, _bytes: u64, _next_use: Option<UseTime>) -> Option<()> {
        Some(())
    }
}
