//! Models to train with: LeNet for digits, ResNet for photos, a small transformer for tokens.

mod lenet;
mod transformer;

pub use lenet::lenet;
pub use transformer::{TransformerConfig, transformer};

use clap::ValueEnum;
use tch::nn::{self, ModuleT, Path};
use tch::vision::resnet::{resnet18, resnet50};

/// How deep a residual network is.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Two 3x3 convolutions a block, 18 layers.
    Resnet18,
    /// Bottlenecks, 50 layers.
    Resnet50,
}

/// tch's residual networks: `[n, channels, height, width]` to `[n, classes]`, for pictures of 32 pixels a side and more, RGB or grey (which is
/// taken as three equal channels).
#[must_use]
pub fn resnet(path: &Path<'_>, depth: Depth, classes: i64) -> Box<dyn ModuleT> {
    let model: Box<dyn ModuleT> = match depth {
        Depth::Resnet18 => Box::new(resnet18(path, classes)),
        Depth::Resnet50 => Box::new(resnet50(path, classes)),
    };
    Box::new(nn::func_t(move |input, training| model.forward_t(&input.expand(&[-1, 3, -1, -1], false), training)))
}
