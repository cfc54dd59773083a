//! Checkpoints: everything a run needs to go on, in one file that other tools can read (safetensors), with a hash over its tensors.
//!
//! Names: `model.<variable>`, `average.<variable>`, `optimiser.<slot>.<variable>`, `random.<device>.<rank>`, `loader.scores`. What is not a tensor is JSON in the header, under
//! `fuelrail`. Owns the format; where checkpoints lie is `vault`'s.

mod vault;

pub use vault::Vault;
pub(crate) use vault::{Found, Writer, Written};

use crate::ffi::{bytes_of, tensor_of_bytes};
use crate::optimiser::Rule;
use crate::switch::Mode;
use fuelrail::State;
use fuelrail_base::{Error, Kind, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use tch::{Kind as Element, Tensor};
use xxhash_rust::xxh3::Xxh3;

const VERSION: u32 = 1;
/// The key of our JSON in the header.
const ABOUT: &str = "fuelrail";

/// The metadata of a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Format version.
    pub version: u32,
    /// Optimiser steps done.
    pub step: u64,
    /// Samples trained on by all ranks.
    pub samples: u64,
    /// Of them, those of synchronous steps; without, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronous: Option<u64>,
    /// The order's position.
    pub order: State,
    /// Synchronous or asynchronous, when it was saved.
    pub mode: Mode,
    /// The optimiser and its constants.
    pub rule: Rule,
    /// Steps of its state.
    pub rule_steps: u64,
    /// Scale of the loss under half precision.
    pub loss_scale: f64,
    /// Steps since that scale changed.
    #[serde(default)]
    pub scale_steps: u32,
    /// Ranks of the run that saved it. Any number can resume.
    pub world: usize,
    /// Seed of the run.
    pub seed: u64,
    /// The accuracy on what it is evaluated with, of the best one of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The libtorch that saved it.
    pub torch: String,
    /// XXH3 of all tensors' bytes, in order of name.
    pub hash: String,
}

impl About {
    /// Metadata of a run at `order`; the caller fills in the counts.
    pub fn of(order: State, rule: Rule) -> About {
        About {
            version: VERSION,
            step: 0,
            samples: 0,
            synchronous: None,
            seed: order.seed,
            order,
            mode: Mode::Synchronous,
            rule,
            rule_steps: 0,
            loss_scale: 1.0,
            scale_steps: 0,
            world: 1,
            accuracy: None,
            torch: crate::ffi::torch_version(),
            hash: String::new(),
        }
    }
}

/// A checkpoint in memory.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its metadata.
    pub about: About,
    /// Its tensors by name, in the host's memory.
    pub tensors: BTreeMap<String, Tensor>,
}

/// Element types of state, as torch and as the format name them.
const KINDS: [(Element, Dtype); 6] = [
    (Element::Float, Dtype::F32),
    (Element::Double, Dtype::F64),
    (Element::Half, Dtype::F16),
    (Element::BFloat16, Dtype::BF16),
    (Element::Int64, Dtype::I64),
    (Element::Uint8, Dtype::U8),
];

/// A tensor as the format has it: kind, sizes, bytes.
fn packed(name: &str, tensor: &Tensor) -> Result<(Dtype, Vec<usize>, Vec<u8>)> {
    let Some((_, kind)) = KINDS.into_iter().find(|(element, _)| *element == tensor.kind()) else {
        return Err(Error::new(Kind::Usage, format!("'{name}' has elements of {:?}", tensor.kind()))
            .with_hint("keep model state in floats, i64 or u8"));
    };
    Ok((kind, tensor.size().iter().map(|&n| n as usize).collect(), bytes_of(tensor)?))
}

fn broken(why: impl Into<String>) -> Error {
    Error::new(Kind::File, why).with_hint("it is truncated or corrupted: use an earlier checkpoint")
}

impl Checkpoint {
    /// Encodes it.
    ///
    /// # Errors
    /// `Usage` when a tensor is of a kind that has no name in the format.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let all = self.tensors.iter().map(|(name, tensor)| Ok((name, packed(name, tensor)?)));
        let all = all.collect::<Result<Vec<_>>>()?;
        let mut hash = Xxh3::new();
        all.iter().for_each(|(_, (.., bytes))| hash.update(bytes));
        let about = About { hash: format!("{:016x}", hash.digest()), ..self.about.clone() };
        let unwritable = |why: String| Error::new(Kind::Usage, format!("cannot write the checkpoint: {why}"));
        let about = serde_json::to_string(&about).map_err(|e| unwritable(e.to_string()))?;
        let views = all
            .iter()
            .map(|(name, (kind, sizes, bytes))| TensorView::new(*kind, sizes.clone(), bytes).map(|view| (*name, view)));
        let views: Vec<_> = views.collect::<Result<_, _>>().map_err(|e| unwritable(e.to_string()))?;
        safetensors::serialize(views, Some(HashMap::from([(ABOUT.to_owned(), about)])))
            .map_err(|e| unwritable(e.to_string()))
    }

    /// Decodes it and checks every byte of its tensors.
    ///
    /// # Errors
    /// `File` when it is truncated, changed, or not a fuelrail checkpoint; `Usage` for another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Checkpoint> {
        let (about, read) = Checkpoint::checked(bytes)?;
        let mut tensors = BTreeMap::new();
        for (name, view) in read.tensors() {
            let Some((kind, _)) = KINDS.into_iter().find(|(_, dtype)| *dtype == view.dtype()) else {
                return Err(broken(format!("'{name}' has elements of {:?}", view.dtype())));
            };
            let sizes: Vec<i64> = view.shape().iter().map(|&n| n as i64).collect();
            tensors.insert(name, tensor_of_bytes(view.data().to_vec(), &sizes, kind)?);
        }
        Ok(Checkpoint { about, tensors })
    }

    /// Checks every byte of its tensors without making tensors.
    ///
    /// # Errors
    /// As [`from_bytes`](Checkpoint::from_bytes).
    pub fn check(bytes: &[u8]) -> Result<()> {
        Checkpoint::checked(bytes).map(drop)
    }

    fn checked(bytes: &[u8]) -> Result<(About, SafeTensors<'_>)> {
        let about = Checkpoint::about(bytes)?;
        let read = SafeTensors::deserialize(bytes).map_err(|e| broken(format!("not a checkpoint: {e}")))?;
        let mut views: Vec<_> = read.tensors();
        views.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut hash = Xxh3::new();
        views.iter().for_each(|(_, view)| hash.update(view.data()));
        if format!("{:016x}", hash.digest()) != about.hash {
            return Err(broken("the checkpoint's bytes do not have the hash it was written with"));
        }
        Ok((about, read))
    }

    /// Reads its metadata, and checks nothing else.
    ///
    /// # Errors
    /// As [`from_bytes`](Checkpoint::from_bytes).
    pub fn about(bytes: &[u8]) -> Result<About> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| broken(format!("not a checkpoint: {e}")))?;
        let text = header.metadata().as_ref().and_then(|entries| entries.get(ABOUT));
        let text = text.ok_or_else(|| broken("not a fuelrail checkpoint: its header has no 'fuelrail' entry"))?;
        let about: About = serde_json::from_str(text).map_err(|e| broken(format!("the checkpoint's header: {e}")))?;
        if about.version != VERSION {
            return Err(Error::new(Kind::Usage, format!("a checkpoint of version {}", about.version))
                .with_hint(format!("this build reads version {VERSION}")));
        }
        Ok(about)
    }

    /// A tensor that must be there.
    ///
    /// # Errors
    /// `Usage` naming it, when the model is another one.
    pub fn tensor(&self, name: &str, sizes: &[i64]) -> Result<&Tensor> {
        let other_model = |what: String| {
            Error::new(Kind::Usage, what).with_hint("resume with the model, and its options, that saved the checkpoint")
        };
        let tensor = self.tensors.get(name).ok_or_else(|| other_model(format!("the checkpoint has no '{name}'")))?;
        if tensor.size() != sizes {
            let what =
                format!("'{name}' has the shape {:?} in the checkpoint and {sizes:?} in the model", tensor.size());
            return Err(other_model(what));
        }
        Ok(tensor)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tch::Device;

    pub(crate) fn sample(step: u64) -> Checkpoint {
        let order = r#"{"version":1,"seed":7,"shuffle":true,"samples":100,"listing":"ab","epoch":1,"position":32}"#;
        let order = State::from_json(order).unwrap();
        tch::manual_seed(step as i64);
        let tensors = [
            ("model.fc.weight", Tensor::randn(&[3, 5], (Element::Float, Device::Cpu))),
            ("model.steps", Tensor::arange(4, (Element::Int64, Device::Cpu))),
            ("optimiser.momentum.fc.weight", Tensor::rand(&[3, 5], (Element::Double, Device::Cpu))),
            ("random.cpu.0", Tensor::arange(16, (Element::Uint8, Device::Cpu))),
            ("scalar", Tensor::from(2.5_f32)),
            ("nothing", Tensor::zeros(&[0, 3], (Element::Float, Device::Cpu))),
        ];
        Checkpoint {
            about: About { step, samples: 32 * step, ..About::of(order, Rule::default()) },
            tensors: tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect(),
        }
    }

    #[test]
    fn comes_back_bit_by_bit() {
        let saved = sample(3);
        let read = Checkpoint::from_bytes(&saved.to_bytes().unwrap()).unwrap();
        assert_eq!(read.about, About { hash: read.about.hash.clone(), ..saved.about });
        assert_eq!(read.tensors.keys().collect::<Vec<_>>(), saved.tensors.keys().collect::<Vec<_>>());
        for (name, tensor) in &saved.tensors {
            let again = &read.tensors[name];
            assert!(again.kind() == tensor.kind() && again.size() == tensor.size() && again == tensor, "{name}");
        }
        read.tensor("model.fc.weight", &[3, 5]).unwrap();
        for (name, sizes) in [("model.fc.weight", &[5_i64, 3][..]), ("model.other", &[1])] {
            assert!(read.tensor(name, sizes).unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn every_torn_end_and_every_changed_byte_is_found() {
        let bytes = sample(3).to_bytes().unwrap();
        for end in (0..bytes.len()).step_by(7) {
            Checkpoint::from_bytes(&bytes[..end]).unwrap_err();
        }
        let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        for at in (header..bytes.len()).step_by(3) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_eq!(Checkpoint::from_bytes(&changed).unwrap_err().kind(), Kind::File, "byte {at}");
        }
        // A header that promises the world allocates nothing for it.
        let mut lying = bytes.clone();
        lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        Checkpoint::from_bytes(&lying).unwrap_err();
    }

    #[test]
    fn others_files_are_told_apart() {
        let foreign = TensorView::new(Dtype::U8, vec![1], &[1]).unwrap();
        let foreign = safetensors::serialize([("x", foreign)], None).unwrap();
        assert!(Checkpoint::from_bytes(&foreign).unwrap_err().to_string().contains("not a fuelrail checkpoint"));
        let mut newer = sample(1);
        newer.about.version = 9;
        assert_eq!(Checkpoint::from_bytes(&newer.to_bytes().unwrap()).unwrap_err().kind(), Kind::Usage);
    }
}
