//! Builds a task from the name of a model.

use super::Arguments;
use clap::ValueEnum;
use fuelrail::{Config, Error, Kind, Result};
use fuelrail_tch::models::{Depth, TransformerConfig, lenet, resnet, transformer};
use fuelrail_tch::{Classifier, LanguageModel, Task};
use tch::Device;
use tch::nn::VarStore;

/// The usual means and deviations of ImageNet's pictures.
const PHOTO_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const PHOTO_SPREAD: [f64; 3] = [0.229, 0.224, 0.225];

/// Makes the model's variables in `variables`. `classes`: how many the data set has.
pub(crate) fn task(
    arguments: &Arguments,
    config: &Config,
    classes: usize,
    variables: &VarStore,
) -> Result<Box<dyn Task>> {
    let (root, device) = (variables.root(), variables.device());
    if arguments.model == "transformer" {
        return language(arguments, variables, device);
    }
    let decode = config.decoded().ok_or_else(|| {
        Error::new(Kind::Usage, format!("{} needs pictures", arguments.model))
            .with_hint("add --decode HEIGHTxWIDTHxCHANNELS")
    })?;
    let channels = i64::from(decode.channels);
    let classes = i64::try_from(classes).unwrap_or(i64::MAX);
    if classes < 2 {
        return Err(Error::new(Kind::Usage, format!("the samples are of {classes} classes"))
            .with_hint("give a prefix whose folders are the classes"));
    }
    let model = match arguments.model.as_str() {
        "lenet" => lenet(&root, channels, classes),
        name => resnet(&root, Depth::from_str(name, false).map_err(|_| unknown(name))?, classes),
    };
    let (mean, spread) = if channels == 3 { (&PHOTO_MEAN[..], &PHOTO_SPREAD[..]) } else { (&[0.5][..], &[0.5][..]) };
    Ok(Box::new(Classifier::new(model, mean, spread, device)))
}

fn language(arguments: &Arguments, variables: &VarStore, device: Device) -> Result<Box<dyn Task>> {
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
