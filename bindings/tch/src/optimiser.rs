//! Optimisers over one flat tensor, the learning rate, and mixed precision: a few operations per step whatever the number of parameters, and state that can be saved.
//!
//! Owns the state (momentum, moments). Never reads a gradient it was not given.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind as Element, Tensor, no_grad};

use crate::ffi::{Autocast, add_scaled};

/// Which optimiser, with its constants.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum Rule {
    /// Stochastic gradient descent: `v = momentum v + g; p = p - lr v` (`p - lr (g + momentum v)` with Nesterov's), `g` with weight decay.
    Sgd {
        /// Share of the velocity kept, 0 to below 1.
        momentum: f64,
        /// L2 penalty.
        weight_decay: f64,
        /// Nesterov's variant.
        nesterov: bool,
    },
    /// Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, with an L2 penalty.
    Adam(Moments),
    /// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    Adamw(Moments),
}

/// The constants of Adam and AdamW.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Moments {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second.
    pub beta2: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// L2 penalty of Adam, decoupled decay of AdamW.
    pub weight_decay: f64,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

impl Default for Rule {
    fn default() -> Rule {
        Rule::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false }
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rule> {
        let mut words = text.split(',');
        let mut rule = match words.next() {
            Some("sgd") => Rule::default(),
            Some("adam") => Rule::Adam(Moments::default()),
            Some("adamw") => Rule::Adamw(Moments { weight_decay: 0.01, ..Moments::default() }),
            _ => {
                let unknown = Error::new(Kind::Usage, format!("unknown optimiser '{text}'"));
                return Err(unknown.with_hint("use sgd, adam or adamw"));
            }
        };
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = value.parse().ok().filter(|number: &f64| *number >= 0.0 && number.is_finite());
            let share = number.filter(|number| *number < 1.0);
            let taken = match (&mut rule, name) {
                (Rule::Sgd { momentum, .. }, "momentum") => share.map(|share| *momentum = share),
                (Rule::Sgd { nesterov, .. }, "nesterov") => value.parse().ok().map(|truth| *nesterov = truth),
                (Rule::Sgd { weight_decay, .. }, "weight_decay") => number.map(|number| *weight_decay = number),
                (Rule::Adam(moments) | Rule::Adamw(moments), _) => match name {
                    "beta1" => share.map(|share| moments.beta1 = share),
                    "beta2" => share.map(|share| moments.beta2 = share),
                    "epsilon" => number.map(|number| moments.epsilon = number),
                    "weight_decay" => number.map(|number| moments.weight_decay = number),
                    _ => None,
                },
                _ => None,
            };
            taken.ok_or_else(|| {
                Error::new(Kind::Usage, format!("'{word}' says nothing to the optimiser of '{text}'"))
                    .with_hint("sgd has momentum, weight_decay and nesterov; adam and adamw beta1, beta2, epsilon and weight_decay")
            })?;
        }
        Ok(rule)
    }
}

impl Rule {
    /// Names of the flat tensors its state consists of.
    pub(crate) fn slots(&self) -> &'static [&'static str] {
        match self {
            Rule::Sgd { .. } => &["momentum"],
            Rule::Adam(_) | Rule::Adamw(_) => &["moment1", "moment2"],
        }
    }
}

#[derive(Debug)]
pub(crate) struct Optimiser {
    rule: Rule,
    /// Longest gradient; 0 for any.
    clip_norm: f64,
    state: Vec<Tensor>,
    /// 1 where a parameter decays, else 0.
    decays: Tensor,
    steps: u64,
}

impl Optimiser {
    /// For parameters of this shape; the state is zero.
    pub(crate) fn new(rule: &Rule, clip_norm: f64, parameters: &Tensor, decays: Tensor) -> Optimiser {
        let state = rule.slots().iter().map(|_| parameters.zeros_like()).collect();
        Optimiser { rule: *rule, clip_norm, state, decays, steps: 0 }
    }

    /// Changes `parameters` along `gradients / divisor` with this learning rate, as torch's optimisers do, to the last bit for
    /// plain SGD. `gradients` are used up.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub(crate) fn step(
        &mut self,
        parameters: &mut Tensor,
        gradients: &mut Tensor,
        divisor: f64,
        rate: f64,
    ) -> Result<()> {
        self.steps += 1;
        no_grad(|| {
            if divisor != 1.0 {
                let _ = gradients.g_mul_scalar_(1.0 / divisor);
            }
            if self.clip_norm > 0.0 {
                // A tensor, not a number: reading it would make the host wait for the device.
                let shorter = (self.clip_norm / (gradients.norm() + 1e-6)).clamp_max(1.0);
                let _ = gradients.g_mul_(&shorter);
            }
            if let Rule::Sgd { weight_decay, .. } | Rule::Adam(Moments { weight_decay, .. }) = self.rule
                && weight_decay > 0.0
            {
                add_scaled(gradients, &(&*parameters * &self.decays), weight_decay)?;
            }
            match self.rule {
                Rule::Sgd { momentum, nesterov, .. } => {
                    let velocity = &mut self.state[0];
                    let _ = velocity.g_mul_scalar_(momentum);
                    let _ = velocity.g_add_(gradients);
                    if nesterov {
                        add_scaled(gradients, velocity, momentum)?;
                    }
                    add_scaled(parameters, if nesterov { gradients } else { velocity }, -rate)
                }
                Rule::Adam(moments) | Rule::Adamw(moments) => {
                    let Moments { beta1, beta2, epsilon, weight_decay } = moments;
                    let [first, second] = &mut self.state[..] else { unreachable!("two moments") };
                    let _ = first.lerp_(gradients, 1.0 - beta1);
                    let _ = second.g_mul_scalar_(beta2);
                    add_scaled(second, &(&*gradients * &*gradients), 1.0 - beta2)?;
                    let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
                    let (short1, short2) = (1.0 - beta1.powi(steps), 1.0 - beta2.powi(steps));
                    let spread = (&*second / short2).sqrt() + epsilon;
                    if matches!(self.rule, Rule::Adamw(_)) {
                        let shrunk = &*parameters * &self.decays;
                        add_scaled(parameters, &shrunk, -rate * weight_decay)?;
                    }
                    add_scaled(parameters, &(&*first / spread), -rate / short1)
                }
            }
        })
    }

    /// A copy on this device, with state of its own.
    pub(crate) fn copied_to(&self, device: tch::Device) -> Optimiser {
        let state = self.state.iter().map(|tensor| tensor.copy().to_device(device)).collect();
        let (rule, clip_norm, decays, steps) = (self.rule, self.clip_norm, self.decays.to_device(device), self.steps);
        Optimiser { rule, clip_norm, state, decays, steps }
    }

    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Goes on from so many steps, whose state is written into [`state`](Optimiser::state).
    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Its state: names and flat tensors.
    pub(crate) fn state(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        self.rule.slots().iter().copied().zip(&self.state)
    }
}

/// How the rate falls.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decay {
    /// It does not.
    Constant,
    /// Half a cosine, to zero.
    Cosine,
    /// A tenth at half and at three quarters of the work: the steps of He et al. (CVPR 2016) on CIFAR.
    Steps,
    /// From a 25th it rises by half a cosine over the warm-up (0.3 of the work unless given), and falls by another to almost nothing: one cycle
    /// of Smith and Topin ("Super-Convergence", 2018), the momentum as it is.
    OneCycle,
}

/// A schedule of the learning rate: a function of the share of the work done, so that it does not depend on the number of ranks, nor on what was
/// resumed.
#[derive(Args, Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Greatest learning rate, for the batch of all ranks together
    #[arg(long = "rate", value_name = "RATE", default_value_t = 0.05)]
    pub peak: f64,
    /// Share of the work over which the rate rises from zero
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// What comes after
    #[arg(long, value_enum, default_value_t = Decay::Constant)]
    pub decay: Decay,
}

/// Of one cycle: the share of the work over which it rises, and what the peak is divided by at both ends.
const RISING: f64 = 0.3;
const FIRST: f64 = 25.0;
const LAST: f64 = 250_000.0;

impl Rate {
    /// The rate when this share of the work is done, 0 to 1.
    pub(crate) fn at(&self, done: f64) -> f64 {
        let between = |from: f64, to: f64, share: f64| {
            to + (from - to) * 0.5 * (1.0 + (std::f64::consts::PI * share.min(1.0)).cos())
        };
        if self.decay == Decay::OneCycle {
            let rising = if self.warm_up > 0.0 { self.warm_up } else { RISING };
            return if done < rising {
                between(self.peak / FIRST, self.peak, done / rising)
            } else {
                between(self.peak, self.peak / LAST, (done - rising) / (1.0 - rising))
            };
        }
        if done < self.warm_up {
            return self.peak * (done / self.warm_up).max(1e-3);
        }
        let left = (done - self.warm_up) / (1.0 - self.warm_up);
        match self.decay {
            Decay::Constant | Decay::OneCycle => self.peak,
            Decay::Cosine => between(self.peak, 0.0, left),
            Decay::Steps if left < 0.5 => self.peak,
            Decay::Steps if left < 0.75 => self.peak * 0.1,
            Decay::Steps => self.peak * 0.01,
        }
    }
}

/// What forward and backward passes compute in. Parameters, gradients and sums stay in single precision.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// bfloat16 on GPUs from compute capability 8.0 on, single elsewhere.
    Auto,
    /// Single.
    Full,
    /// bfloat16: from compute capability 8.0 on, and on CPUs.
    Bf16,
    /// Half, with a scaled loss: from compute capability 7.0 on. A K80 has neither and stays with single.
    Half,
}

impl Precision {
    /// What it is on a device of this compute capability, or on the CPU.
    pub(crate) fn on(self, capability: Option<(u32, u32)>) -> Precision {
        match self {
            Precision::Auto if capability.is_some_and(|capability| capability >= (8, 0)) => Precision::Bf16,
            Precision::Auto => Precision::Full,
            asked => asked,
        }
    }

    /// Autocast for the pass that follows, as long as the guard lives.
    pub(crate) fn cast(self, device: Device) -> Result<Option<Autocast>> {
        let kind = match self {
            Precision::Auto | Precision::Full => return Ok(None),
            Precision::Bf16 => Element::BFloat16,
            Precision::Half => Element::Half,
        };
        Autocast::new(matches!(device, Device::Cuda(_)), kind).map(Some)
    }
}

/// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LossScale {
    scale: f64,
    good: u32,
    moves: bool,
}

/// Steps without an overflow after which the scale is doubled.
const GROW_AFTER: u32 = 2000;
const SCALE_FIRST: f64 = 65_536.0;
const SCALE_MAX: f64 = 16_777_216.0;

impl LossScale {
    /// As this precision needs it; `saved` from a checkpoint: the scale, and the steps since it changed.
    pub(crate) fn new(precision: Precision, saved: Option<(f64, u32)>) -> LossScale {
        let moves = precision == Precision::Half;
        let (scale, good) = saved.filter(|_| moves).unwrap_or((if moves { SCALE_FIRST } else { 1.0 }, 0));
        LossScale { scale, good, moves }
    }

    /// Steps since it changed.
    pub(crate) fn good(&self) -> u32 {
        self.good
    }

    /// The factor of the loss, by which gradients are divided.
    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// Whether gradients must be checked for overflow.
    pub(crate) fn moves(&self) -> bool {
        self.moves
    }

    /// After a step: were the summed gradients finite? They are the same on every rank, so is what follows.
    pub(crate) fn look(&mut self, finite: bool) {
        if !self.moves {
            return;
        }
        if !finite {
            (self.scale, self.good) = ((self.scale * 0.5).max(1.0), 0);
        } else {
            self.good += 1;
            if self.good >= GROW_AFTER {
                (self.scale, self.good) = ((self.scale * 2.0).min(SCALE_MAX), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn after(rule: Rule, gradients: &[f64], divisor: f64) -> f64 {
        after_clipped(rule, 0.0, gradients, divisor)
    }

    fn after_clipped(rule: Rule, clip_norm: f64, gradients: &[f64], divisor: f64) -> f64 {
        let mut parameter = Tensor::from_slice(&[1.0_f64]);
        let mut optimiser = Optimiser::new(&rule, clip_norm, &parameter, parameter.ones_like());
        for gradient in gradients {
            optimiser.step(&mut parameter, &mut Tensor::from_slice(&[*gradient]), divisor, 0.1).unwrap();
        }
        assert_eq!(optimiser.steps(), gradients.len() as u64);
        parameter.double_value(&[0])
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
    }

    #[test]
    fn descends_as_written() {
        near(after(Rule::Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false }, &[2.0], 4.0), 1.0 - 0.1 * 0.5);
        // v: 1, 1.9
        near(after(Rule::default(), &[1.0, 1.0], 1.0), 1.0 - 0.1 - 0.19);
        near(after(Rule::Sgd { momentum: 0.9, weight_decay: 0.5, nesterov: false }, &[1.0], 1.0), 1.0 - 0.15);
        near(after(Rule::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: true }, &[1.0], 1.0), 1.0 - 0.1 * 1.9);
        // The first step of Adam goes by the rate, whatever the gradient's size.
        let adam: Rule = "adamw".parse().unwrap();
        let found = after(adam, &[123.0], 1.0);
        assert!((found - (1.0 - 0.1 * 0.01 - 0.1)).abs() < 1e-6, "{found}");
        // Adam's penalty is part of the gradient: here it turns it.
        let found = after("adam,weight_decay=2".parse().unwrap(), &[-1.0], 1.0);
        assert!((found - (1.0 - 0.1)).abs() < 1e-6, "{found}");
        let plain = "sgd,momentum=0".parse().unwrap();
        let found = [3.0, 0.5].map(|length| after_clipped(plain, length, &[-4.0], 2.0));
        assert!((found[0] - 1.2).abs() < 1e-6 && (found[1] - 1.05).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn a_step_is_rounded_once_as_torchs_own_is() {
        let values = |by: f32| (1..1000).map(|n| (n as f32 * by).sin()).collect::<Vec<f32>>();
        let (before, gradients) = (values(1.3), values(0.7));
        let mut parameters = Tensor::from_slice(&before);
        let mut optimiser = Optimiser::new(&Rule::default(), 0.0, &parameters, parameters.ones_like());
        optimiser.step(&mut parameters, &mut Tensor::from_slice(&gradients), 1.0, 0.1).unwrap();
        let found = Vec::<f32>::try_from(&parameters).unwrap();
        let once = before.iter().zip(&gradients).map(|(p, g)| g.mul_add(-0.1, *p));
        assert!(once.eq(found.iter().copied()));
        assert!(before.iter().zip(&gradients).zip(&found).any(|((p, g), found)| p - g * 0.1 != *found));
    }

    #[test]
    fn its_parameters_are_read_behind_its_name() {
        let rule = |text: &str| text.parse::<Rule>();
        let sgd = Rule::Sgd { momentum: 0.8, weight_decay: 5e-4, nesterov: true };
        assert_eq!(rule("sgd,nesterov=true,momentum=0.8,weight_decay=5e-4").unwrap(), sgd);
        let adamw = Rule::Adamw(Moments { beta1: 0.9, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.1 });
        assert_eq!(rule("adamw,beta2=0.95,epsilon=1e-6,weight_decay=0.1").unwrap(), adamw);
        // As checkpoints have it.
        let json = json!({ "name": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1 });
        assert_eq!(serde_json::to_value(adamw).unwrap(), json);
        assert_eq!(serde_json::from_value::<Rule>(json).unwrap(), adamw);
        for bad in ["lion", "sgd,beta1=0.9", "sgd,momentum=1", "adam,weight_decay=-1", "adamw,beta1", "sgd,nesterov=1"]
        {
            assert_eq!(rule(bad).unwrap_err().kind(), Kind::Usage, "{bad}");
        }
    }

    #[test]
    fn rises_then_falls() {
        let rate = |decay| Rate { peak: 0.4, warm_up: 0.2, decay };
        assert!((rate(Decay::Cosine).at(0.1) - 0.2).abs() < 1e-12);
        assert!(rate(Decay::Cosine).at(0.0) > 0.0);
        assert!((rate(Decay::Cosine).at(0.6) - 0.2).abs() < 1e-12);
        assert!(rate(Decay::Cosine).at(1.0).abs() < 1e-12);
        assert!((rate(Decay::Constant).at(0.9) - 0.4).abs() < 1e-12);
        assert!((rate(Decay::Steps).at(0.7) - 0.04).abs() < 1e-12);
        // As PyTorch's OneCycleLR with its defaults.
        let cycle = Rate { peak: 0.4, warm_up: 0.0, decay: Decay::OneCycle };
        for (done, expected) in [(0.0, 0.016), (0.15, 0.208), (0.3, 0.4), (0.65, 0.200_000_8), (1.0, 1.6e-6)] {
            assert!((cycle.at(done) - expected).abs() < 1e-9, "{done}: {}", cycle.at(done));
        }
    }

    #[test]
    fn the_scale_falls_at_once_and_rises_slowly() {
        let mut scale = LossScale::new(Precision::Half, Some((8.0, 0)));
        scale.look(false);
        assert_eq!(scale.scale(), 4.0);
        (0..GROW_AFTER).for_each(|_| scale.look(true));
        assert_eq!(scale.scale(), 8.0);
        let mut resumed = LossScale::new(Precision::Half, Some((8.0, GROW_AFTER - 1)));
        resumed.look(true);
        assert_eq!((resumed.scale(), resumed.good()), (16.0, 0));
        let on = |capability| Precision::Auto.on(capability);
        assert_eq!([None, Some((3, 7)), Some((7, 5))].map(on), [Precision::Full; 3]);
        assert_eq!([Some((8, 0)), Some((9, 0))].map(on), [Precision::Bf16; 2]);
        assert_eq!(Precision::Full.on(Some((9, 0))), Precision::Full);
        let mut fixed = LossScale::new(Precision::Bf16, Some((8.0, 0)));
        fixed.look(false);
        assert_eq!(fixed.scale(), 1.0);
    }
}
