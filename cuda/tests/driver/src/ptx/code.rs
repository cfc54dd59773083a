//! Instructions as they are interpreted.
//!
//! Owns their shapes. Registers are numbers into one row of 64-bit cells of a thread.

use crate::ptx::kind::Kind;

/// A register's number.
pub(crate) type Register = usize;

/// What is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Operand {
    Register(Register),
    /// Bits, already of the instruction's type.
    Bits(u64),
    Special(Special),
}

/// Where a thread is: `%tid`, `%ntid`, `%ctaid`, `%nctaid` with the index of x, y or z.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
}

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Address {
    /// In the row of the parameters.
    Parameter(usize),
    /// In global memory.
    Global(Operand, i64),
}

/// Operations on one operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unary {
    Move,
    Negate,
    Absolute,
    Not,
    Reciprocal,
}

/// Operations on two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    MultiplyHigh,
    MultiplyWide,
    Divide,
    Remainder,
    Minimum,
    Maximum,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// Operations on three: a product and a sum, cut to the type, with double width, or rounded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ternary {
    MultiplyAdd,
    MultiplyAddWide,
    Fused,
}

/// Comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// How a conversion rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    TowardZero,
    Down,
    Up,
}

/// What an instruction does.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Action {
    Load {
        kind: Kind,
        to: Vec<Register>,
        from: Address,
    },
    Store {
        kind: Kind,
        to: Address,
        from: Vec<Operand>,
    },
    Unary {
        what: Unary,
        kind: Kind,
        to: Register,
        a: Operand,
    },
    Binary {
        what: Binary,
        kind: Kind,
        saturate: bool,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Ternary {
        what: Ternary,
        kind: Kind,
        saturate: bool,
        to: Register,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    Compare {
        what: Comparison,
        kind: Kind,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Select {
        kind: Kind,
        to: Register,
        a: Operand,
        b: Operand,
        by: Register,
    },
    Convert {
        kind: Kind,
        from: Kind,
        rounding: Option<Rounding>,
        saturate: bool,
        to: Register,
        a: Operand,
    },
    /// To an instruction's number.
    Branch(usize),
    Return,
}

/// One instruction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Instruction {
    pub(crate) line: usize,
    /// It runs only if this predicate is true, or, with `true` beside it, only if it is false.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) action: Action,
}
