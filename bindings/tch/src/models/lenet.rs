//! A network like LeNet-5 (LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 1998).

use tch::nn::{self, Module, ModuleT, Path};

/// `[n, channels, 28, 28]` to `[n, classes]`, with rectifiers and maxima instead of the published sigmoids and means.
#[must_use]
pub fn lenet(path: &Path<'_>, channels: i64, classes: i64) -> Box<dyn ModuleT> {
    let padded = nn::ConvConfig { padding: 2, ..nn::ConvConfig::default() };
    let first = nn::conv2d(path / "conv1", channels, 8, 5, padded);
    let second = nn::conv2d(path / "conv2", 8, 16, 5, nn::ConvConfig::default());
    let third = nn::linear(path / "fc1", 16 * 5 * 5, 120, nn::LinearConfig::default());
    let fourth = nn::linear(path / "fc2", 120, 84, nn::LinearConfig::default());
    let fifth = nn::linear(path / "fc3", 84, classes, nn::LinearConfig::default());
    Box::new(nn::func_t(move |input, _| {
        let maps = first.forward(input).relu().max_pool2d_default(2);
        let maps = second.forward(&maps).relu().max_pool2d_default(2);
        let flat = maps.flatten(1, -1);
        fifth.forward(&fourth.forward(&third.forward(&flat).relu()).relu())
    }))
}
