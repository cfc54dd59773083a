//! Reading tokens from front to back, and the names that are known on the way.
//!
//! Owns the position, the refusals with their lines, and the tables of registers, parameters and labels.

use crate::ptx::code::Register;
use crate::ptx::kind::Kind;
use crate::ptx::token::{Token, tokens};
use std::collections::BTreeMap;

/// Why a module is not taken, with the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) line: usize,
    pub(crate) why: String,
}

/// Tokens, read from front to back.
pub(crate) struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    pub(crate) fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |t| &t.text)
    }

    pub(crate) fn new(text: &str) -> Reader {
        Reader { tokens: tokens(text), at: 0 }
    }

    /// Whether a label begins here; takes it with its colon.
    pub(crate) fn label(&mut self) -> Option<String> {
        self.tokens.get(self.at + 1).filter(|t| t.text == ":")?;
        let name = self.next();
        self.at += 1;
        Some(name)
    }

    pub(crate) fn next(&mut self) -> String {
        let text = self.peek().to_owned();
        self.at += 1;
        text
    }

    pub(crate) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |t| t.line)
    }

    pub(crate) fn refuse<T>(&self, why: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal { line: self.line(), why: why.into() })
    }

    pub(crate) fn takes(&mut self, text: &str) -> bool {
        let taken = self.peek() == text && self.at < self.tokens.len();
        self.at += usize::from(taken);
        taken
    }

    pub(crate) fn expect(&mut self, text: &str) -> Result<(), Refusal> {
        if self.takes(text) { Ok(()) } else { self.refuse(format!("'{text}' is missing before '{}'", self.peek())) }
    }

    pub(crate) fn number(&mut self) -> Result<u32, Refusal> {
        match self.peek().parse() {
            Ok(number) => {
                self.at += 1;
                Ok(number)
            }
            Err(_) => self.refuse(format!("'{}' is no number", self.peek())),
        }
    }
}

/// Names inside an entry, while its body is read.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) registers: BTreeMap<String, Register>,
    pub(crate) parameters: BTreeMap<String, usize>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) labels: BTreeMap<String, usize>,
    /// Branches whose labels are not known yet: instruction, label, line.
    pub(crate) branches: Vec<(usize, String, usize)>,
}
