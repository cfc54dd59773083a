//! Tasks: from a batch to one loss per sample.

use crate::feed::TensorBatch;
use crate::ffi::moved;
use fuelrail_base::{Error, Kind, Result};
use tch::nn::ModuleT;
use tch::{Device, Kind as Element, Tensor};

/// The model's results for a batch.
#[derive(Debug)]
pub struct Judged {
    /// One loss per sample, `[n]`, float, with its graph.
    pub losses: Tensor,
    /// How many answers were right, of how many asked: samples for pictures, tokens for text.
    pub right: Tensor,
    /// For how many samples the right answer is among the five best; none where it is not asked.
    pub near: Option<Tensor>,
    /// Answers asked of one sample.
    pub answers: f64,
}

/// A training task. The same on every rank.
pub trait Task {
    /// Computes losses of a batch that is not empty. `training` enables what only training has (dropout, batch statistics).
    ///
    /// # Errors
    /// `Usage` when the batch does not fit the model.
    fn judge(&self, batch: &TensorBatch, training: bool) -> Result<Judged>;

    /// Whether it goes by labels: then what it is judged by must be of the classes that it is trained with.
    fn needs_labels(&self) -> bool {
        true
    }
}

/// Among how many answers the right one counts as near.
const NEAR: i64 = 5;

/// Pictures into classes: cross-entropy.
pub struct Classifier {
    model: Box<dyn ModuleT>,
    mean: Tensor,
    spread: Tensor,
    label_smoothing: f64,
    channels_last: bool,
    device: Device,
}

impl Classifier {
    /// `model` takes `[n, channels, height, width]` and gives `[n, classes]`. `mean` and `spread` per channel, of pixels between 0 and 1.
    pub fn new(model: Box<dyn ModuleT>, mean: &[f64], spread: &[f64], device: Device) -> Classifier {
        let row =
            |values: &[f64]| Tensor::from_slice(values).to_kind(Element::Float).to_device(device).view([1, -1, 1, 1]);
        Classifier { model, mean: row(mean), spread: row(spread), label_smoothing: 0.0, channels_last: false, device }
    }

    /// A share of each sample's loss that is the mean over all classes, 0 to 1 (Szegedy et al., "Rethinking the Inception Architecture for
    /// Computer Vision", CVPR 2016). For training only.
    #[must_use]
    pub fn label_smoothing(mut self, share: f64) -> Classifier {
        self.label_smoothing = share;
        self
    }

    /// Leaves pictures as they are decoded, with their channels last in memory, where GPUs compute fastest with them. The shape is the same.
    #[must_use]
    pub fn channels_last(mut self, last: bool) -> Classifier {
        self.channels_last = last;
        self
    }
}

impl Task for Classifier {
    fn judge(&self, batch: &TensorBatch, training: bool) -> Result<Judged> {
        if batch.bytes.dim() != 4 {
            return Err(Error::new(
                Kind::Usage,
                "a classifier needs pictures, and the batch has bytes as the bucket has them",
            )
            .with_hint("say how to decode them: --decode HEIGHTxWIDTHxCHANNELS"));
        }
        if batch.bytes.kind() != Element::Uint8 {
            return Err(Error::new(
                Kind::Usage,
                "a classifier normalises pixels itself, and the batch has other numbers",
            )
            .with_hint("leave decode_dtype at u8"));
        }
        let pixels = batch.bytes.to_device(self.device).permute(&[0, 3, 1, 2]).to_kind(Element::Float);
        let input = (pixels / 255.0 - &self.mean) / &self.spread;
        let input = if self.channels_last { input } else { input.contiguous() };
        let scores = self.model.forward_t(&input, training).to_kind(Element::Float);
        check_labels(batch, scores.size()[1])?;
        let labels = moved(&batch.labels, self.device)?;
        let likelihoods = scores.log_softmax(-1, Element::Float);
        let mut losses = -likelihoods.gather(1, &labels.unsqueeze(1), false).squeeze_dim(1);
        if training && self.label_smoothing > 0.0 {
            let mean = -likelihoods.mean_dim(Some([1_i64].as_slice()), false, Element::Float);
            losses = losses * (1.0 - self.label_smoothing) + mean * self.label_smoothing;
        }
        let right = scores.argmax(-1, false).eq_tensor(&labels).sum(Element::Float);
        let classes = scores.size()[1];
        let near = (!training && classes > NEAR).then(|| {
            let best = scores.topk(NEAR, 1, true, false).1;
            best.eq_tensor(&labels.unsqueeze(1)).sum(Element::Float)
        });
        Ok(Judged { losses, right, near, answers: 1.0 })
    }
}

/// Every sample has a label that the model knows. Looks at them in the host's memory: no device is waited for.
fn check_labels(batch: &TensorBatch, classes: i64) -> Result<()> {
    let labels = &batch.labels_here;
    let wrong = labels.lt(0).logical_or(&labels.ge(classes)).nonzero();
    if wrong.size()[0] == 0 {
        return Ok(());
    }
    let at = wrong.int64_value(&[0, 0]);
    let (id, label) = (batch.ids[at as usize].0, labels.int64_value(&[at]));
    let (cause, hint) = if label < 0 {
        (format!("sample {id} has no label"), "put each sample in the folder of its class, or name a label_field")
    } else {
        (format!("sample {id} has label {label}, and the model {classes} classes"), "make a model of all classes")
    };
    Err(Error::new(Kind::Usage, cause).with_hint(hint))
}

/// Little-endian `u16` tokens, the next from those before: cross-entropy per token.
pub struct LanguageModel {
    model: Box<dyn ModuleT>,
    /// Tokens of one sample, the last of which is only a target.
    pub tokens: usize,
    /// Tokens known to the model; greater ones are folded into them.
    pub vocabulary: i64,
    device: Device,
}

impl LanguageModel {
    /// `model` takes `[n, tokens - 1]` of `i64` and gives `[n, tokens - 1, vocabulary]`.
    pub fn new(model: Box<dyn ModuleT>, tokens: usize, vocabulary: i64, device: Device) -> LanguageModel {
        LanguageModel { model, tokens, vocabulary, device }
    }
}

impl Task for LanguageModel {
    fn needs_labels(&self) -> bool {
        false
    }

    fn judge(&self, batch: &TensorBatch, training: bool) -> Result<Judged> {
        let rows = batch.rows(self.tokens * 2).ok_or_else(|| {
            let cause = format!("a sample is not {} tokens of two bytes", self.tokens);
            Error::new(Kind::Usage, cause).with_hint("every object must hold one sequence: --tokens says how long")
        })?;
        let halves = rows.to_device(self.device).to_kind(Element::Int64).view([batch.len() as i64, -1, 2]);
        let tokens = (halves.select(2, 0) + halves.select(2, 1) * 256).remainder(self.vocabulary);
        let (known, asked) = (tokens.narrow(1, 0, self.tokens as i64 - 1), tokens.narrow(1, 1, self.tokens as i64 - 1));
        let scores = self.model.forward_t(&known, training).to_kind(Element::Float);
        let losses = -scores.log_softmax(-1, Element::Float).gather(2, &asked.unsqueeze(2), false).squeeze_dim(2);
        let right = scores.argmax(-1, false).eq_tensor(&asked).sum(Element::Float);
        let answers = (self.tokens - 1) as f64;
        let losses = losses.mean_dim(Some([1_i64].as_slice()), false, Element::Float);
        Ok(Judged { losses, right, near: None, answers })
    }
}
