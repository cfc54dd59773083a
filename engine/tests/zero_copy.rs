//! A loader that asks for zero-copy receive where no card can do it says so once and delivers the same bytes.

use crate::common::{bucket, drain, loader};
use fuelrail_bucket::DataSet;

#[test]
fn a_refused_card_costs_nothing_but_the_line_that_says_so() {
    let set = DataSet::photos(60, 3);
    let bucket = bucket(&set, "");
    for ring in ["auto", "uring"] {
        let builder = loader(&bucket).batch_size(8).ring(ring).zero_copy_receive("lo:0");
        // The area is within the budget, which therefore has to be larger than without.
        let error = builder.clone().memory_limit(fuelrail::ByteSize(66 << 20)).build().unwrap_err();
        assert_eq!(error.kind(), fuelrail::Kind::Budget, "{error}");
        let mut loader = builder.memory_limit(fuelrail::ByteSize(128 << 20)).build().unwrap();
        let lines = loader.notices().iter().filter(|line| line.starts_with("zero-copy receive on lo:0: ")).count();
        assert_eq!(lines, 1, "{:?}", loader.notices());
        drain(&mut loader, &set).unwrap();
        let stats = loader.stats();
        assert_eq!((stats.bytes, stats.landed_bytes), (set.total_bytes(), set.total_bytes()));
        assert!(stats.copied_bytes_per_byte <= 0.01, "{stats:?}");
    }
}
