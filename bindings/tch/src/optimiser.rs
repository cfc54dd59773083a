//! Optimisers over one flat tensor: a few operations per step whatever the number of parameters, and state that can be saved.
//!
//! Owns the state (momentum, moments). Never reads a gradient it was not given.

use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use tch::{Tensor, no_grad};

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
    /// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    Adamw {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second.
        beta2: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
        /// Decoupled weight decay.
        weight_decay: f64,
    },
}

impl Default for Rule {
    fn default() -> Rule {
        Rule::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false }
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rule> {
        match text {
            "sgd" => Ok(Rule::default()),
            "adamw" => Ok(Rule::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }),
            _ => Err(Error::new(Kind::Usage, format!("unknown optimiser '{text}'")).with_hint("use sgd or adamw")),
        }
    }
}

impl Rule {
    /// Names of the flat tensors its state consists of.
    pub(crate) fn slots(&self) -> &'static [&'static str] {
        match self {
            Rule::Sgd { .. } => &["momentum"],
            Rule::Adamw { .. } => &["moment1", "moment2"],
        }
    }
}

/// An optimiser and its state.
#[derive(Debug)]
pub(crate) struct Optimiser {
    rule: Rule,
    state: Vec<Tensor>,
    steps: u64,
}

impl Optimiser {
    /// For parameters of this shape; the state is zero.
    pub(crate) fn new(rule: Rule, parameters: &Tensor) -> Optimiser {
        let state = rule.slots().iter().map(|_| parameters.zeros_like()).collect();
        Optimiser { rule, state, steps: 0 }
    }

    /// Changes `parameters` along `gradients / divisor` with this learning rate. `gradients` are used up.
    pub(crate) fn step(&mut self, parameters: &mut Tensor, gradients: &mut Tensor, divisor: f64, rate: f64) {
        self.steps += 1;
        no_grad(|| {
            let _ = gradients.g_mul_scalar_(1.0 / divisor);
            match self.rule {
                Rule::Sgd { momentum, weight_decay, nesterov } => {
                    if weight_decay > 0.0 {
                        let _ = gradients.g_add_(&(&*parameters * weight_decay));
                    }
                    let velocity = &mut self.state[0];
                    let _ = velocity.g_mul_scalar_(momentum);
                    let _ = velocity.g_add_(gradients);
                    let change = if nesterov { &*gradients + &*velocity * momentum } else { velocity.shallow_clone() };
                    let _ = parameters.g_sub_(&(change * rate));
                }
                Rule::Adamw { beta1, beta2, epsilon, weight_decay } => {
                    let [first, second] = &mut self.state[..] else { unreachable!("two moments") };
                    let _ = first.g_mul_scalar_(beta1);
                    let _ = first.g_add_(&(&*gradients * (1.0 - beta1)));
                    let _ = second.g_mul_scalar_(beta2);
                    let _ = second.g_add_(&(&*gradients * &*gradients * (1.0 - beta2)));
                    let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
                    let (short1, short2) = (1.0 - beta1.powi(steps), 1.0 - beta2.powi(steps));
                    let spread = (&*second / short2).sqrt() + epsilon;
                    let _ = parameters.g_mul_scalar_(1.0 - rate * weight_decay);
                    let _ = parameters.g_sub_(&(&*first / spread * (rate / short1)));
                }
            }
        });
    }

    /// A copy on this device, with state of its own.
    pub(crate) fn copied_to(&self, device: tch::Device) -> Optimiser {
        let state = self.state.iter().map(|tensor| tensor.copy().to_device(device)).collect();
        Optimiser { rule: self.rule, state, steps: self.steps }
    }

    /// Which rule.
    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    /// Steps taken.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rule: Rule, gradients: &[f64], divisor: f64) -> f64 {
        let mut parameter = Tensor::from_slice(&[1.0_f64]);
        let mut optimiser = Optimiser::new(rule, &parameter);
        for gradient in gradients {
            optimiser.step(&mut parameter, &mut Tensor::from_slice(&[*gradient]), divisor, 0.1);
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
    }
}
