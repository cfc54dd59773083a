//! The label of a record: the whole number that a field of it is, written out or in binary.

use fuelrail_format::bytes::Dtype;
use fuelrail_format::{mds, tfrecord};

/// The greatest one: in Python, C and torch a label is a number with a sign, and -1 says that there is none.
const MAX: u32 = i32::MAX.cast_unsigned();
/// Most bytes of another value that an error shows.
const SHOWN_BYTES_MAX: usize = 32;

/// A label, or what the field is instead, as an error shows it.
pub(super) type Label = Result<u32, String>;

/// Of digits.
pub(super) fn of_text(text: &[u8]) -> Label {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    number.and_then(fitting).ok_or_else(|| {
        let more = if text.len() > SHOWN_BYTES_MAX { "…" } else { "" };
        format!("'{}{more}'", text[..text.len().min(SHOWN_BYTES_MAX)].escape_ascii())
    })
}

/// Of a value of a column; `None` is one that does not follow the column's encoding.
pub(super) fn of_value(value: Option<mds::Value<'_>>) -> Label {
    match value {
        Some(mds::Value::Bytes(bytes)) => of_text(bytes),
        Some(mds::Value::Text(digits)) => of_text(digits.as_bytes()),
        Some(mds::Value::Array(array)) => array.integer().map_or_else(|| Err(shown(&array)), of_number),
        None => Err("not what its column says".into()),
    }
}

/// Of a frame with a `tf.Example`, whose feature may be an integer or digits; the data of any other frame is one field. `None` where there is
/// no such feature, or no value of it.
pub(super) fn of_frame(frame: &[u8], name: &str) -> Option<Label> {
    let data = tfrecord::data(frame);
    let mut example = tfrecord::Example::default();
    let Ok(features) = example.read(data) else { return (name == "data").then(|| of_text(data)) };
    let mut values = features.get(name)?.values();
    Some(match (values.next()?, values.next()) {
        (_, Some(_)) => Err("several values".into()),
        (tfrecord::Value::Bytes(bytes), None) => of_text(bytes),
        (tfrecord::Value::Int(number), None) => of_number(number),
        (tfrecord::Value::Float(number), None) => Err(format!("the float {number:?}")),
    })
}

fn of_number(number: i64) -> Label {
    fitting(number).ok_or_else(|| number.to_string())
}

fn fitting(number: i64) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number <= MAX)
}

/// Numbers that are no integer, or one beyond 63 bits.
fn shown(array: &mds::Array<'_>) -> String {
    let data = array.data;
    let single = match array.dtype {
        _ if array.shape().next().is_some() => None,
        Dtype::F32 => data.first_chunk().map(|bytes| format!("the float {:?}", f32::from_le_bytes(*bytes))),
        Dtype::F64 => data.first_chunk().map(|bytes| format!("the float {:?}", f64::from_le_bytes(*bytes))),
        Dtype::U64 => data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes).to_string()),
        _ => None,
    };
    single.unwrap_or_else(|| format!("{} bytes of {}", data.len(), array.dtype.word()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_31_bits_are_labels_and_nothing_else_is() {
        for (text, label) in [("0", 0), (" 7\n", 7), ("007", 7), ("2147483647", MAX)] {
            assert_eq!(of_text(text.as_bytes()), Ok(label), "{text}");
        }
        for text in ["2147483648", "4294967295", "-2", "cat", "7.0", "", "1 2", "99999999999999999999"] {
            assert_eq!(of_text(text.as_bytes()), Err(format!("'{text}'")));
        }
        assert_eq!(of_text(b"\xFF\n"), Err(r"'\xff\n'".into()));
        assert_eq!(of_text(&[b'x'; 1000]), Err(format!("'{}…'", "x".repeat(32))));
    }

    #[test]
    fn columns_of_integers_are_read_by_their_type() {
        let label = |encoding: &str, bytes: &[u8]| of_value(mds::Encoding::parse(encoding).view(bytes));
        assert_eq!(label("int", &5_i64.to_le_bytes()), Ok(5));
        assert_eq!(label("uint32", &MAX.to_le_bytes()), Ok(MAX));
        assert_eq!(label("str_int", b"12"), Ok(12));
        for (encoding, bytes, shown) in [
            ("uint32", &4_000_000_000_u32.to_le_bytes()[..], "4000000000"),
            ("int64", &(1_i64 << 40).to_le_bytes(), "1099511627776"),
            ("int", &(-3_i64).to_le_bytes(), "-3"),
            ("int8", &[0xFF], "-1"),
            ("uint64", &[0xFF; 8], "18446744073709551615"),
            ("float32", &3.0_f32.to_le_bytes(), "the float 3.0"),
            ("float64", &0.5_f64.to_le_bytes(), "the float 0.5"),
            ("float16", &[0, 0], "2 bytes of float16"),
            ("ndarray:int32:2", &[0; 8], "8 bytes of int32"),
            ("int32", &[0; 3], "not what its column says"),
        ] {
            assert_eq!(label(encoding, bytes), Err(shown.into()), "{encoding}");
        }
    }

    /// A field of bytes of a protocol buffer, shorter than 128.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    #[test]
    fn a_feature_of_one_integer_or_of_digits_is_a_label() {
        let frame = |list: &[u8]| {
            let example = field(1, &field(1, &[field(1, b"cls"), field(2, list)].concat()));
            [&[0; 12][..], &example, &[0; 4]].concat()
        };
        let label = |list: &[u8]| of_frame(&frame(list), "cls");
        let minus_three = [0xFD, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        // Lists: 1 of bytes, 2 of floats, 3 of integers.
        let cases: [(Vec<u8>, Option<Label>); 7] = [
            (field(3, &field(1, &[7])), Some(Ok(7))),
            (field(1, &field(1, b"7")), Some(Ok(7))),
            // Its bytes are those of eight digits.
            (field(3, &field(1, &[0xB1, 0xE4, 0xCC, 0xA1, 0xD3, 0xC6, 0xCD, 0x9B, 0x38])), None),
            (field(3, &field(1, &minus_three)), Some(Err("-3".into()))),
            (field(3, &field(1, &[1, 2])), Some(Err("several values".into()))),
            (field(2, &field(1, &3.0_f32.to_le_bytes())), Some(Err("the float 3.0".into()))),
            (field(1, &field(1, b"cat")), Some(Err("'cat'".into()))),
        ];
        for (list, expected) in cases {
            match expected {
                Some(expected) => assert_eq!(label(&list), Some(expected), "{list:?}"),
                None => assert!(label(&list).is_some_and(|label| label.is_err()), "{list:?}"),
            }
        }
        assert_eq!((label(b""), of_frame(&frame(b""), "other")), (None, None), "there is no value");
        let bytes = [&[0; 12][..], b"12", &[0; 4]].concat();
        assert_eq!((of_frame(&bytes, "data"), of_frame(&bytes, "cls")), (Some(Ok(12)), None));
    }
}
