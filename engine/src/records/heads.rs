//! Where records are long, only what lies between them is read: the headers, one after the other in each shard, in all shards at once.

use fuelrail_base::{ByteSize, Result};
use fuelrail_flow::{ByteRange, Listing};
use fuelrail_format::{IndexBuilder, Need, Scan};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What is read where a header begins.
const HEAD_BYTES: u64 = 4 << 10;
/// Headers are read by themselves where they are so far apart on average: a request costs more time than the bytes in between.
const APART_BYTES: u64 = 1 << 20;
/// How often a long pass tells how far it is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Reads ranges of the listed objects, in the order given, and hands over the bytes of each.
pub(crate) type Read<'r> =
    &'r mut dyn FnMut(Vec<ByteRange>, &mut dyn FnMut(ByteRange, &[u8]) -> Result<()>) -> Result<()>;

/// The index of each such shard, as bytes, and whether it ends without the mark of its format.
pub(super) type Heads = BTreeMap<u32, (Vec<u8>, bool)>;

/// Begins the scan of an object of so many bytes.
pub(super) type Begin<'b> = &'b dyn Fn(u32, u64) -> Result<Box<dyn Scan>>;

/// A shard whose headers are read one by one.
struct Walk {
    object: u32,
    size: u64,
    scan: Box<dyn Scan>,
    index: IndexBuilder,
    /// Pieces read so far.
    pieces: u64,
    /// The scan refused what was read last: the shard is read whole then, which reports the error.
    refused: bool,
}

impl Walk {
    /// What it needs next; `None` at its end.
    fn next(&self) -> Option<ByteRange> {
        match self.scan.need() {
            Need::Read { offset, at_least } if !self.refused => {
                let len = at_least.max(HEAD_BYTES).min(self.size - offset);
                Some(ByteRange { object: self.object, first: offset, len })
            }
            _ => None,
        }
    }
}

/// Indexes the listed objects above `longer_than` bytes by their headers alone, as far as these are far apart. What is not among those returned is
/// to be read whole. The index of each begins as `empty` is.
///
/// # Errors
/// Those of `read`, and of scans that cannot begin.
pub(super) fn read_apart(
    listing: &Listing,
    objects: impl Iterator<Item = u32>,
    longer_than: u64,
    (begin, empty): (Begin<'_>, &IndexBuilder),
    read: Read<'_>,
) -> Result<Heads> {
    let (mut heads, mut walks, mut pass) = (Heads::new(), Vec::new(), Pass::begin());
    for object in objects {
        let size = listing.size(object as usize);
        if size > longer_than {
            let (scan, index) = (begin(object, size)?, empty.clone());
            walks.push(Walk { object, size, scan, index, pieces: 0, refused: false });
        }
    }
    let all = walks.iter().map(|walk| walk.size).sum();
    while !walks.is_empty() {
        let mut turn = walks.iter_mut();
        let ranges = turn.as_slice().iter().filter_map(Walk::next).collect();
        read(ranges, &mut |_, bytes| {
            if let Some(walk) = turn.next() {
                walk.refused = walk.scan.give(bytes, &mut walk.index).is_err();
                walk.pieces += 1;
            }
            Ok(())
        })?;
        walks = walks.into_iter().filter_map(|walk| go_on(walk, &mut heads)).collect();
        let done = heads.keys().map(|object| listing.size(*object as usize)).sum::<u64>();
        let begun = walks.iter().filter_map(Walk::next).map(|next| next.first).sum::<u64>();
        pass.reached(done + begun, all);
    }
    Ok(heads)
}

/// Returns the walk if it continues. One that is complete puts its index into `heads`; one whose headers are close together is dropped.
fn go_on(walk: Walk, heads: &mut Heads) -> Option<Walk> {
    let far = |at: u64| at >= APART_BYTES * walk.pieces;
    match walk.next() {
        Some(next) => far(next.first).then_some(walk),
        None if walk.refused => None,
        None => {
            heads.insert(walk.object, (walk.index.to_bytes(), !walk.index.open_ends().is_empty()));
            None
        }
    }
}

/// How far a pass over shards is.
pub(crate) struct Pass {
    begun: Instant,
    /// When it last told, after its begin.
    told: Duration,
}

impl Pass {
    pub(crate) fn begin() -> Pass {
        Pass { begun: Instant::now(), told: Duration::ZERO }
    }

    /// It has come so far; tells, if it is time to.
    pub(crate) fn reached(&mut self, bytes: u64, of: u64) {
        if let Some(line) = self.line(bytes, of, self.begun.elapsed()) {
            tracing::warn!("{line}");
        }
    }

    fn line(&mut self, bytes: u64, of: u64, elapsed: Duration) -> Option<String> {
        if elapsed < self.told + TELL_EVERY {
            return None;
        }
        self.told = elapsed;
        let left_s = elapsed.as_secs_f64() * (of as f64 / bytes.max(1) as f64 - 1.0);
        let (bytes, of) = (ByteSize(bytes), ByteSize(of));
        Some(format!("looking for records: {bytes} of {of} scanned, about {left_s:.0} s left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pass_tells_how_far_it_is() {
        let mut pass = Pass::begin();
        let mut line = |mib: u64, s| pass.line(mib << 20, 400 << 20, Duration::from_secs(s));
        assert_eq!(line(50, 5), None);
        assert_eq!(line(100, 12).unwrap(), "looking for records: 100.0 MiB of 400.0 MiB scanned, about 36 s left");
        assert_eq!(line(101, 13), None);
        assert!(line(150, 22).is_some());
    }
}
