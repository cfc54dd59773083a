//! What the bytes of a column mean.

use crate::bytes::{Dtype, array_at, take, u32_at};

/// Most axes of an array: what the package writes.
const AXES_MAX: usize = 63;

/// An encoding that the package documents. Those whose bytes are a file of their own (`jpeg`, `png`, `pkl`), and unknown ones, are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// Bytes, whatever they mean.
    Bytes,
    /// UTF-8: `str`, `json`, and numbers written out in digits (`str_int`, `str_float`, `str_decimal`).
    Text,
    /// One number: `int`, `uint8` … `float64`.
    Scalar(Dtype),
    /// `ndarray`, `ndarray:DTYPE`, `ndarray:DTYPE:SHAPE`: what is not fixed is in the value.
    Array {
        /// The type of all values.
        dtype: Option<Dtype>,
        /// The shape of all values.
        shape: Option<Vec<u64>>,
    },
    /// `pil`: a picture as it is in memory.
    Picture,
    /// Bytes of several pictures: `list[pil]`, `list[jpeg]`, `list[png]`, whose count comes behind 4 bytes of 0, and `jpeg_array`.
    List {
        /// Whether those 4 bytes are there.
        reserved: bool,
    },
}

/// A value. Numbers in it are little-endian.
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// UTF-8.
    Text(&'a str),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A floating-point number of 32 or 64 bits.
    Float(f64),
    /// An array.
    Array(Array<'a>),
    /// A picture.
    Picture {
        /// Pixels.
        width: u32,
        /// Pixels.
        height: u32,
        /// What a pixel consists of, as Pillow names it: `L`, `RGB` …
        mode: &'a str,
        /// Rows of pixels.
        pixels: &'a [u8],
    },
    /// Several files.
    List(List<'a>),
}

/// An array.
#[derive(Clone, PartialEq, Debug)]
pub struct Array<'a> {
    /// Of its elements.
    pub dtype: Dtype,
    /// Its elements, row by row.
    pub data: &'a [u8],
    shape: Shape<'a>,
}

#[derive(Clone, PartialEq, Debug)]
enum Shape<'a> {
    Fixed(&'a [u64]),
    /// Numbers of so many bytes.
    Stored(usize, &'a [u8]),
}

impl Array<'_> {
    /// The length of each axis.
    pub fn shape(&self) -> impl Iterator<Item = u64> {
        let (fixed, stored, width) = match &self.shape {
            Shape::Fixed(axes) => (*axes, &[][..], 1),
            Shape::Stored(width, bytes) => (&[][..], *bytes, *width),
        };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        fixed.iter().copied().chain(stored.chunks_exact(width).map(number))
    }
}

/// Several files.
#[derive(Clone, PartialEq, Debug)]
pub struct List<'a> {
    sizes: &'a [u8],
    data: &'a [u8],
}

impl<'a> Iterator for List<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let size = u32_at(take(&mut self.sizes, 4)?, 0)?;
        take(&mut self.data, size.into())
    }
}

impl Encoding {
    /// Reads an encoding as `index.json` names it.
    #[must_use]
    pub fn parse(text: &str) -> Encoding {
        match text {
            "int" => Encoding::Scalar(Dtype::I64),
            "str" | "json" | "str_int" | "str_float" | "str_decimal" => Encoding::Text,
            "pil" => Encoding::Picture,
            "jpeg_array" | "jpegarray" => Encoding::List { reserved: false },
            "list[pil]" | "list[jpeg]" | "list[png]" => Encoding::List { reserved: true },
            "ndarray" => Encoding::Array { dtype: None, shape: None },
            _ => match text.strip_prefix("ndarray:") {
                Some(rest) => array(rest).unwrap_or(Encoding::Bytes),
                None => text.parse().map_or(Encoding::Bytes, Encoding::Scalar),
            },
        }
    }

    /// What bytes of this encoding mean; `None` where they do not follow it.
    #[must_use]
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> Option<Value<'a>> {
        match self {
            Encoding::Bytes => Some(Value::Bytes(bytes)),
            Encoding::Text => core::str::from_utf8(bytes).ok().map(Value::Text),
            Encoding::Scalar(dtype) => (bytes.len() as u64 == dtype.bytes()).then(|| scalar(*dtype, bytes))?,
            Encoding::Array { dtype, shape } => view_array(*dtype, shape.as_deref(), bytes),
            Encoding::Picture => {
                let [width, height, mode] = [0, 4, 8].map(|at| u32_at(bytes, at));
                let mut rest = bytes.get(12..)?;
                let mode = core::str::from_utf8(take(&mut rest, mode?.into())?).ok()?;
                Some(Value::Picture { width: width?, height: height?, mode, pixels: rest })
            }
            Encoding::List { reserved } => {
                let mut data = bytes.get(if *reserved { 4 } else { 0 }..)?;
                let count = u32_at(take(&mut data, 4)?, 0)?;
                let sizes = take(&mut data, u64::from(count) * 4)?;
                let total: u64 = sizes.as_chunks().0.iter().map(|size| u64::from(u32::from_le_bytes(*size))).sum();
                (total == data.len() as u64).then_some(Value::List(List { sizes, data }))
            }
        }
    }
}

/// `DTYPE` or `DTYPE:SHAPE`.
fn array(text: &str) -> Option<Encoding> {
    let (dtype, shape) = text.split_once(':').map_or((text, None), |(dtype, shape)| (dtype, Some(shape)));
    let axes = |shape: &str| shape.split(',').map(|axis| axis.parse().ok().filter(|axis| *axis > 0)).collect();
    let shape = match shape.map(axes) {
        Some(None) => return None,
        Some(axes) => axes,
        None => None,
    };
    Some(Encoding::Array { dtype: Some(dtype.parse().ok()?), shape })
}

/// One number; halves stay bytes.
fn scalar(dtype: Dtype, bytes: &[u8]) -> Option<Value<'_>> {
    Some(match dtype {
        Dtype::U8 => Value::Uint(u8::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::U16 => Value::Uint(u16::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::U32 => Value::Uint(u32::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::U64 => Value::Uint(u64::from_le_bytes(array_at(bytes, 0)?)),
        Dtype::I8 => Value::Int(i8::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::I16 => Value::Int(i16::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::I32 => Value::Int(i32::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::I64 => Value::Int(i64::from_le_bytes(array_at(bytes, 0)?)),
        Dtype::F32 => Value::Float(f32::from_le_bytes(array_at(bytes, 0)?).into()),
        Dtype::F64 => Value::Float(f64::from_le_bytes(array_at(bytes, 0)?)),
        Dtype::F16 => Value::Bytes(bytes),
    })
}

/// `[dtype: 1] [axes << 2 | log2 of the width of lengths: 1] [lengths] [elements]`, without what the encoding fixes.
fn view_array<'a>(dtype: Option<Dtype>, shape: Option<&'a [u64]>, mut bytes: &'a [u8]) -> Option<Value<'a>> {
    let dtype = match dtype {
        Some(dtype) => dtype,
        None => stored_dtype(take(&mut bytes, 1)?[0])?,
    };
    let shape = match shape {
        Some(axes) => Shape::Fixed(axes),
        None => {
            let head = take(&mut bytes, 1)?[0];
            let (axes, width) = (usize::from(head >> 2), 1 << (head & 3));
            Shape::Stored(width, take(&mut bytes, (axes.min(AXES_MAX) * width) as u64)?)
        }
    };
    let array = Array { dtype, data: bytes, shape };
    let size = array.shape().try_fold(dtype.bytes(), u64::checked_mul);
    (size == Some(bytes.len() as u64)).then_some(Value::Array(array))
}

fn stored_dtype(number: u8) -> Option<Dtype> {
    Some(match number {
        8 => Dtype::U8,
        9 => Dtype::I8,
        16 => Dtype::U16,
        17 => Dtype::I16,
        18 => Dtype::F16,
        32 => Dtype::U32,
        33 => Dtype::I32,
        34 => Dtype::F32,
        64 => Dtype::U64,
        65 => Dtype::I64,
        66 => Dtype::F64,
        _ => return None,
    })
}
