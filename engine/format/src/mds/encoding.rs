//! What the bytes of a column mean.

use crate::bytes::{Dtype, take};

/// An encoding that the package documents. All that are files of their own or lists of them (`jpeg`, `png`, `pil`, `pkl`, `list[…]`,
/// `jpeg_array`), and unknown ones, are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// Bytes, whatever they mean.
    Bytes,
    /// UTF-8: `str`, `json`, and numbers written out in digits (`str_int`, `str_float`, `str_decimal`).
    Text,
    /// Numbers: `int`, `uint8` … `float64`, whose shape is empty, and `ndarray`, `ndarray:DTYPE`, `ndarray:DTYPE:SHAPE`.
    Array {
        /// The type of all values; `None` where each has its own.
        dtype: Option<Dtype>,
        /// The shape of all values; `None` where each has its own.
        shape: Option<Vec<u64>>,
    },
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// UTF-8.
    Text(&'a str),
    /// Numbers.
    Array(Array<'a>),
}

/// An array of little-endian numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Array<'a> {
    /// Of its elements.
    pub dtype: Dtype,
    /// Its elements, row by row.
    pub data: &'a [u8],
    /// The shape that the encoding fixes, and lengths of axes as they are stored, of so many bytes each.
    fixed: &'a [u64],
    stored: &'a [u8],
    width: usize,
}

impl Array<'_> {
    /// The length of each axis; none of a single number.
    pub fn shape(&self) -> impl Iterator<Item = u64> {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        self.fixed.iter().copied().chain(self.stored.chunks_exact(self.width).map(number))
    }

    /// The number that it is, where it is a single integer that fits.
    pub fn integer(&self) -> Option<i64> {
        let is_negative = *self.data.last()? >= 0x80;
        let filler = match self.dtype {
            _ if self.shape().next().is_some() => return None,
            Dtype::F16 | Dtype::F32 | Dtype::F64 => return None,
            Dtype::U64 if is_negative => return None,
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 if is_negative => 0xFF,
            _ => 0,
        };
        let mut number = [filler; 8];
        number.get_mut(..self.data.len())?.copy_from_slice(self.data);
        Some(i64::from_le_bytes(number))
    }
}

impl Encoding {
    /// Reads an encoding as `index.json` names it.
    pub fn parse(text: &str) -> Encoding {
        let scalar = |dtype| Encoding::Array { dtype: Some(dtype), shape: Some(Vec::new()) };
        match text {
            "int" => scalar(Dtype::I64),
            "str" | "json" | "str_int" | "str_float" | "str_decimal" => Encoding::Text,
            "ndarray" => Encoding::Array { dtype: None, shape: None },
            _ => match text.strip_prefix("ndarray:") {
                Some(rest) => array(rest).unwrap_or(Encoding::Bytes),
                None => text.parse().map_or(Encoding::Bytes, scalar),
            },
        }
    }

    /// The encoding as [`Encoding::parse`] reads it.
    pub fn to_text(&self) -> String {
        match self {
            Encoding::Bytes => "bytes".into(),
            Encoding::Text => "str".into(),
            Encoding::Array { dtype: Some(dtype), shape: Some(shape) } if shape.is_empty() => dtype.word().into(),
            Encoding::Array { dtype, shape } => {
                let axes = |shape: &Vec<u64>| shape.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
                let parts = [Some("ndarray".into()), dtype.map(|dtype| dtype.word().into()), shape.as_ref().map(axes)];
                parts.into_iter().flatten().collect::<Vec<String>>().join(":")
            }
        }
    }

    /// What bytes of this encoding mean; `None` where they do not follow it.
    pub fn view<'a>(&'a self, mut bytes: &'a [u8]) -> Option<Value<'a>> {
        let (dtype, shape) = match self {
            Encoding::Bytes => return Some(Value::Bytes(bytes)),
            Encoding::Text => return core::str::from_utf8(bytes).ok().map(Value::Text),
            Encoding::Array { dtype, shape } => (*dtype, shape.as_deref()),
        };
        // [dtype: 1] [axes << 2 | log2 of the width of lengths: 1] [lengths] [elements], without what the encoding fixes.
        let dtype = match dtype {
            Some(dtype) => dtype,
            None => stored_dtype(take(&mut bytes, 1)?[0])?,
        };
        let (fixed, stored, width) = match shape {
            Some(axes) => (axes, &[][..], 1),
            None => {
                let head = take(&mut bytes, 1)?[0];
                let width = 1 << (head & 3);
                (&[][..], take(&mut bytes, u64::from(head >> 2) * width)?, width as usize)
            }
        };
        let array = Array { dtype, data: bytes, fixed, stored, width };
        let size = array.shape().try_fold(dtype.bytes(), u64::checked_mul);
        (size == Some(bytes.len() as u64)).then_some(Value::Array(array))
    }
}

/// `DTYPE` or `DTYPE:SHAPE`.
fn array(text: &str) -> Option<Encoding> {
    let (dtype, shape) = text.split_once(':').map_or((text, None), |(dtype, shape)| (dtype, Some(shape)));
    let axis = |axis: &str| axis.parse().ok().filter(|axis| *axis > 0);
    let shape = match shape {
        Some(shape) => Some(shape.split(',').map(axis).collect::<Option<_>>()?),
        None => None,
    };
    Some(Encoding::Array { dtype: Some(dtype.parse().ok()?), shape })
}

/// By the package's numbers: the bits of the type, and 1 more where it is signed, 2 where it is floating-point.
fn stored_dtype(number: u8) -> Option<Dtype> {
    use Dtype::*;
    let known = [
        (8, U8),
        (9, I8),
        (16, U16),
        (17, I16),
        (18, F16),
        (32, U32),
        (33, I32),
        (34, F32),
        (64, U64),
        (65, I64),
        (66, F64),
    ];
    known.into_iter().find(|(known, _)| *known == number).map(|(_, dtype)| dtype)
}
