//! What the operations do to bits. Pure functions; floats are rounded as the hardware rounds them.
//!
//! Owns the numbers. Conversions to half precision go by way of [`half_bits`], checked in the tests value by value.

use crate::ptx::code::{Binary, Comparison, Rounding, Ternary, Unary};
use crate::ptx::kind::Kind;

fn single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn bits(value: f32) -> u64 {
    u64::from(value.to_bits())
}

fn saturated(value: f32, saturate: bool) -> u64 {
    // A number that is none becomes zero.
    bits(if saturate { if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) } } else { value })
}

/// One operand.
pub(crate) fn unary(what: Unary, kind: Kind, a: u64) -> u64 {
    let result = match what {
        Unary::Move => a,
        Unary::Not => !a,
        Unary::Reciprocal => bits(1.0 / single(a)),
        Unary::Negate if kind.is_float() => bits(-single(a)),
        Unary::Absolute if kind.is_float() => bits(single(a).abs()),
        Unary::Negate => a.wrapping_neg(),
        Unary::Absolute => kind.widen(a).cast_signed().unsigned_abs(),
    };
    result & kind.mask()
}

/// Two operands.
pub(crate) fn binary(what: Binary, kind: Kind, saturate: bool, a: u64, b: u64) -> u64 {
    if kind.is_float() {
        let (x, y) = (single(a), single(b));
        let result = match what {
            Binary::Add => x + y,
            Binary::Subtract => x - y,
            Binary::Multiply => x * y,
            Binary::Divide => x / y,
            Binary::Minimum => x.min(y),
            Binary::Maximum => x.max(y),
            // Read as integers only.
            _ => f32::NAN,
        };
        return saturated(result, saturate);
    }
    let (x, y) = (kind.widen(a), kind.widen(b));
    let (wide_x, wide_y) = (wide(kind, a), wide(kind, b));
    let result = match what {
        Binary::Add => x.wrapping_add(y),
        Binary::Subtract => x.wrapping_sub(y),
        Binary::Multiply => x.wrapping_mul(y),
        Binary::MultiplyHigh => ((wide_x * wide_y) >> kind.bits) as u64,
        Binary::MultiplyWide => {
            return ((wide_x * wide_y) as u64) & Kind { bits: kind.bits * 2, ..kind }.mask();
        }
        // What a division by zero gives is not said; all ones is what hardware is known to give.
        Binary::Divide => wide_x.checked_div(wide_y).map_or(u64::MAX, |n| n as u64),
        Binary::Remainder => wide_x.checked_rem(wide_y).map_or(u64::MAX, |n| n as u64),
        Binary::Minimum => wide_x.min(wide_y) as u64,
        Binary::Maximum => wide_x.max(wide_y) as u64,
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        // A shift by the width or more leaves nothing, or only signs.
        Binary::ShiftLeft => a.checked_shl(b as u32).unwrap_or(0),
        Binary::ShiftRight if kind.is_signed() => (x.cast_signed() >> b.min(63)).cast_unsigned(),
        Binary::ShiftRight => x.checked_shr(b as u32).unwrap_or(0),
    };
    result & kind.mask()
}

/// Three operands.
pub(crate) fn ternary(what: Ternary, kind: Kind, saturate: bool, (a, b, c): (u64, u64, u64)) -> u64 {
    match what {
        Ternary::Fused => saturated(single(a).mul_add(single(b), single(c)), saturate),
        Ternary::MultiplyAdd => {
            let product = binary(Binary::Multiply, kind, false, a, b);
            binary(Binary::Add, kind, false, product, c)
        }
        Ternary::MultiplyAddWide => {
            let product = binary(Binary::MultiplyWide, kind, false, a, b);
            binary(Binary::Add, Kind { bits: kind.bits * 2, ..kind }, false, product, c)
        }
    }
}

/// A comparison; of numbers that are none, all but "not equal" are false, and that one too.
pub(crate) fn compare(what: Comparison, kind: Kind, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order =
        if kind.is_float() { single(a).partial_cmp(&single(b)) } else { Some(wide(kind, a).cmp(&wide(kind, b))) };
    match what {
        Comparison::Equal => order == Some(Equal),
        Comparison::NotEqual => matches!(order, Some(Less | Greater)),
        Comparison::Less => order == Some(Less),
        Comparison::LessEqual => matches!(order, Some(Less | Equal)),
        Comparison::Greater => order == Some(Greater),
        Comparison::GreaterEqual => matches!(order, Some(Greater | Equal)),
    }
}

/// A conversion; `None` for a pair of types that is not interpreted.
pub(crate) fn convert(kind: Kind, from: Kind, rounding: Option<Rounding>, saturate: bool, a: u64) -> Option<u64> {
    let value = match (from.is_float(), from.bits) {
        (true, 32) => f64::from(single(a)),
        (true, 16) => f64::from(half_value(a as u16)),
        (true, _) => return None,
        (false, _) if kind.is_float() => return from_integer(kind, rounding, wide(from, a)),
        (false, _) => return Some(to_integer(kind, saturate, wide(from, a))),
    };
    if kind.is_float() {
        let limited = if saturate { if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) } } else { value };
        return match (kind.bits, rounding) {
            (32, None) => Some(bits(limited as f32)),
            (16, None | Some(Rounding::Nearest)) => Some(u64::from(half_bits(limited as f32))),
            _ => None,
        };
    }
    let whole = match rounding? {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::TowardZero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    };
    // A conversion to an integer is always held within the integer's range.
    Some(to_integer(kind, true, whole as i128))
}

fn from_integer(kind: Kind, rounding: Option<Rounding>, value: i128) -> Option<u64> {
    match (kind.bits, rounding) {
        (32, Some(Rounding::Nearest)) => Some(bits(value as f32)),
        _ => None,
    }
}

fn to_integer(kind: Kind, saturate: bool, value: i128) -> u64 {
    let (low, high) = if kind.is_signed() {
        (-(1i128 << (kind.bits - 1)), (1i128 << (kind.bits - 1)) - 1)
    } else {
        (0, i128::from(kind.mask()))
    };
    (if saturate { value.clamp(low, high) } else { value }) as u64 & kind.mask()
}

/// An integer with room for any product.
fn wide(kind: Kind, value: u64) -> i128 {
    let value = kind.widen(value);
    if kind.is_signed() { i128::from(value.cast_signed()) } else { i128::from(value) }
}

/// Single to half precision, to nearest, ties to even.
pub(crate) fn half_bits(value: f32) -> u16 {
    let raw = value.to_bits();
    let sign = (raw >> 16 & 0x8000) as u16;
    if value.is_nan() {
        return 0x7fff;
    }
    let magnitude = value.abs();
    // From here on a half is infinite: the largest finite half is 65504, and half of the next step above it is 65520.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // A half's unit in the last place; below 2^-14 it stays 2^-24. Both divisions are exact, so one rounding is made.
    let exponent = (raw >> 23 & 0xff) as i32 - 127;
    let unit = exponent.max(-14) - 10;
    let steps = (f64::from(magnitude) / f64::from(unit).exp2()).round_ties_even() as u16;
    // A subnormal's steps are its bits; above, the exponent counts the steps of 1024. Rounding up may carry into it.
    sign | if exponent < -14 { steps } else { ((exponent + 14) as u16 * 1024) + steps }
}

/// Half to single precision, exact.
pub(crate) fn half_value(raw: u16) -> f32 {
    let (exponent, fraction) = (i32::from(raw >> 10 & 0x1f), f32::from(raw & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * (-24f32).exp2(),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * ((exponent - 25) as f32).exp2(),
    };
    if raw & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> Kind {
        Kind::named(name).unwrap()
    }

    #[test]
    fn every_half_comes_back_and_ties_go_to_even() {
        for raw in 0..=u16::MAX {
            let value = half_value(raw);
            if value.is_nan() {
                assert_eq!(half_bits(value), 0x7fff);
            } else {
                assert_eq!(half_bits(value), raw, "{value}");
            }
        }
        for raw in 0..0x7bffu16 {
            let (low, high) = (half_value(raw), half_value(raw + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(half_bits(middle) & 1, 0, "{middle} lies between {raw:#x} and the next");
            assert_eq!(half_bits(f32::from_bits(middle.to_bits() - 1)), raw);
            assert_eq!(half_bits(f32::from_bits(middle.to_bits() + 1)), raw + 1);
        }
        assert_eq!(
            (half_bits(1.0), half_bits(-2.0), half_bits(65519.0), half_bits(65520.0)),
            (0x3c00, 0xc000, 0x7bff, 0x7c00)
        );
    }

    #[test]
    fn integers_wrap_shift_and_widen_as_their_type_says() {
        assert_eq!(binary(Binary::Add, kind("u32"), false, 0xffff_ffff, 2), 1);
        assert_eq!(binary(Binary::MultiplyWide, kind("s32"), false, 0xffff_ffff, 3), (-3i64).cast_unsigned());
        assert_eq!(binary(Binary::MultiplyHigh, kind("u64"), false, 1 << 63, 4), 2);
        assert_eq!(binary(Binary::Divide, kind("s32"), false, 0xffff_fff9, 2), 0xffff_fffd);
        assert_eq!(binary(Binary::Remainder, kind("u32"), false, 7, 4), 3);
        assert_eq!(binary(Binary::ShiftRight, kind("s32"), false, 0x8000_0000, 40), 0xffff_ffff);
        assert_eq!(binary(Binary::ShiftLeft, kind("b32"), false, 1, 32), 0);
        assert_eq!(ternary(Ternary::MultiplyAddWide, kind("u32"), false, (1 << 31, 2, 5)), (1 << 32) + 5);
        assert_eq!(unary(Unary::Absolute, kind("s16"), 0xfffe), 2);
        assert!(compare(Comparison::Less, kind("s32"), 0xffff_ffff, 0));
        assert!(!compare(Comparison::Less, kind("u32"), 0xffff_ffff, 0));
    }

    #[test]
    fn conversions_round_and_stay_in_range() {
        let nearest = Some(Rounding::Nearest);
        assert_eq!(convert(kind("f32"), kind("u8"), nearest, false, 255), Some(bits(255.0)));
        assert_eq!(convert(kind("u8"), kind("f32"), nearest, false, bits(254.5)), Some(254));
        assert_eq!(convert(kind("u8"), kind("f32"), nearest, false, bits(300.0)), Some(255));
        assert_eq!(convert(kind("s32"), kind("f32"), Some(Rounding::Down), false, bits(-0.5)), Some(0xffff_ffff));
        assert_eq!(convert(kind("u32"), kind("f32"), nearest, false, bits(f32::NAN)), Some(0));
        assert_eq!(convert(kind("u8"), kind("u32"), None, false, 0x1ff), Some(0xff));
        assert_eq!(convert(kind("s64"), kind("s32"), None, false, 0xffff_ffff), Some(u64::MAX));
        assert_eq!(convert(kind("f16"), kind("f32"), nearest, false, bits(1.0)), Some(0x3c00));
        assert!(!compare(Comparison::NotEqual, kind("f32"), bits(f32::NAN), 0));
    }
}
