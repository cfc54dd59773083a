//! What a program is told about its data and device.

use fuelrail::{Config, Decode};
use tch::Device;

/// What a model is made for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts<'a> {
    /// Where it is trained, and its variables lie.
    pub device: Device,
    /// What pictures are decoded to; `None` where samples come as they are.
    pub decode: Option<Decode>,
    /// Names of the classes; labels number them.
    pub classes: &'a [String],
    /// Samples of the data set.
    pub samples: u64,
    /// All settings of the loader.
    pub config: &'a Config,
}
