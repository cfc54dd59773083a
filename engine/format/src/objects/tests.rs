use super::*;
use crate::{Format, Index};

fn records(keys: &[&str], side_cars: bool, labels: bool) -> Result<Vec<String>> {
    let mut builder = IndexBuilder::new(Format::Objects, [0; 16], 100);
    let mut records = Records::new(side_cars, labels);
    for (number, key) in keys.iter().enumerate() {
        records.add(number as u32, key, 10 + number as u64, &mut builder)?;
    }
    records.finish(&mut builder)?;
    let index = Index::open(builder.to_bytes())?;
    let shown = |field| match field {
        Field::Span(span) => format!("{}+{}", span.object, span.length),
        Field::Value(value) => value.escape_ascii().to_string(),
    };
    Ok(index
        .iter()
        .map(|record| {
            let fields: Vec<String> = record.fields().map(|(name, field)| format!("{name}={}", shown(field))).collect();
            format!("{} {}", record.key().unwrap().escape_ascii(), fields.join(" "))
        })
        .collect())
}

#[test]
fn objects_are_records_with_the_folder_as_label() {
    let keys = ["a.txt", "cat/", "cat/1.JPG", "cat/2.png", "x/dog/README", "x/dog/b.c.jpg"];
    let expected = [
        "a txt=0+10",
        "cat/1 label=cat jpg=2+12",
        "cat/2 label=cat png=3+13",
        "x/dog/README label=dog =4+14",
        "x/dog/b.c label=dog jpg=5+15",
    ];
    let sorted = |line: &String| {
        let mut words: Vec<&str> = line.split(' ').collect();
        words.sort_unstable();
        words.join(" ")
    };
    let found = records(&keys, false, true).unwrap();
    assert_eq!(found.iter().map(sorted).collect::<Vec<_>>(), expected.map(|line| sorted(&line.to_owned())));
    assert_eq!(records(&keys[..3], false, false).unwrap(), ["a txt=0+10", "cat/1 jpg=2+12"]);
}

#[test]
fn side_cars_join_whatever_stands_between() {
    let keys = ["a.jpg", "a.jpg.txt", "a.json", "a.x.b", "a.x.c", "a.z", "b.json", "c.d", "c/1.jpg"];
    let expected = [
        "a.jpg txt=1+11",
        "a.x b=3+13 c=4+14",
        "a jpg=0+10 json=2+12 z=5+15",
        "b json=6+16",
        "c d=7+17",
        "c/1 jpg=8+18",
    ];
    assert_eq!(records(&keys, true, false).unwrap(), expected);
    assert_eq!(records(&keys[..3], false, false).unwrap(), ["a jpg=0+10", "a.jpg txt=1+11", "a json=2+12"]);
}

#[test]
fn flaws_name_the_object() {
    let error = records(&["a.JPG", "a.jpg"], true, false).unwrap_err();
    assert!(
        error.object() == Some("a.jpg") && error.to_string().contains("duplicate field 'jpg' of record 'a'"),
        "{error}"
    );
    let keys: Vec<String> = (0..65).map(|n| format!("a.{n:02}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert!(records(&keys, true, false).unwrap_err().to_string().contains("field '64': an index holds at most 64"));
}
