//! Models to train with: LeNet for digits, ResNet for photos, a small transformer for tokens.

mod lenet;
mod resnet;
mod transformer;

pub use lenet::lenet;
pub use resnet::{Depth, resnet};
pub use transformer::{TransformerConfig, transformer};
