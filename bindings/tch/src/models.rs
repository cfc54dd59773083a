//! Models to train with: LeNet for digits, ResNet for photos, a small transformer for tokens.

use clap::ValueEnum;
use tch::nn::{self, Module, ModuleT, Path};
use tch::vision::resnet::{resnet18, resnet50};
use tch::{Kind as Element, Tensor};

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
pub fn resnet(path: &Path<'_>, depth: Depth, classes: i64) -> Box<dyn ModuleT> {
    let model: Box<dyn ModuleT> = match depth {
        Depth::Resnet18 => Box::new(resnet18(path, classes)),
        Depth::Resnet50 => Box::new(resnet50(path, classes)),
    };
    Box::new(nn::func_t(move |input, training| model.forward_t(&input.expand(&[-1, 3, -1, -1], false), training)))
}

/// A network like LeNet-5 (LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 1998):
/// `[n, channels, 28, 28]` to `[n, classes]`, with rectifiers and maxima instead of the published sigmoids and means.
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

/// Sizes of the transformer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransformerConfig {
    /// Tokens it knows.
    pub vocabulary: i64,
    /// Longest sequence.
    pub tokens: i64,
    /// Width of a token's vector.
    pub width: i64,
    /// Heads; they divide the width.
    pub heads: i64,
    /// Layers.
    pub layers: usize,
}

#[derive(Debug)]
struct Layer {
    before_attention: nn::LayerNorm,
    mixed: nn::Linear,
    out: nn::Linear,
    before_feed: nn::LayerNorm,
    wide: nn::Linear,
    narrow: nn::Linear,
    heads: i64,
}

impl Layer {
    fn new(path: &Path<'_>, config: &TransformerConfig) -> Layer {
        let (width, linear) = (config.width, nn::LinearConfig::default());
        Layer {
            before_attention: nn::layer_norm(path / "norm1", vec![width], nn::LayerNormConfig::default()),
            mixed: nn::linear(path / "qkv", width, 3 * width, linear),
            out: nn::linear(path / "out", width, width, linear),
            before_feed: nn::layer_norm(path / "norm2", vec![width], nn::LayerNormConfig::default()),
            wide: nn::linear(path / "wide", width, 4 * width, linear),
            narrow: nn::linear(path / "narrow", 4 * width, width, linear),
            heads: config.heads,
        }
    }

    fn attend(&self, input: &Tensor, unseen: &Tensor) -> Tensor {
        let size = input.size();
        let (n, tokens, width) = (size[0], size[1], size[2]);
        let each = width / self.heads;
        let parts = self.mixed.forward(input).view([n, tokens, 3, self.heads, each]).permute(&[2, 0, 3, 1, 4]);
        let (query, key, value) = (parts.get(0), parts.get(1), parts.get(2));
        let scores = query.matmul(&key.transpose(-2, -1)) / (each as f64).sqrt();
        let scores = scores.masked_fill(unseen, f64::NEG_INFINITY).softmax(-1, Element::Float);
        self.out.forward(&scores.to_kind(value.kind()).matmul(&value).transpose(1, 2).reshape(&[n, tokens, width]))
    }

    fn apply(&self, input: &Tensor, unseen: &Tensor) -> Tensor {
        let input = input + self.attend(&self.before_attention.forward(input), unseen);
        let fed = self.narrow.forward(&self.wide.forward(&self.before_feed.forward(&input)).gelu("none"));
        input + fed
    }
}

/// A small decoder-only transformer (Vaswani et al., "Attention Is All You Need", NIPS 2017; normalised before each part, as GPT-2):
/// `[n, tokens]` of `i64` to `[n, tokens, vocabulary]`; no token sees a later one.
pub fn transformer(path: &Path<'_>, config: TransformerConfig) -> Box<dyn ModuleT> {
    let embedding = nn::EmbeddingConfig::default();
    let words = nn::embedding(path / "words", config.vocabulary, config.width, embedding);
    let places = nn::embedding(path / "places", config.tokens, config.width, embedding);
    let layers: Vec<Layer> = (0..config.layers).map(|n| Layer::new(&(path / format!("layer{n}")), &config)).collect();
    let norm = nn::layer_norm(path / "norm", vec![config.width], nn::LayerNormConfig::default());
    let last = nn::linear(path / "last", config.width, config.vocabulary, nn::LinearConfig::default());
    Box::new(nn::func_t(move |input, _| {
        let tokens = input.size()[1];
        let at = Tensor::arange(tokens, (Element::Int64, input.device()));
        let unseen = Tensor::ones(&[tokens, tokens], (Element::Bool, input.device())).triu(1);
        let embedded = words.forward(input) + places.forward(&at);
        let hidden = layers.iter().fold(embedded, |hidden, layer| layer.apply(&hidden, &unseen));
        last.forward(&norm.forward(&hidden))
    }))
}
