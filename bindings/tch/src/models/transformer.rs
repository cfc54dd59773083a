//! A small decoder-only transformer (Vaswani et al., "Attention Is All You Need", NIPS 2017; normalised before each part, as GPT-2).

use tch::nn::{self, Module, ModuleT, Path};
use tch::{Kind as Element, Tensor};

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

/// `[n, tokens]` of `i64` to `[n, tokens, vocabulary]`; no token sees a later one.
#[must_use]
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
