//! The protocol between the harness and a contestant: `ready`, then for every line `go` one pass and one line of JSON,
//! until standard input ends.

use std::io::{BufRead, Write};

use serde::Serialize;

use crate::flaw::{Flaw, Result};

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

/// A client that can read the data set again and again.
pub(crate) trait Contestant {
    /// Reads the whole set once. Passes are numbered from 0.
    fn pass(&mut self, number: u64) -> Result<Passed>;
}

/// Serves the harness until it has heard enough.
pub(crate) fn serve(
    mut contestant: impl Contestant,
    mut commands: impl BufRead,
    mut answers: impl Write,
) -> Result<()> {
    let mut say = |line: &str| {
        writeln!(answers, "{line}").and_then(|()| answers.flush()).map_err(|e| Flaw::of("telling the harness", e))
    };
    say("ready")?;
    for number in 0.. {
        let mut line = String::new();
        match commands.read_line(&mut line) {
            Ok(0) => break,
            Ok(_) if line.trim_end() == "go" => {}
            Ok(_) => return Err(Flaw::new(format!("expected `go`, got {line:?}"))),
            Err(error) => return Err(Flaw::of("listening to the harness", error)),
        }
        let passed = contestant.pass(number)?;
        say(&serde_json::to_string(&passed).expect("a pass is a plain structure"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(u64);

    impl Contestant for Counter {
        fn pass(&mut self, number: u64) -> Result<Passed> {
            self.0 += 1;
            assert_eq!(number + 1, self.0);
            if number == 2 { Err(Flaw::new("worn out")) } else { Ok(Passed { objects: self.0, ..Passed::default() }) }
        }
    }

    #[test]
    fn a_pass_that_fails_and_a_wrong_word_end_it() {
        let failed = serve(Counter(0), &b"go\ngo\ngo\n"[..], &mut Vec::new()).unwrap_err();
        assert_eq!(failed.to_string(), "worn out");
        let confused = serve(Counter(0), &b"stop\n"[..], &mut Vec::new()).unwrap_err();
        assert!(confused.to_string().starts_with("expected `go`"), "{confused}");
    }
}
