//! One instruction: its name with all its parts, and its operands, checked against the types of the registers.
//!
//! Owns the list of what is known. A part that is not known refuses the module: to guess would be to test something else.

use crate::ptx::code::{Action, Address, Binary, Comparison, Operand, Register, Rounding, Special, Ternary, Unary};
use crate::ptx::kind::{Class, Kind};
use crate::ptx::reader::{Names, Reader, Refusal};

/// Parts of a load that say how to cache; they change nothing here.
const CACHING: &[&str] = &["nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"];

type Read<T> = Result<T, Refusal>;

/// Reads one instruction, without its semicolon. `number` is its place, for branches.
pub(crate) fn action(reader: &mut Reader, names: &mut Names, number: usize) -> Read<Action> {
    let name = reader.peek().to_owned();
    let parts: Vec<&str> = name.split('.').collect();
    let unknown = |reader: &Reader| reader.refuse(format!("the instruction '{name}' is not known"));
    let kind = parts.last().and_then(|part| Kind::named(part));
    match (parts[0], &parts[1..]) {
        ("ret" | "exit", []) => {
            reader.next();
            Ok(Action::Return)
        }
        ("bra", [] | ["uni"]) => {
            reader.next();
            let line = reader.line();
            names.branches.push((number, reader.next(), line));
            Ok(Action::Branch(0))
        }
        ("ld" | "st", rest) => match (kind, vector(rest)) {
            (Some(kind), Some((space, count))) => memory(reader, names, (parts[0], space), kind, count),
            _ => unknown(reader),
        },
        ("cvta", ["to", "global", "u64"] | ["global", "u64"]) => {
            reader.next();
            unary(reader, names, Unary::Move, Kind { class: Class::Unsigned, bits: 64 })
        }
        ("cvt", rest) => match conversion(rest) {
            Some(shape) => convert(reader, names, shape),
            None => unknown(reader),
        },
        ("setp", [comparison, _]) => match (comparison_of(comparison), kind) {
            (Some(what), Some(kind)) => compare(reader, names, what, kind),
            _ => unknown(reader),
        },
        ("selp", [_]) if kind.is_some_and(|k| k.class != Class::Predicate) => {
            select(reader, names, kind.unwrap_or(Kind { class: Class::Bits, bits: 32 }))
        }
        (name, [rest @ .., _]) => match kind.and_then(|kind| Some((shape_of(name, rest, kind)?, kind))) {
            Some((shape, kind)) => {
                reader.next();
                shape.read(reader, names, kind)
            }
            None => unknown(reader),
        },
        _ => unknown(reader),
    }
}

/// Arithmetic by the number of its operands.
enum Shape {
    One(Unary),
    Two(Binary, bool),
    Three(Ternary, bool),
}

/// What an arithmetic instruction is; nothing if its parts do not go together.
fn shape_of(name: &str, parts: &[&str], kind: Kind) -> Option<Shape> {
    let float = kind.is_float();
    // Only single precision computes; 16-bit floats need a later machine, 64-bit ones no kernel here.
    let single = float && kind.bits == 32;
    let integer = matches!(kind.class, Class::Unsigned | Class::Signed) && kind.bits >= 16;
    let bits = kind.class == Class::Bits && kind.bits >= 16;
    let saturate = parts.contains(&"sat");
    // Flushing of subnormal numbers and the rounding to nearest, which is the default.
    let soft = single && parts.iter().all(|p| matches!(*p, "rn" | "ftz" | "sat"));
    let plain = parts.is_empty();
    let exact = parts.iter().all(|p| matches!(*p, "rn" | "ftz"));
    Some(match name {
        "mov" if plain && kind.bits != 8 => Shape::One(Unary::Move),
        "not" if plain && (bits || kind.class == Class::Predicate) => Shape::One(Unary::Not),
        "neg" if plain && (kind.is_signed() || single) => Shape::One(Unary::Negate),
        "abs" if plain && (kind.is_signed() || single) => Shape::One(Unary::Absolute),
        "rcp" if single && parts.contains(&"rn") && exact => Shape::One(Unary::Reciprocal),
        "add" if plain && integer || soft => Shape::Two(two(name)?, saturate),
        "sub" if plain && integer || soft => Shape::Two(two(name)?, saturate),
        "mul" if soft => Shape::Two(Binary::Multiply, saturate),
        "mul" if integer && parts == ["lo"] => Shape::Two(Binary::Multiply, false),
        "mul" if integer && parts == ["hi"] => Shape::Two(Binary::MultiplyHigh, false),
        "mul" if integer && kind.bits < 64 && parts == ["wide"] => Shape::Two(Binary::MultiplyWide, false),
        "div" if single && parts.contains(&"rn") && exact => Shape::Two(Binary::Divide, false),
        "div" | "rem" if integer && plain => Shape::Two(two(name)?, false),
        "min" | "max" if plain && (integer || single) => Shape::Two(two(name)?, false),
        "and" | "or" | "xor" if plain && (bits || kind.class == Class::Predicate) => Shape::Two(two(name)?, false),
        "shl" if plain && bits => Shape::Two(Binary::ShiftLeft, false),
        "shr" if plain && (bits || integer) => Shape::Two(Binary::ShiftRight, false),
        "mad" if integer && parts == ["lo"] => Shape::Three(Ternary::MultiplyAdd, false),
        "mad" if integer && kind.bits < 64 && parts == ["wide"] => Shape::Three(Ternary::MultiplyAddWide, false),
        "fma" if soft && parts.contains(&"rn") => Shape::Three(Ternary::Fused, saturate),
        _ => return None,
    })
}

fn two(name: &str) -> Option<Binary> {
    Some(match name {
        "add" => Binary::Add,
        "sub" => Binary::Subtract,
        "div" => Binary::Divide,
        "rem" => Binary::Remainder,
        "min" => Binary::Minimum,
        "max" => Binary::Maximum,
        "and" => Binary::And,
        "or" => Binary::Or,
        "xor" => Binary::Xor,
        _ => return None,
    })
}

impl Shape {
    fn read(self, reader: &mut Reader, names: &Names, kind: Kind) -> Read<Action> {
        let double = Kind { bits: kind.bits * 2, ..kind };
        match self {
            Shape::One(what) => {
                let (to, a) = (register(reader, names, Some(kind), false)?, operand_after(reader, names, kind)?);
                Ok(Action::Unary { what, kind, to, a })
            }
            Shape::Two(what, saturate) => {
                let result = if what == Binary::MultiplyWide { double } else { kind };
                let shift = matches!(what, Binary::ShiftLeft | Binary::ShiftRight);
                let second = if shift { Kind { class: Class::Unsigned, bits: 32 } } else { kind };
                let to = register(reader, names, Some(result), false)?;
                let (a, b) = (operand_after(reader, names, kind)?, operand_after(reader, names, second)?);
                Ok(Action::Binary { what, kind, saturate, to, a, b })
            }
            Shape::Three(what, saturate) => {
                let result = if what == Ternary::MultiplyAddWide { double } else { kind };
                let to = register(reader, names, Some(result), false)?;
                let (a, b) = (operand_after(reader, names, kind)?, operand_after(reader, names, kind)?);
                let c = operand_after(reader, names, result)?;
                Ok(Action::Ternary { what, kind, saturate, to, a, b, c })
            }
        }
    }
}

fn unary(reader: &mut Reader, names: &Names, what: Unary, kind: Kind) -> Read<Action> {
    Shape::One(what).read(reader, names, kind)
}

/// Space and number of values of a load or store.
fn vector<'a>(parts: &[&'a str]) -> Option<(&'a str, usize)> {
    let space = *parts.first().filter(|space| matches!(**space, "param" | "global"))?;
    let mut count = 1;
    for part in &parts[1..parts.len().max(2) - 1] {
        match *part {
            "v2" => count = 2,
            "v4" => count = 4,
            other if CACHING.contains(&other) => {}
            _ => return None,
        }
    }
    Some((space, count))
}

fn memory(reader: &mut Reader, names: &Names, (name, space): (&str, &str), kind: Kind, count: usize) -> Read<Action> {
    reader.next();
    if kind.class == Class::Predicate || (name, space) == ("st", "param") {
        return reader.refuse("no such load or store");
    }
    if name == "st" {
        let to = address(reader, names, space)?;
        reader.expect(",")?;
        let from = list(reader, count, |reader| operand(reader, names, kind, true))?;
        return Ok(Action::Store { kind, to, from });
    }
    let to = list(reader, count, |reader| register(reader, names, Some(kind), true))?;
    reader.expect(",")?;
    Ok(Action::Load { kind, to, from: address(reader, names, space)? })
}

/// One value, or as many in braces.
fn list<T>(reader: &mut Reader, count: usize, mut one: impl FnMut(&mut Reader) -> Read<T>) -> Read<Vec<T>> {
    if count == 1 {
        return Ok(vec![one(reader)?]);
    }
    reader.expect("{")?;
    let mut all = Vec::new();
    for i in 0..count {
        if i > 0 {
            reader.expect(",")?;
        }
        all.push(one(reader)?);
    }
    reader.expect("}")?;
    Ok(all)
}

fn address(reader: &mut Reader, names: &Names, space: &str) -> Read<Address> {
    reader.expect("[")?;
    let place = if space == "param" {
        let name = reader.next();
        let Some(offset) = names.parameters.get(&name) else {
            return reader.refuse(format!("there is no parameter '{name}'"));
        };
        let shifted = i64::try_from(*offset).unwrap_or(i64::MAX).checked_add(displacement(reader)?);
        match shifted.and_then(|at| usize::try_from(at).ok()) {
            Some(at) => Address::Parameter(at),
            None => return reader.refuse("before the first parameter"),
        }
    } else {
        let base = operand(reader, names, Kind { class: Class::Unsigned, bits: 64 }, false)?;
        Address::Global(base, displacement(reader)?)
    };
    reader.expect("]")?;
    Ok(place)
}

fn displacement(reader: &mut Reader) -> Read<i64> {
    let plus = reader.takes("+");
    let minus = reader.takes("-");
    if !plus && !minus {
        return Ok(0);
    }
    let word = reader.next();
    match integer(&word).and_then(|n| i64::try_from(n).ok()) {
        Some(number) => Ok(if minus { -number } else { number }),
        None => reader.refuse(format!("'{word}' is no displacement")),
    }
}

fn comparison_of(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" => Comparison::Equal,
        "ne" => Comparison::NotEqual,
        "lt" | "lo" => Comparison::Less,
        "le" | "ls" => Comparison::LessEqual,
        "gt" | "hi" => Comparison::Greater,
        "ge" | "hs" => Comparison::GreaterEqual,
        _ => return None,
    })
}

fn compare(reader: &mut Reader, names: &Names, what: Comparison, kind: Kind) -> Read<Action> {
    reader.next();
    let ordered = !matches!(what, Comparison::Equal | Comparison::NotEqual);
    if kind.class == Class::Predicate || kind.bits == 8 || kind.class == Class::Bits && ordered {
        return reader.refuse("no such comparison");
    }
    let to = register(reader, names, Kind::named("pred"), false)?;
    let (a, b) = (operand_after(reader, names, kind)?, operand_after(reader, names, kind)?);
    Ok(Action::Compare { what, kind, to, a, b })
}

fn select(reader: &mut Reader, names: &Names, kind: Kind) -> Read<Action> {
    reader.next();
    let to = register(reader, names, Some(kind), false)?;
    let (a, b) = (operand_after(reader, names, kind)?, operand_after(reader, names, kind)?);
    reader.expect(",")?;
    let by = register(reader, names, Kind::named("pred"), false)?;
    Ok(Action::Select { kind, to, a, b, by })
}

/// Types and rounding of a conversion.
struct Conversion {
    kind: Kind,
    from: Kind,
    rounding: Option<Rounding>,
    saturate: bool,
}

fn conversion(parts: &[&str]) -> Option<Conversion> {
    let [options @ .., kind, from] = parts else { return None };
    let (kind, from) = (Kind::named(kind)?, Kind::named(from)?);
    let mut shape = Conversion { kind, from, rounding: None, saturate: false };
    for option in options {
        let whole = from.is_float() && !kind.is_float();
        match (*option, whole) {
            ("rn", false) | ("rni", true) => shape.rounding = Some(Rounding::Nearest),
            ("rzi", true) => shape.rounding = Some(Rounding::TowardZero),
            ("rmi", true) => shape.rounding = Some(Rounding::Down),
            ("rpi", true) => shape.rounding = Some(Rounding::Up),
            ("sat", _) => shape.saturate = true,
            ("ftz", _) => {}
            _ => return None,
        }
    }
    let number = |k: Kind| !matches!(k.class, Class::Bits | Class::Predicate) && (k.bits < 64 || !k.is_float());
    let narrows = kind.is_float() && (!from.is_float() || kind.bits < from.bits);
    let must_round = narrows || from.is_float() && !kind.is_float();
    // A rounding must stand exactly where digits can be lost.
    (number(kind) && number(from) && must_round == shape.rounding.is_some()).then_some(shape)
}

fn convert(reader: &mut Reader, names: &Names, shape: Conversion) -> Read<Action> {
    reader.next();
    let to = register(reader, names, Some(shape.kind), true)?;
    reader.expect(",")?;
    let a = operand(reader, names, shape.from, true)?;
    Ok(Action::Convert {
        kind: shape.kind,
        from: shape.from,
        rounding: shape.rounding,
        saturate: shape.saturate,
        to,
        a,
    })
}

/// A register that may stand for a type.
pub(crate) fn register(reader: &mut Reader, names: &Names, kind: Option<Kind>, loose: bool) -> Read<Register> {
    let name = reader.peek().to_owned();
    let Some(found) = names.registers.get(&name).copied() else {
        return reader.refuse(format!("there is no register '{name}'"));
    };
    if kind.is_some_and(|kind| !names.kinds[found].serves(kind, loose)) {
        return reader.refuse(format!("the register '{name}' has the wrong type for this instruction"));
    }
    reader.next();
    Ok(found)
}

fn operand_after(reader: &mut Reader, names: &Names, kind: Kind) -> Read<Operand> {
    reader.expect(",")?;
    operand(reader, names, kind, false)
}

fn operand(reader: &mut Reader, names: &Names, kind: Kind, loose: bool) -> Read<Operand> {
    if names.registers.contains_key(reader.peek()) {
        return register(reader, names, Some(kind), loose).map(Operand::Register);
    }
    if let Some(special) = special(reader.peek()) {
        if kind.bits != 32 || kind.is_float() {
            return reader.refuse(format!("'{}' has 32 bits", reader.peek()));
        }
        reader.next();
        return Ok(Operand::Special(special));
    }
    let minus = reader.takes("-");
    let word = reader.peek().to_owned();
    match literal(&word, minus, kind) {
        Some(bits) => {
            reader.next();
            Ok(Operand::Bits(bits))
        }
        None => reader.refuse(format!("'{word}' is no operand here")),
    }
}

fn special(word: &str) -> Option<Special> {
    let (name, axis) = word.split_once('.')?;
    let axis = ["x", "y", "z"].iter().position(|a| *a == axis)?;
    Some(match name {
        "%tid" => Special::Thread(axis),
        "%ntid" => Special::Threads(axis),
        "%ctaid" => Special::Block(axis),
        "%nctaid" => Special::Blocks(axis),
        _ => return None,
    })
}

/// The bits of a literal of this type.
fn literal(word: &str, minus: bool, kind: Kind) -> Option<u64> {
    let float = |bits: u64| if minus { None } else { Some(bits) };
    if let Some(hex) = word.strip_prefix("0f").or(word.strip_prefix("0F")).filter(|hex| hex.len() == 8) {
        return u64::from_str_radix(hex, 16).ok().filter(|_| kind.bits == 32).and_then(float);
    }
    if kind.is_float() {
        let number: f64 = word.contains('.').then(|| word.parse().ok()).flatten()?;
        let number = if minus { -number } else { number };
        return (kind.bits == 32).then(|| u64::from((number as f32).to_bits()));
    }
    let number = integer(word)?;
    let number = if minus { number.wrapping_neg() } else { number };
    Some(if kind.class == Class::Predicate { u64::from(number != 0) } else { number & kind.mask() })
}

fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    match word.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&word[2..], 16).ok(),
        Some("0b" | "0B") => u64::from_str_radix(&word[2..], 2).ok(),
        _ => word.parse().ok(),
    }
}
