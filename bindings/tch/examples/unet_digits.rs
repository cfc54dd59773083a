//! A model and a task of one's own: a small U-Net (Ronneberger, Fischer, Brox, MICCAI 2015) that takes the noise out of digits.
//!
//! ```console
//! $ fuelrail serve digits --port 9000 &
//! $ cargo run --release --package fuelrail-tch --example unet_digits -- http://127.0.0.1:9000/bucket/training/ --decode 28x28x1 \
//!     --optimiser adam --rate 1e-3
//! ```

#![forbid(unsafe_code)]

use fuelrail::Result;
use fuelrail_tch::{Judged, Task, TensorBatch, run};
use std::process::ExitCode;
use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

struct Denoiser {
    fine: nn::Conv2D,
    coarse: nn::Conv2D,
    up: nn::ConvTranspose2D,
    last: nn::Conv2D,
    device: Device,
}

impl Task for Denoiser {
    fn needs_labels(&self) -> bool {
        false
    }

    fn judge(&self, batch: &TensorBatch, _training: bool) -> Result<Judged> {
        let clean = batch.bytes.to_device(self.device).permute([0, 3, 1, 2]).to_kind(Kind::Float) / 255.0;
        let noisy = &clean + clean.randn_like() * 0.5;
        let fine = self.fine.forward(&noisy).relu();
        let coarse = self.coarse.forward(&fine.max_pool2d_default(2)).relu();
        let joined = Tensor::cat(&[self.up.forward(&coarse), fine], 1);
        let errors = (self.last.forward(&joined) - &clean).square();
        let losses = errors.mean_dim(Some([1_i64, 2, 3].as_slice()), false, Kind::Float);
        // A picture is right when little of the noise, whose mean square is 0.25, is left.
        let right = losses.lt(0.05).sum(Kind::Float);
        Ok(Judged { losses, right, near: None, answers: 1.0 })
    }
}

fn main() -> ExitCode {
    run(std::env::args_os(), |variables, facts| {
        let (root, padded) = (variables.root(), nn::ConvConfig { padding: 1, ..nn::ConvConfig::default() });
        let twice = nn::ConvTransposeConfig { stride: 2, ..nn::ConvTransposeConfig::default() };
        Ok(Box::new(Denoiser {
            fine: nn::conv2d(&root / "fine", 1, 8, 3, padded),
            coarse: nn::conv2d(&root / "coarse", 8, 16, 3, padded),
            up: nn::conv_transpose2d(&root / "up", 16, 8, 2, twice),
            last: nn::conv2d(&root / "last", 16, 1, 3, padded),
            device: facts.device,
        }))
    })
}
