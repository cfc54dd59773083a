//! What the paper's authors measured, from their released data (MNIST, batches of 512): means over three nodes and three
//! trials, per epoch. Shown beside our numbers, never an input to them.

use serde::{Deserialize, Serialize};

use crate::deli::RowName;

/// One row of the paper. Arrays hold epoch 1 and epoch 2.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The row's name in this report.
    pub name: RowName,
    /// Time inside `next` per node, s.
    pub data_wait_s: [f64; 2],
    /// Time of the epoch, s.
    pub epoch_s: [f64; 2],
    /// Miss rate in epoch 2, for rows with a cache.
    pub miss_rate: Option<f64>,
    /// Relative reduction of the bucket's data wait, over both epochs.
    pub wait_reduction: f64,
}

/// Name, data wait and epoch time of both epochs in s, and miss rate in epoch 2.
type Measured = (RowName, [f64; 2], [f64; 2], Option<f64>);

const MEASURED: [Measured; 8] = [
    (RowName::LocalDisk, [117.3, 82.2], [129.9, 94.0], None),
    (RowName::Bucket, [781.6, 763.2], [800.6, 780.8], None),
    (RowName::DemandFifo25, [810.3, 809.9], [834.2, 844.1], Some(0.989)),
    (RowName::DemandFifo50, [786.6, 743.1], [808.4, 771.7], Some(0.953)),
    (RowName::DemandFifo75, [765.3, 685.4], [787.1, 707.4], Some(0.888)),
    (RowName::DemandUnlimited, [738.7, 489.5], [753.9, 510.6], Some(0.667)),
    (RowName::DeliFullFetch, [123.3, 129.6], [129.9, 137.2], Some(0.148)),
    (RowName::Deli5050, [109.3, 107.9], [122.7, 122.5], Some(0.150)),
];

/// Returns the paper's rows, in the order of [`RowName::ALL`].
#[must_use]
pub fn published() -> Vec<Published> {
    let bucket: f64 = MEASURED[1].1.iter().sum();
    let row = |&(name, data_wait_s, epoch_s, miss_rate): &Measured| {
        let wait_reduction = 1.0 - data_wait_s.iter().sum::<f64>() / bucket;
        Published { name, data_wait_s, epoch_s, miss_rate, wait_reduction }
    };
    MEASURED.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_is_in_the_numbers() {
        let rows = published();
        let of = |name| rows.iter().find(|row| row.name == name).copied().unwrap();
        assert_eq!(of(RowName::Bucket).wait_reduction, 0.0);
        assert!((of(RowName::Deli5050).wait_reduction - 0.86).abs() < 0.005);
        assert!(rows.iter().map(|row| row.name).eq(RowName::ALL.into_iter().take(8)));
    }
}
