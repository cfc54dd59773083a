//! The types of registers and instructions.
//!
//! Owns their names, their widths and which goes with which.

/// What the bits are taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Just bits.
    Bits,
    Unsigned,
    Signed,
    Float,
    Predicate,
}

/// A type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    pub(crate) class: Class,
    /// Width; a predicate has one bit.
    pub(crate) bits: u32,
}

impl Kind {
    /// The type of that name, without its dot.
    pub(crate) fn named(name: &str) -> Option<Kind> {
        if name == "pred" {
            return Some(Kind { class: Class::Predicate, bits: 1 });
        }
        let class = match name.get(..1)? {
            "b" => Class::Bits,
            "u" => Class::Unsigned,
            "s" => Class::Signed,
            "f" => Class::Float,
            _ => return None,
        };
        let bits = name[1..].parse().ok().filter(|bits| matches!(bits, 8 | 16 | 32 | 64))?;
        (class != Class::Float || bits > 8).then_some(Kind { class, bits })
    }

    pub(crate) fn bytes(self) -> usize {
        self.bits.div_ceil(8) as usize
    }

    pub(crate) fn is_float(self) -> bool {
        self.class == Class::Float
    }

    pub(crate) fn is_signed(self) -> bool {
        self.class == Class::Signed
    }

    /// Its bits, all set.
    pub(crate) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// An integer of this type as 64 bits, with its sign.
    pub(crate) fn widen(self, value: u64) -> u64 {
        let shift = 64 - self.bits;
        if self.is_signed() { ((value << shift).cast_signed() >> shift).cast_unsigned() } else { value & self.mask() }
    }

    /// Whether a register of this type may stand where an instruction works on `asked`. Loads, stores and conversions
    /// (`loose`) may use wider registers.
    pub(crate) fn serves(self, asked: Kind, loose: bool) -> bool {
        let wide = if loose && !asked.is_float() { self.bits >= asked.bits } else { self.bits == asked.bits };
        let class = match (self.class, asked.class) {
            (Class::Predicate, c) | (c, Class::Predicate) => c == Class::Predicate && self.class == asked.class,
            (Class::Bits, _) | (_, Class::Bits) => true,
            (a, b) => (a == Class::Float) == (b == Class::Float),
        };
        wide && class
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_go_with_their_like() {
        let kind = |name| Kind::named(name).unwrap();
        assert!(kind("b32").serves(kind("f32"), false) && kind("s32").serves(kind("u32"), false));
        assert!(!kind("f32").serves(kind("u32"), false) && !kind("u16").serves(kind("u32"), false));
        assert!(kind("u32").serves(kind("u8"), true) && !kind("u32").serves(kind("u8"), false));
        assert!(!kind("f64").serves(kind("f32"), true) && !kind("pred").serves(kind("b32"), true));
        assert_eq!(kind("s8").widen(0xff), u64::MAX);
        assert_eq!(kind("u16").widen(0x1_ffff), 0xffff);
        assert!(Kind::named("f8").is_none() && Kind::named("bf16").is_none() && Kind::named("u128").is_none());
    }
}
