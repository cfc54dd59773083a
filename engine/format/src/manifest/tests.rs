use super::*;
use crate::fuzz::scanned;
use crate::{Format, Index};
use proptest::prelude::*;

fn find(key: &str) -> Option<(u32, u64)> {
    Some((["a.mp4", "b,\"\n"].iter().position(|known| *known == key)? as u32, 1000))
}

fn read(syntax: Syntax, text: &str, extra: usize) -> Result<Index<Vec<u8>>> {
    let mut builder = IndexBuilder::new(Format::Manifest, [0; 16], 2);
    scanned(&mut Scan::new(syntax, text.len() as u64, find), text.as_bytes(), extra, &mut builder)?;
    Index::open(builder.to_bytes())
}

fn shown(index: &Index<Vec<u8>>) -> Vec<String> {
    let field = |(name, field): (&str, Field<'_>)| match field {
        Field::Span(span) => format!("{}:{}+{}", span.object, span.offset, span.length),
        Field::Value(value) => format!("{name}={}", value.escape_ascii()),
    };
    index.iter().map(|record| record.fields().map(field).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn csv_is_read() {
    let text = "\u{FEFF}label,key,offset,length,text\r\n3,a.mp4,10,20,\"he said \"\"x\"\"\"\r\n\r\n4,\"b,\"\"\n\",,,\n,a.mp4,990,,é";
    let expected =
        ["0:10+20 label=3 text=he said \\\"x\\\"", "1:0+1000 label=4 text=", "0:990+10 label= text=\\xc3\\xa9"];
    assert_eq!(shown(&read(Syntax::Csv, text, 0).unwrap()), expected);
    assert_eq!(shown(&read(Syntax::Csv, "key\na.mp4", 0).unwrap()), ["0:0+1000"]);
    assert!(read(Syntax::Csv, "", 0).unwrap().is_empty() && read(Syntax::Csv, "key\n", 0).unwrap().is_empty());
}

#[test]
fn jsonl_is_read() {
    let text = "\u{FEFF}{\"key\":\"a.mp4\",\"offset\":10,\"length\":\"20\",\"label\":3.50}\r\n\n {\"x\":{\"y\":[1]},\"key\":\"b,\\\"\\n\",\"label\":null,\"t\":\"\\u00e9\"}";
    let expected = ["0:10+20 label=3.50", "1:0+1000 t=\\xc3\\xa9 x={\\\"y\\\":[1]}"];
    assert_eq!(shown(&read(Syntax::Jsonl, text, 0).unwrap()), expected);
}

#[test]
fn flaws_name_their_line() {
    for (syntax, text, says) in [
        (Syntax::Csv, "a,b\n1,2", "line 1: the first line names no column 'key'"),
        (Syntax::Csv, "key,a,a\n1,2", "line 1: two columns are named 'a'"),
        (Syntax::Csv, "key,x\na.mp4,1\n\na.mp4", "line 4: it has 1 columns, the first line has 2"),
        (Syntax::Csv, "key\nc", "line 2: there is no object 'c'"),
        (Syntax::Csv, "key,offset\na.mp4,x", "line 2: the offset 'x' is not a number of bytes"),
        (Syntax::Csv, "key,offset\na.mp4,+1", "line 2: the offset '+1'"),
        (Syntax::Csv, "key,offset\na.mp4,99999999999999999999", "line 2: the offset"),
        (
            Syntax::Csv,
            "key,offset,length\na.mp4,1,1000",
            "line 2: the 1000 bytes from 1 on go beyond the end of object 'a.mp4', 1000 bytes",
        ),
        (Syntax::Csv, "key,length\na.mp4,18446744073709551615", "go beyond the end"),
        (Syntax::Csv, "key,offset\na.mp4,1001", "go beyond the end"),
        (Syntax::Csv, "key,x\n\"b,\"\"\n\",1\na.mp4,\"1", "line 4: a quote is not closed"),
        (Syntax::Csv, "key,data\na.mp4,1", "line 2: two fields are named 'data'"),
        (Syntax::Jsonl, "{\"key\":\"a.mp4\"}\n\n{\"key\":1}", "line 3: there is no object '1'"),
        (Syntax::Jsonl, "{\"offset\":1}", "line 1: it has no key"),
        (Syntax::Jsonl, "{\"key\":\"a.mp4\",\"offset\":-1}", "line 1: the offset '-1' is not a number of bytes"),
        (Syntax::Jsonl, "{\"key\":\"a.mp4\"", "line 1: EOF while parsing an object at column 14"),
        (Syntax::Jsonl, "[]", "line 1: invalid type: sequence, expected a map"),
    ] {
        let error = read(syntax, text, 0).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{says}: {error}");
    }
    let deep = format!("{{\"key\":\"a.mp4\",\"x\":{}}}", "[".repeat(100_000));
    assert_eq!(read(Syntax::Jsonl, &deep, 0).unwrap_err().kind(), Kind::Usage);
    let many = (0..70).map(|n| format!("\"{n}\":1")).collect::<Vec<_>>().join(",");
    assert!(read(Syntax::Jsonl, &format!("{{\"key\":\"a.mp4\",{many}}}"), 0).is_err());
    let mut bytes = b"key\n\xFF".to_vec();
    let mut builder = IndexBuilder::new(Format::Manifest, [0; 16], 2);
    let error = scanned(&mut Scan::new(Syntax::Csv, 5, find), &bytes, 0, &mut builder).unwrap_err();
    assert!(error.to_string().contains("line 2: it is not UTF-8"), "{error}");
    bytes.resize(LINE_BYTES_MAX as usize + 10, b'x');
    let error =
        scanned(&mut Scan::new(Syntax::Csv, 1 << 30, find), &[bytes, vec![b'x'; 1 << 26]].concat(), 0, &mut builder);
    assert!(error.unwrap_err().to_string().contains("line 2: it is longer than 16777216 bytes"));
}

#[test]
fn lines_are_read_across_reads() {
    // Longer than one read, with fields that cross its ends.
    let line = |n: usize| format!("a.mp4,{n},\"x\n{}\"\r\n", "y".repeat(n % 5000));
    let text: String = ["key,offset,text\r\n".to_owned()].into_iter().chain((0..900).map(line)).collect();
    let whole = read(Syntax::Csv, &text, text.len()).unwrap();
    assert_eq!(whole.len(), 900);
    assert_eq!(shown(&read(Syntax::Csv, &text, 0).unwrap()), shown(&whole));
    let error = read(Syntax::Csv, &format!("{text}c,0,x"), 0).unwrap_err();
    assert!(error.to_string().contains("line 1802: there is no object 'c'"), "{error}");
    let long = format!("{{\"key\":\"a.mp4\",\"t\":\"{}\"}}\n", "z".repeat(300_000)).repeat(3);
    assert_eq!(read(Syntax::Jsonl, &long, 0).unwrap().len(), 3);
}

proptest! {
    #[test]
    fn any_values_survive_both_syntaxes(rows in proptest::collection::vec((any::<String>(), 0..1000_u64), 0..40)) {
        let mut csv = csv::Writer::from_writer(Vec::new());
        csv.write_record(["key", "offset", "t"]).unwrap();
        let mut jsonl = Vec::new();
        for (text, offset) in &rows {
            csv.write_record(["a.mp4", &offset.to_string(), text]).unwrap();
            serde_json::to_writer(&mut jsonl, &serde_json::json!({"t": text, "key": "a.mp4", "offset": offset})).unwrap();
            jsonl.push(b'\n');
        }
        let texts = [(Syntax::Csv, csv.into_inner().unwrap()), (Syntax::Jsonl, jsonl)];
        for (syntax, bytes) in texts {
            let index = read(syntax, core::str::from_utf8(&bytes).unwrap(), 0).unwrap();
            let read: Vec<_> = index.iter().map(|record| (record.field(0), record.field(1))).collect();
            let expected = rows.iter().map(|(text, offset)| {
                let span = Span { object: 0, offset: *offset, length: 1000 - offset };
                (Some(Field::Span(span)), Some(Field::Value(text.as_bytes())))
            });
            prop_assert_eq!(read, expected.collect::<Vec<_>>());
        }
    }
}
