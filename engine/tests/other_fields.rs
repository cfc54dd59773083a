//! `fields` with `decode`: the other fields of a record come with its pixels, from a loader of its own and from a shared read.

use crate::common::reading::Reading;
use crate::common::{PATIENCE, folder, loader};
use crate::records::golden;
use fuelrail::{BadSamples, Decode, DecodeFunction, Format, Kind, Loader, LoaderBuilder, SampleId};
use fuelrail_format::write::{Value, Writer};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

type Fields = Vec<(String, Vec<u8>)>;

/// Every sample of a run with its fields.
fn fields_of(mut loader: Loader) -> BTreeMap<SampleId, Fields> {
    let mut all = BTreeMap::new();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        for (i, id) in batch.ids().iter().enumerate() {
            let fields: Fields = batch.fields(i).map(|(name, bytes)| (name.to_owned(), bytes.into_owned())).collect();
            for (name, _) in &fields {
                let first = fields.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.as_slice());
                assert_eq!(batch.field(i, name).as_deref(), first);
            }
            all.insert(*id, fields);
        }
    }
    all
}

/// Decodes the length of a field, and looks at all others.
fn lengths(raw: BTreeMap<SampleId, Fields>, decoded: &str) -> DecodeFunction {
    let decoded = decoded.to_owned();
    DecodeFunction::new(move |sample, out| {
        let known = |name: &str| raw[&sample.id].iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes);
        assert_eq!(known(&decoded).map(Vec::as_slice), Some(sample.bytes));
        assert!(
            raw[&sample.id].iter().all(|(name, _)| sample.field(name).as_deref() == known(name).map(Vec::as_slice))
        );
        assert!(sample.field("unknown").is_none());
        out.copy_from_slice(&(sample.bytes.len() as u64).to_le_bytes());
        Ok(())
    })
}

#[test]
fn every_other_field_of_every_format_comes_with_what_is_decoded() {
    for (name, format) in [
        ("webdataset.tar", Format::WebDataset),
        ("mds", Format::Mds),
        ("examples.tfrecord", Format::TfRecord),
        #[cfg(feature = "parquet")]
        ("rows-snappy.parquet", Format::Parquet),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let place = if golden(name).is_dir() { golden(name) } else { dir.path().to_owned() };
        if golden(name).is_file() {
            fs::copy(golden(name), place.join(name)).unwrap();
        }
        let bucket = folder(&place, "");
        let builder = || loader(&bucket).format(format).shuffle(false).batch_size(3).bad_samples(BadSamples::Skip);
        let raw = fields_of(builder().build().unwrap());
        let names: std::collections::BTreeSet<&String> = raw.values().flatten().map(|(name, _)| name).collect();
        assert!(names.len() > 1, "{name}: {names:?}");
        for decoded in &names {
            let function = lengths(raw.clone(), decoded);
            let decoding = builder().decode_field(*decoded).decode_with(Decode::exact(1, 8, 1), function);
            let decoding = decoding.fields(names.iter().map(ToString::to_string));
            let mut expected = raw.clone();
            // A record without that field is a bad sample, and left out; of several texts the first is decoded.
            expected.retain(|_, fields| fields.iter().any(|(name, _)| name == *decoded));
            for fields in expected.values_mut() {
                fields.remove(fields.iter().position(|(name, _)| name == *decoded).unwrap());
            }
            assert_eq!(fields_of(decoding.build().unwrap()), expected, "{name}: {decoded}");
        }
    }
}

/// Pictures with captions, and a file among them that is no picture.
fn captioned(dir: &Path) {
    let picture = crate::common::pictures::scene(8, 8, 3);
    let picture = crate::common::pictures::png(8, 8, png::ColorType::Rgb, png::BitDepth::Eight, &picture);
    for n in 0..40 {
        let bytes = if n == 17 { b"no picture" } else { picture.as_slice() };
        fs::write(dir.join(format!("{n:02}.png")), bytes).unwrap();
        // Of the last ones more than all pixels of a batch.
        fs::write(dir.join(format!("{n:02}.txt")), format!("caption {n} ").repeat(if n < 30 { 1 } else { 2_000 }))
            .unwrap();
    }
}

#[test]
fn captions_come_with_pictures_that_are_decoded_once_for_all_jobs_or_by_each() {
    let (files, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    captioned(files.path());
    let bucket = folder(files.path(), "");
    let raw = || loader(&bucket).format(Format::Objects).side_cars(["txt"]).batch_size(7).bad_samples(BadSamples::Skip);
    let plain = || raw().decode(Decode::exact(8, 8, 3));
    let decoded = || plain().fields(["txt"]);
    assert!(fields_of(plain().build().unwrap()).values().all(Vec::is_empty), "none that was not asked for");
    let expected = Arc::new(fields_of(decoded().build().unwrap()));
    assert_eq!(expected.len(), 39);
    for (id, fields) in &*expected {
        let [(name, caption)] = &fields[..] else { panic!("{id:?}: {fields:?}") };
        assert!(name == "txt" && caption.starts_with(format!("caption {} ", id.0).as_bytes()), "{id:?}");
    }
    let job = |builder: LoaderBuilder| builder.share_dir(dir.path()).shared_read(true).build().unwrap();
    for (reader, decodes) in [(decoded(), false), (raw(), true)] {
        let reading = Reading::start(reader, dir.path(), 2, PATIENCE);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let loader = job(decoded());
                    assert_eq!(loader.stats().decode.is_some(), decodes);
                    assert!(fields_of(loader) == *expected);
                });
            }
        });
        assert_eq!(reading.end().0.slots, 0);
    }
}

#[test]
fn a_job_with_other_fields_is_refused_by_a_process_that_decodes_and_has_its_own_from_one_that_does_not() {
    let (files, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    captioned(files.path());
    let bucket = folder(files.path(), "");
    let raw = |language: &str| {
        let lines = (0..9).map(|n| format!("{n:02}.png,{language} {n}\n"));
        let file = dir.path().join(format!("{language}.csv"));
        fs::write(&file, format!("key,txt\n{}", lines.collect::<String>())).unwrap();
        loader(&bucket).format(Format::Manifest).record_file(file).decode_field("data")
    };
    let decoded = |language| raw(language).decode(Decode::exact(8, 8, 3)).fields(["txt"]);
    let job = |builder: LoaderBuilder| builder.share_dir(dir.path()).shared_read(true).build();
    let reading = Reading::start(decoded("english"), dir.path(), 1, PATIENCE);
    let error = job(decoded("french")).unwrap_err();
    assert!(error.kind() == Kind::Usage && error.hint().unwrap().contains("record_file"), "{error}");
    let of = |language: &str, loader| {
        let all = fields_of(loader);
        assert_eq!(all.len(), 9);
        for (id, fields) in all {
            assert_eq!(fields, [("txt".to_owned(), format!("{language} {}", id.0).into_bytes())]);
        }
    };
    of("english", job(decoded("english")).unwrap());
    drop(reading);
    let reading = Reading::start(raw("english"), dir.path(), 1, PATIENCE);
    of("french", job(decoded("french")).unwrap());
    drop(reading);
}

#[test]
fn fields_keep_their_samples_whatever_becomes_of_bad_ones() {
    let files = tempfile::tempdir().unwrap();
    captioned(files.path());
    let bucket = folder(files.path(), "");
    let run = |policy| {
        let builder = loader(&bucket).format(Format::Objects).side_cars(["txt"]).batch_size(7).bad_samples(policy);
        builder.decode(Decode::exact(8, 8, 3)).fields(["txt"]).epochs(3).build().unwrap()
    };
    for policy in [BadSamples::Skip, BadSamples::Quarantine] {
        for batch in run(policy) {
            let batch = batch.unwrap();
            let apart = batch.other_fields();
            for (i, id) in batch.ids().iter().enumerate() {
                let caption = batch.field(i, "txt").unwrap();
                assert!(caption.starts_with(format!("caption {} ", id.0).as_bytes()));
                assert_eq!((apart.field(i, "txt"), apart.fields(i).count()), (Some(&*caption), 1));
            }
            assert_eq!(batch.bytes().len(), batch.len() * 8 * 8 * 3, "pixels and nothing else");
        }
    }
    let error = run(BadSamples::Raise).find_map(Result::err).unwrap();
    assert!(error.kind() == Kind::Undecodable && error.object().is_some_and(|key| key.contains("17")), "{error}");
}

#[test]
fn fields_have_room_in_the_budget_and_must_be_there() {
    let files = tempfile::tempdir().unwrap();
    captioned(files.path());
    let bucket = folder(files.path(), "");
    let raw = || loader(&bucket).format(Format::Objects).side_cars(["txt"]).batch_size(7).decode_depth(2);
    let decoded = || raw().decode(Decode::exact(8, 8, 3));
    let extra = |builder: LoaderBuilder| builder.build().unwrap().stats().memory.arena_bytes;
    assert!(extra(decoded()) <= extra(decoded().fields(["txt"])));
    let error = decoded().fields(["text"]).build().unwrap_err();
    assert!(error.to_string().contains("fields is 'text', and the records have "), "{error}");
    let error = raw().fields(["txt"]).build().unwrap_err();
    assert!(error.to_string().contains("fields is set, and format is objects"), "{error}");
    let error = loader(&bucket).decode(Decode::exact(8, 8, 3)).fields(["txt"]).build().unwrap_err();
    assert!(error.to_string().contains("fields is set, and format is none"), "{error}");
}

#[test]
fn fields_whose_lengths_the_index_lacks_share_a_room_and_what_is_beyond_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(Format::TfRecord, 1 << 30, None).unwrap();
    for n in 0..16_usize {
        // One of four is long: together they fit, and four of the last do not.
        let text = "x".repeat(if n % 4 == 0 || n >= 12 { 100_000 } else { n });
        let row = [("image", Value::Bytes(b"a picture")), ("txt", Value::Bytes(text.as_bytes()))];
        assert!(writer.push(None, &row).unwrap());
    }
    fs::write(dir.path().join("a.tfrecord"), writer.finish()).unwrap();
    let bucket = folder(dir.path(), "");
    let function = DecodeFunction::new(|_, out| {
        out.fill(0);
        Ok(())
    });
    let builder = loader(&bucket).format(Format::TfRecord).shuffle(false).batch_size(4).fields(["txt"]);
    let mut loader = builder.decode_with(Decode::exact(8, 8, 1), function).build().unwrap();
    for first in [0, 4, 8] {
        let batch = loader.next_batch().unwrap().unwrap();
        let lengths: Vec<_> = (0..4).map(|i| batch.field(i, "txt").unwrap().len()).collect();
        assert_eq!(lengths, [100_000, first + 1, first + 2, first + 3]);
    }
    let error = loader.next_batch().unwrap().unwrap_err();
    assert!(error.kind() == Kind::Usage && error.hint().unwrap().contains("--format webdataset"), "{error}");
}
