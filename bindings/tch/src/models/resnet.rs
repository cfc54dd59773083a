//! Residual networks (He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016).

use clap::ValueEnum;
use tch::Tensor;
use tch::nn::{self, Module, ModuleT, Path};

/// How deep.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Two 3x3 convolutions a block, 18 layers.
    Resnet18,
    /// Bottlenecks, 50 layers.
    Resnet50,
}

#[derive(Debug)]
struct Unit {
    convolution: nn::Conv2D,
    norm: nn::BatchNorm,
}

impl Unit {
    fn new(path: &Path<'_>, from: i64, to: i64, size: i64, stride: i64) -> Unit {
        let config = nn::ConvConfig { stride, padding: size / 2, bias: false, ..nn::ConvConfig::default() };
        let convolution = nn::conv2d(path / "conv", from, to, size, config);
        Unit { convolution, norm: nn::batch_norm2d(path / "norm", to, nn::BatchNormConfig::default()) }
    }

    fn apply(&self, input: &Tensor, training: bool) -> Tensor {
        self.norm.forward_t(&self.convolution.forward(input), training)
    }
}

#[derive(Debug)]
struct Block {
    units: Vec<Unit>,
    short_cut: Option<Unit>,
}

impl Block {
    fn new(path: &Path<'_>, depth: Depth, from: i64, width: i64, stride: i64) -> (Block, i64) {
        let (units, to) = match depth {
            Depth::Resnet18 => {
                let first = Unit::new(&(path / "1"), from, width, 3, stride);
                (vec![first, Unit::new(&(path / "2"), width, width, 3, 1)], width)
            }
            Depth::Resnet50 => {
                let first = Unit::new(&(path / "1"), from, width, 1, 1);
                let second = Unit::new(&(path / "2"), width, width, 3, stride);
                (vec![first, second, Unit::new(&(path / "3"), width, 4 * width, 1, 1)], 4 * width)
            }
        };
        let short_cut = (stride != 1 || from != to).then(|| Unit::new(&(path / "short"), from, to, 1, stride));
        (Block { units, short_cut }, to)
    }

    fn apply(&self, input: &Tensor, training: bool) -> Tensor {
        let mut maps = input.shallow_clone();
        for (n, unit) in self.units.iter().enumerate() {
            maps = unit.apply(&maps, training);
            if n + 1 < self.units.len() {
                maps = maps.relu();
            }
        }
        let short = self.short_cut.as_ref().map_or_else(|| input.shallow_clone(), |unit| unit.apply(input, training));
        (maps + short).relu()
    }
}

/// `[n, channels, height, width]` to `[n, classes]`, for pictures of 32 pixels a side and more.
#[must_use]
pub fn resnet(path: &Path<'_>, depth: Depth, channels: i64, classes: i64) -> Box<dyn ModuleT> {
    let blocks_of = match depth {
        Depth::Resnet18 => [2, 2, 2, 2],
        Depth::Resnet50 => [3, 4, 6, 3],
    };
    let stem = Unit::new(&(path / "stem"), channels, 64, 7, 2);
    let (mut blocks, mut maps) = (Vec::new(), 64);
    for (stage, count) in blocks_of.into_iter().enumerate() {
        for n in 0..count {
            let stride = if stage > 0 && n == 0 { 2 } else { 1 };
            let (block, to) = Block::new(&(path / format!("block{stage}_{n}")), depth, maps, 64 << stage, stride);
            blocks.push(block);
            maps = to;
        }
    }
    let last = nn::linear(path / "fc", maps, classes, nn::LinearConfig::default());
    Box::new(nn::func_t(move |input, training| {
        let stem = stem.apply(input, training).relu().max_pool2d(&[3, 3], &[2, 2], &[1, 1], &[1, 1], false);
        let maps = blocks.iter().fold(stem, |maps, block| block.apply(&maps, training));
        last.forward(&maps.adaptive_avg_pool2d(&[1, 1]).flatten(1, -1))
    }))
}
