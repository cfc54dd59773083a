//! `fuelrail-train`: trains a model from a bucket, alone or as one rank of many. `fuelrail train` runs this.

#![forbid(unsafe_code)]

use clap::{Args, ValueEnum};
use fuelrail::{Error, Kind, Result};
use fuelrail_tch::models::{Depth, TransformerConfig, lenet, resnet, transformer};
use fuelrail_tch::{Classifier, Facts, LanguageModel, Task, run_with};
use std::process::ExitCode;
use tch::Device;
use tch::nn::VarStore;

/// Trains a model from a bucket, on one rank or many.
///
/// Ranks find each other as everywhere: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, set by hand or by torchrun. Those of a
/// machine share its memory and cores by LOCAL_WORLD_SIZE.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  fuelrail-train --model lenet http://127.0.0.1:9000/digits/training/ --decode 28x28x1 --epochs 3\n  \
                  torchrun --no-python --nproc-per-node 2 --max-restarts 3 fuelrail-train --model resnet18 http://HOST/photos/train/ \\\n    \
                  --decode 224x224x3 --set decode_fit=random-crop --checkpoint /data/run1 --checkpoint-every 500"
)]
struct Model {
    /// What to train: lenet, resnet18, resnet50 or transformer
    #[arg(long, default_value = "lenet")]
    model: String,
    /// Share of a picture's loss that is the mean over all classes
    #[arg(long, default_value_t = 0.0)]
    label_smoothing: f64,
    /// Pictures with their channels last, as bfloat16 and half precision are fastest on GPUs; without, on GPUs only
    #[arg(long, value_name = "true|false")]
    channels_last: Option<bool>,
    /// Tokens of one sample (transformer)
    #[arg(long, default_value_t = 129)]
    tokens: usize,
    /// Tokens the transformer knows; greater ones are folded into them
    #[arg(long, default_value_t = 50_257)]
    vocabulary: i64,
    /// Width, heads and layers of the transformer
    #[arg(long, default_value = "128,4,4", value_delimiter = ',')]
    transformer: Vec<i64>,
}

fn main() -> ExitCode {
    run_with(std::env::args_os(), task)
}

/// The usual means and deviations of ImageNet's pictures.
const PHOTO_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const PHOTO_SPREAD: [f64; 3] = [0.229, 0.224, 0.225];

/// Makes the model's variables in `variables`.
fn task(variables: &VarStore, facts: &Facts<'_>, arguments: &Model) -> Result<Box<dyn Task>> {
    let (root, device) = (variables.root(), facts.device);
    if arguments.model == "transformer" {
        return language(arguments, variables, device);
    }
    let decode = facts.decode.ok_or_else(|| {
        Error::new(Kind::Usage, format!("{} needs pictures", arguments.model))
            .with_hint("add --decode HEIGHTxWIDTHxCHANNELS")
    })?;
    if (decode.dtype, decode.layout) != Default::default() {
        let cause = "decode_dtype or decode_layout is set, and the models here take bytes of rows";
        return Err(Error::new(Kind::Usage, cause).with_hint("leave them out: the training normalises by itself"));
    }
    if !(0.0..1.0).contains(&arguments.label_smoothing) {
        let cause = format!("label_smoothing is {}", arguments.label_smoothing);
        return Err(Error::new(Kind::Usage, cause).with_hint("give a share, 0 to below 1"));
    }
    let channels = i64::from(decode.channels);
    let classes = facts.classes.len() as i64;
    if classes < 2 {
        return Err(Error::new(Kind::Usage, format!("the samples are of {classes} classes"))
            .with_hint("give a prefix whose folders are the classes"));
    }
    let model = match arguments.model.as_str() {
        "lenet" => lenet(&root, channels, classes),
        name => resnet(&root, Depth::from_str(name, false).map_err(|_| unknown(name))?, classes),
    };
    let (mean, spread) = if channels == 3 { (&PHOTO_MEAN[..], &PHOTO_SPREAD[..]) } else { (&[0.5][..], &[0.5][..]) };
    let task = Classifier::new(model, mean, spread, device).label_smoothing(arguments.label_smoothing);
    Ok(Box::new(task.channels_last(arguments.channels_last.unwrap_or(device != Device::Cpu))))
}

fn language(arguments: &Model, variables: &VarStore, device: Device) -> Result<Box<dyn Task>> {
    let [width, heads, layers] = arguments.transformer[..] else {
        return Err(Error::new(Kind::Usage, "--transformer takes three numbers").with_hint("write WIDTH,HEADS,LAYERS"));
    };
    if arguments.tokens < 2 || heads < 1 || width % heads != 0 || arguments.vocabulary < 2 {
        return Err(Error::new(
            Kind::Usage,
            "a transformer needs at least two tokens, and heads that divide its width",
        )
        .with_hint("look at --tokens, --vocabulary and --transformer"));
    }
    let (tokens, vocabulary) = (arguments.tokens as i64, arguments.vocabulary);
    let config = TransformerConfig { vocabulary, tokens, width, heads, layers: layers.max(1) as usize };
    let model = transformer(&variables.root(), config);
    Ok(Box::new(LanguageModel::new(model, arguments.tokens, vocabulary, device)))
}

fn unknown(name: &str) -> Error {
    Error::new(Kind::Usage, format!("unknown model '{name}'")).with_hint("use lenet, resnet18, resnet50 or transformer")
}
