//! Records that have to be unpacked, through the loader: rows of Parquet files and samples of compressed shards.

use crate::common::loader_at;
use crate::records::golden;
use fuelrail::Format;

/// By the loader, in any order, and by those who read each record once.
#[test]
fn samples_of_compressed_shards_are_read_and_mixed() {
    for name in ["mds-zstd", "mds-gz"] {
        let builder = loader_at(golden(name).to_str().unwrap()).format(Format::Mds).batch_size(3).epochs(2);
        let packed = fuelrail::internal::PackedRecords::open(&builder, &[]).unwrap().unwrap();
        let mut expected = Vec::new();
        let owned = |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), bytes.to_vec());
        let take = &mut |_, fields: &[(&str, &[u8])]| {
            expected.push(fields.iter().map(owned).collect::<Vec<_>>());
            Ok::<(), fuelrail::Error>(())
        };
        packed.read(0..packed.count(), take).unwrap();
        assert!(expected.len() > 3 && expected.iter().all(|fields| fields.len() > 1));
        let mut times = vec![0; expected.len()];
        for batch in builder.build().unwrap() {
            let batch = batch.unwrap();
            for (i, id) in batch.ids().iter().enumerate() {
                let fields = batch.fields(i).map(|(name, bytes)| (name.to_owned(), bytes.into_owned()));
                assert_eq!(fields.collect::<Vec<_>>(), expected[id.0 as usize]);
                times[id.0 as usize] += 1;
            }
        }
        assert!(times.iter().all(|times| *times == 2), "{name}: {times:?}");
    }
}

/// As `merge_index` leaves it: the index of all lies above those of the folders. And a folder of a writer that was given no sample.
#[test]
fn shards_that_two_indexes_name_are_read_once_and_a_folder_without_samples_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let [own, empty] = ["0", "-"].map(|name| dir.path().join(name));
    std::fs::create_dir(&own).unwrap();
    for file in std::fs::read_dir(golden("mds-zstd")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), own.join(file.file_name())).unwrap();
    }
    let samples = || loader_at(dir.path().to_str().unwrap()).format(Format::Mds).build().unwrap().samples();
    let alone = samples();
    let index = std::fs::read_to_string(own.join("index.json")).unwrap();
    std::fs::write(dir.path().join("index.json"), index.replace("\"shard.", "\"0/shard.")).unwrap();
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("index.json"), r#"{"version": 2, "shards": []}"#).unwrap();
    assert_eq!(samples(), alone);
}

#[cfg(feature = "parquet")]
mod parquet {
    use super::*;
    use crate::common::pictures::{png, scene};
    use crate::common::{eventually, folder, kept_in, loader, needed};
    use ::png::{BitDepth, ColorType};
    use fuelrail::{BadSamples, ByteSize, Decode, Kind, Loader, LoaderBuilder, OrderName, State, Stats};
    use fuelrail_format::write::{Value, Writer};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    type Row = (i64, Vec<u8>);

    /// Files of one row group each, of between `rows / 2` and `rows` rows.
    fn write(dir: &Path, files: usize, rows: usize) -> Vec<Row> {
        let mut all = Vec::new();
        for file in 0..files {
            let mut writer = Writer::new(Format::Parquet, 1 << 30, None).unwrap();
            for _ in 0..rows / 2 + file * 7 % (rows / 2) {
                let n = all.len();
                let bytes: Vec<u8> = (0..n * 37 % 900).map(|at| ((at * (n + 1)) >> 2) as u8).collect();
                let row =
                    [("id", Value::Int(n as i64)), ("bin", Value::Bytes(&bytes)), ("cls", Value::Int(n as i64 % 10))];
                assert!(writer.push(None, &row).unwrap());
                all.push((n as i64, bytes));
            }
            fs::write(dir.join(format!("part-{file:03}.parquet")), writer.finish()).unwrap();
        }
        all
    }

    fn parquet(uri: &str) -> LoaderBuilder {
        loader_at(uri).format(Format::Parquet).label_field("cls").batch_size(16)
    }

    /// So small that not all parts are unpacked at once.
    fn mixed(builder: LoaderBuilder) -> LoaderBuilder {
        builder.chunk_size(ByteSize(64 << 10)).chunk_window(16)
    }

    /// The rest of a run: position and record of each sample, after every field of it was compared.
    fn drain(loader: &mut Loader, all: &[Row], batches: usize) -> Vec<(u64, u64, u64)> {
        let mut seen = Vec::new();
        for batch in loader.by_ref().take(batches) {
            let batch = batch.unwrap();
            for ((i, sample), position) in batch.samples().enumerate().zip(batch.positions()) {
                let (id, bytes) = &all[sample.id.0 as usize];
                assert_eq!(batch.field(i, "id").as_deref(), Some(&id.to_le_bytes()[..]));
                assert_eq!(batch.field(i, "bin").as_deref(), Some(&bytes[..]));
                assert_eq!((sample.label, batch.fields(i).count()), ((id % 10) as u32, 3));
                seen.push((batch.epoch(), position, sample.id.0));
            }
        }
        seen
    }

    fn once_each(seen: &[(u64, u64, u64)], epochs: u64, all: &[Row]) {
        for epoch in 0..epochs {
            let mut ids: Vec<u64> = seen.iter().filter(|(of, ..)| *of == epoch).map(|(.., id)| *id).collect();
            ids.sort_unstable();
            assert_eq!(ids, (0..all.len() as u64).collect::<Vec<_>>(), "epoch {epoch}");
        }
    }

    #[test]
    fn every_row_comes_once_an_epoch_and_parts_are_read_hardly_more_often() {
        let dir = tempfile::tempdir().unwrap();
        let all = write(dir.path(), 96, 60);
        let bucket = folder(dir.path(), "");
        let build = || mixed(parquet(&bucket.url(""))).epochs(2).build().unwrap();
        let mut loader = build();
        assert_eq!(loader.config().order.name, OrderName::Chunks);
        assert!(loader.notices().iter().any(|line| line.contains("raise chunk_window")), "{:?}", loader.notices());
        let seen = drain(&mut loader, &all, usize::MAX);
        once_each(&seen, 2, &all);
        assert_eq!(drain(&mut build(), &all, usize::MAX), seen, "the order is a function of the seed");
        let orders =
            [0, 1].map(|epoch| seen.iter().filter(|(of, ..)| *of == epoch).map(|(.., id)| *id).collect::<Vec<_>>());
        assert_ne!(orders[0], orders[1]);
        // 96 parts an epoch, each read once, but for those where the groups meet and where they begin.
        let stats = loader.stats();
        assert!((192..=192 * 3 / 2).contains(&stats.requests), "{} requests", stats.requests);
        assert_eq!((stats.samples, stats.batches), (2 * all.len() as u64, loader.batches()));
        assert!(stats.landed_bytes > 0);
    }

    #[test]
    fn a_set_that_is_unpacked_as_a_whole_is_read_once_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let all = write(dir.path(), 12, 60);
        let bucket = folder(dir.path(), "");
        let mut loader = parquet(&bucket.url("")).epochs(5).build().unwrap();
        once_each(&drain(&mut loader, &all, usize::MAX), 5, &all);
        assert_eq!((loader.config().order.name, loader.stats().requests), (OrderName::Global, 12));
        let in_order: Vec<u64> =
            drain(&mut mixed(parquet(&bucket.url(""))).shuffle(false).build().unwrap(), &all, usize::MAX)
                .iter()
                .map(|(.., id)| *id)
                .collect();
        assert_eq!(in_order, (0..all.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_goes_on_in_the_middle_of_an_epoch_with_another_number_of_ranks() {
        let dir = tempfile::tempdir().unwrap();
        let all = write(dir.path(), 64, 60);
        let uri = dir.path().to_str().unwrap();
        let rank = |rank: u32, world: u32, state: Option<&State>| {
            let builder = mixed(parquet(uri)).epochs(2).batch_size(8).rank(rank).world(world);
            let mut loader = match state {
                Some(state) => builder.resume(state.clone()),
                None => builder,
            }
            .build()
            .unwrap();
            let batches = if world == 1 { usize::MAX } else { 30 };
            (drain(&mut loader, &all, batches), loader.state())
        };
        let step = |world, state: Option<&State>| {
            let ranks: Vec<_> = (0..world).map(|number| rank(number, world, state)).collect();
            assert!(ranks.iter().all(|(_, state)| *state == ranks[0].1));
            let state = ranks[0].1.clone();
            (ranks.into_iter().flat_map(|(seen, _)| seen).collect::<Vec<_>>(), state)
        };
        let (mut seen, state) = step(2, None);
        let (more, state) = step(3, Some(&state));
        seen.extend(more);
        seen.extend(step(1, Some(&state)).0);
        once_each(&seen, 2, &all);
        // A range of positions holds the same samples for any number of ranks.
        let alone = step(1, None).0;
        let stretch = |seen: &[(u64, u64, u64)], end| {
            let mut ids: Vec<u64> =
                seen.iter().filter(|(epoch, at, _)| *epoch == 0 && *at < end).map(|(.., id)| *id).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(stretch(&seen, 480), stretch(&alone, 480));
    }

    #[test]
    fn only_columns_that_are_named_are_read_and_nulls_are_fields_that_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(golden("rows-snappy.parquet"), dir.path().join("train.parquet")).unwrap();
        let uri = dir.path().to_str().unwrap();
        let read = |builder: LoaderBuilder| -> Vec<BTreeMap<String, Vec<u8>>> {
            let batches = builder.shuffle(false).build().unwrap().map(Result::unwrap);
            let fields = |batch: &fuelrail::Batch, i| -> BTreeMap<_, _> {
                batch.fields(i).map(|(name, bytes)| (name.to_owned(), bytes.into_owned())).collect()
            };
            batches.flat_map(|batch| (0..batch.len()).map(|i| fields(&batch, i)).collect::<Vec<_>>()).collect()
        };
        let all = read(loader_at(uri).format(Format::Parquet));
        let names: std::collections::BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
        assert!(names.len() > 3 && all.iter().any(|row| row.len() < names.len()), "some are null: {names:?}");
        let name = names.iter().next().unwrap().as_str();
        let some = read(loader_at(uri).format(Format::Parquet).fields([name]));
        let expected: Vec<BTreeMap<String, Vec<u8>>> = all
            .iter()
            .map(|row| {
                row.iter()
                    .filter(|(field, _)| *field == name)
                    .map(|(field, bytes)| (field.clone(), bytes.clone()))
                    .collect()
            })
            .collect();
        assert_eq!(some, expected);
        let refused = |builder: LoaderBuilder| builder.build().unwrap_err().to_string();
        assert!(refused(loader_at(uri).format(Format::Parquet).fields(["none"])).contains("named 'none'"));
        assert!(refused(loader_at(uri).format(Format::WebDataset).fields([name])).contains("format is webdataset"));
    }

    #[test]
    fn files_of_a_set_may_have_their_columns_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let rows: Vec<[String; 2]> = (0..40).map(|n| [format!("a{n}").repeat(n % 3), format!("b{n}")]).collect();
        for (name, is_swapped) in [("0.parquet", false), ("1.parquet", true)] {
            let mut writer = Writer::new(Format::Parquet, 1 << 30, None).unwrap();
            for [a, b] in &rows {
                let [first, second] = if is_swapped { [b, a] } else { [a, b] };
                let row = [("column_a", Value::Bytes(first.as_bytes())), ("column_b", Value::Bytes(second.as_bytes()))];
                assert!(writer.push(None, &row).unwrap());
            }
            let mut file = writer.finish().to_vec();
            // The writer sorts columns by name: the names change places after it.
            let names: Vec<usize> = (0..file.len()).filter(|at| file[*at..].starts_with(b"column_")).collect();
            assert!(!names.is_empty());
            names.iter().filter(|_| is_swapped).for_each(|at| file[at + 7] ^= b'a' ^ b'b');
            fs::write(dir.path().join(name), file).unwrap();
        }
        let mut samples = 0;
        for batch in loader_at(dir.path().to_str().unwrap()).format(Format::Parquet).batch_size(16).build().unwrap() {
            let batch = batch.unwrap();
            for (i, id) in batch.ids().iter().enumerate() {
                let [a, b] = &rows[id.0 as usize % rows.len()];
                assert_eq!(batch.field(i, "column_a").as_deref(), Some(a.as_bytes()));
                assert_eq!(batch.field(i, "column_b").as_deref(), Some(b.as_bytes()));
            }
            samples += batch.len();
        }
        assert_eq!(samples, 2 * rows.len());
    }

    #[test]
    fn pictures_in_rows_are_decoded() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(Format::Parquet, 1 << 30, None).unwrap();
        let pixels: Vec<Vec<u8>> =
            (0..20).map(|n| scene(8, 8, 3).iter().map(|byte| byte.wrapping_add(n * 11)).collect()).collect();
        for (n, pixels) in pixels.iter().enumerate() {
            let picture = png(8, 8, ColorType::Rgb, BitDepth::Eight, pixels);
            writer.push(None, &[("png", Value::Bytes(&picture)), ("cls", Value::Int(n as i64))]).unwrap();
        }
        fs::write(dir.path().join("a.parquet"), writer.finish()).unwrap();
        let builder =
            parquet(dir.path().to_str().unwrap()).decode(Decode::exact(8, 8, 3)).decode_threads(2).batch_size(6);
        let mut labels = Vec::new();
        for batch in builder.build().unwrap() {
            let batch = batch.unwrap();
            for (sample, label) in batch.samples().zip(batch.labels()) {
                assert!(sample.bytes == pixels[*label as usize]);
                labels.push(*label);
            }
        }
        labels.sort_unstable();
        assert_eq!(labels, (0..20).collect::<Vec<u32>>());
    }

    #[test]
    fn a_part_that_cannot_be_had_is_named_and_may_be_left_out() {
        let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let all = write(dir.path(), 5, 600);
        let bucket = folder(dir.path(), "");
        let builder = || loader(&bucket).format(Format::Parquet).listing_dir(kept.path()).batch_size(16);
        let found = |loader: &Loader| loader.notices().iter().any(|line| line.contains("records found by reading"));
        assert!(found(&builder().build().unwrap()) && !found(&builder().build().unwrap()), "the index is kept");
        assert!(kept_in(kept.path()).iter().any(|path| path.to_string_lossy().ends_with("parquet-records")));
        // Its length and time stay, so the index that was kept is taken.
        let path = dir.path().join("part-002.parquet");
        let (mut bytes, time) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
        bytes[8..40].fill(0xFF);
        fs::write(&path, &bytes).unwrap();
        fs::File::open(&path).unwrap().set_modified(time).unwrap();
        let error = builder().build().unwrap().find_map(Result::err).expect("a part is damaged");
        assert!(error.kind() == Kind::Undecodable && error.to_string().contains("part-002.parquet"), "{error}");
        let (mut samples, mut left_out) = (0, 0);
        for batch in builder().bad_samples(BadSamples::Skip).build().unwrap() {
            let batch = batch.unwrap();
            samples += batch.len();
            left_out += batch.left_out().len();
            assert!(batch.left_out().iter().all(|(_, error)| error.to_string().contains("part-002.parquet")));
        }
        let damaged = 300 + 2 * 7;
        assert_eq!((samples, left_out), (all.len() - damaged, damaged));
    }

    #[test]
    fn a_disk_keeps_parts_as_they_are_packed() {
        let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let all = write(dir.path(), 48, 600);
        let bucket = folder(dir.path(), "");
        let run = || {
            let builder = mixed(parquet(&bucket.url("")))
                .spill_dirs([disk.path()])
                .spill_limit(ByteSize(64 << 20))
                .spill_floor(ByteSize(0));
            let mut loader = builder.build().unwrap();
            once_each(&drain(&mut loader, &all, usize::MAX), 1, &all);
            let stats = loader.stats();
            let disk = stats.disk.expect("there is one");
            assert!(disk.hits == 0 || disk.segments_made + disk.segments_taken_over > 0, "{disk:?}");
            (stats.requests, disk.hits)
        };
        assert!(run().0 >= 48, "the first run reads the bucket");
        // A busy disk may refuse some of what comes.
        assert!((0..10).any(|_| matches!(run(), (0, 48..))), "all is on the disk by now");
    }

    #[test]
    fn loaders_of_parts_have_the_shards_that_are_set_and_count_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let all = write(dir.path(), 16, 600);
        assert!(all.len() > 4096, "in order, one loader reads the parts of the first rows, and one the rest");
        let bucket = folder(dir.path(), "");
        let fetch = |stats: &Stats| stats.gates.iter().find(|gate| gate.name == "fetch").unwrap().capacity;
        for shards in [1, 3] {
            // Mixed, the first batches need all parts: one loader reads them.
            let [one, two] = [true, false].map(|shuffle| {
                let mut loader = parquet(&bucket.url("")).shards(shards).shuffle(shuffle).build().unwrap();
                let mut seen = drain(&mut loader, &all, 1);
                assert_eq!(loader.stats().shards.len(), usize::from(shards));
                seen.extend(drain(&mut loader, &all, usize::MAX));
                once_each(&seen, 1, &all);
                eventually("the last loader ends", || loader.stats().connections_open == 0);
                loader.stats()
            });
            assert_eq!((one.shards.len(), two.shards.len()), (usize::from(shards), usize::from(shards)));
            assert_eq!((one.requests, two.requests), (16, 16));
            assert_eq!(fetch(&one), fetch(&two));
        }
    }

    #[test]
    fn many_shards_read_a_set_in_little_memory_or_the_start_says_how_much_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let all = write(dir.path(), 16, 600);
        let bucket = folder(dir.path(), "");
        let build = |bytes| parquet(&bucket.url("")).shards(3).memory_limit(ByteSize(bytes)).build();
        let (mut bytes, mut read) = (5 << 20, 0);
        while read < 3 {
            match build(bytes) {
                Ok(mut loader) => {
                    once_each(&drain(&mut loader, &all, usize::MAX), 1, &all);
                    read += 1;
                }
                Err(error) => {
                    assert!(error.kind() == Kind::Budget && error.to_string().contains("memory_limit"), "{error}");
                    assert!(read == 0 && bytes < 64 << 20, "refused at {bytes} bytes: {error}");
                }
            }
            bytes += 256 << 10;
        }
    }

    #[test]
    fn the_memory_that_an_error_names_suffices_for_parts_and_batches() {
        let dir = tempfile::tempdir().unwrap();
        let all = write(dir.path(), 16, 600);
        let bucket = folder(dir.path(), "");
        for (batch_size, held) in [(16, 0), (4000, 0), (4000, 2)] {
            let build = |bytes| {
                let builder = parquet(&bucket.url("")).batch_size(batch_size).batches_held(held);
                builder.memory_limit(ByteSize(bytes)).build()
            };
            let need = needed(&build(1 << 20).expect_err("less than the parts take"));
            // What is less than needed for batches is refused with the same number.
            if held == 0 {
                assert_eq!(needed(&build(need - 8192).expect_err("too small")), need);
            }
            once_each(&drain(&mut build(need).unwrap(), &all, usize::MAX), 1, &all);
        }
    }

    #[test]
    fn what_does_not_go_with_it_is_refused_and_memory_that_is_short_is_told() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 40, 60);
        let uri = dir.path().to_str().unwrap();
        let error = mixed(parquet(uri)).cache_limit(ByteSize(1 << 20)).build().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("cache_limit"), "{error}");
        let error = mixed(parquet(uri)).chunk_window(4).order(OrderName::Sticky).build().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("order is sticky"), "{error}");
        let error = parquet(uri).memory_limit(ByteSize(1 << 20)).build().unwrap_err();
        assert!(error.kind() == Kind::Budget && error.to_string().contains("unpacked as a whole"), "{error}");
        // Batches that are held for ever are found out.
        let mut loader = parquet(uri).memory_limit(ByteSize(24 << 20)).batch_size(400).build().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match loader.next_batch() {
                Some(Ok(batch)) => held.push(batch),
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        if let Some(error) = error {
            assert!(error.kind() == Kind::Budget && error.to_string().contains("batches you hold"), "{error}");
        }
        // One that is dropped in the middle ends its threads.
        let mut loader = mixed(parquet(uri)).epochs(1000).build().unwrap();
        assert!(loader.next_batch().unwrap().is_ok());
        drop(loader);
    }
}
