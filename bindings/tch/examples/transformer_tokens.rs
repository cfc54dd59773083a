//! A small transformer on `tokens`: every object is one sequence of little-endian `u16` tokens.
//!
//! ```console
//! $ fuelrail serve tokens --count 4000 --shard-size 258 --port 9000 &
//! $ cargo run --release --package fuelrail-tch --example transformer_tokens -- http://127.0.0.1:9000/bucket/ --batch-size 32 \
//!     --optimiser adamw,beta2=0.95,weight_decay=0.1 --rate 1e-3 --warm-up 0.05 --decay cosine --clip-norm 1
//! ```

#![forbid(unsafe_code)]

use fuelrail_tch::models::{TransformerConfig, transformer};
use fuelrail_tch::{LanguageModel, run};
use std::process::ExitCode;

const TOKENS: usize = 129;
const VOCABULARY: i64 = 512;

fn main() -> ExitCode {
    run(std::env::args_os(), |variables, facts| {
        let sizes = TransformerConfig { vocabulary: VOCABULARY, tokens: TOKENS as i64, width: 64, heads: 4, layers: 2 };
        let model = transformer(&variables.root(), sizes);
        Ok(Box::new(LanguageModel::new(model, TOKENS, VOCABULARY, facts.device)))
    })
}
