//! The protocol between the harness and a contestant: `ready`, then for every line `go` one pass and one line of JSON,
//! until standard input ends.

use std::io::{self, BufRead, Write};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// What one pass came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Passed {
    /// Payload delivered, bytes.
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
    /// From `go` to the last byte, s.
    pub(crate) wall_s: f64,
    /// From `go` until the first batch was whole, µs; absent where the client does not tell.
    pub(crate) first_batch_us: Option<u64>,
    /// Sum modulo 2¹²⁸ of XXH3-128 over each object, as 32 hexadecimal digits: the same in any order. Only when asked.
    pub(crate) hash: Option<String>,
    pub(crate) settings: String,
}

/// Serves the harness until it has heard enough: `pass` reads the whole set once, and is given its number, from 0.
pub(crate) fn serve(mut pass: impl FnMut(u64) -> Result<Passed>) -> Result<()> {
    let (mut commands, mut answers) = (io::stdin().lock(), io::stdout().lock());
    let mut say =
        |line: &str| writeln!(answers, "{line}").and_then(|()| answers.flush()).context("telling the harness");
    say("ready")?;
    let mut line = String::new();
    for number in 0.. {
        line.clear();
        if commands.read_line(&mut line).context("listening to the harness")? == 0 {
            break;
        }
        ensure!(line.trim_end() == "go", "expected `go`, got {line:?}");
        let passed = pass(number)?;
        say(&serde_json::to_string(&passed).expect("a pass is a plain structure"))?;
    }
    Ok(())
}
