//! Runs a parser over its committed corpus and over seeded mutations of it: what the fuzz targets do, in seconds.

use fuelrail_base::prng::Prng;
use std::path::Path;

const MUTATIONS_PER_FILE: u64 = 1_000;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    // Of the engine, whose folder this crate's is or lies in.
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("fuzz/corpus"));
    let folder = folders.find(|folder| folder.is_dir()).expect("the corpora are there").join(target);
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|item| {
            let path = item.unwrap().path();
            (path.display().to_string(), std::fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// One to four small damages: a flipped bit, a byte from the set that parsers care about, a cut, a repeat, a splice.
fn mutate(prng: &mut Prng, bytes: &mut Vec<u8>, other: &[u8]) {
    const TELLING: &[u8] = b"\r\n\0\t :;,-+%/\\\"'<>&#{}[]09aAfF\x7F\x80\xFF";
    for _ in 0..=prng.below(4) {
        let at = prng.below(bytes.len() as u64 + 1) as usize;
        let len = prng.below(16) as usize;
        let telling = TELLING[prng.below(TELLING.len() as u64) as usize];
        match prng.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << prng.below(8),
            1 if at < bytes.len() => bytes[at] = telling,
            2 => bytes.insert(at, telling),
            3 => drop(bytes.drain(at..(at + len).min(bytes.len()))),
            4 => {
                let piece = bytes[at..(at + len).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let from = prng.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}

/// On a failure the file, the seed and the bytes are printed, and the panic goes on.
fn check(target: fn(&[u8]), name: &str, seed: u64, bytes: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| target(bytes)) {
        eprintln!("{name}, mutation {seed}: b\"{}\"", bytes.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn run(name: &str, target: fn(&[u8])) {
    let files = corpus(name);
    assert!(files.len() >= 10, "the corpus of '{name}' holds only {} files", files.len());
    for (path, bytes) in &files {
        check(target, path, 0, bytes);
        for seed in 1..=MUTATIONS_PER_FILE {
            let mut prng = Prng::new(seed);
            let other = &files[prng.below(files.len() as u64) as usize].1;
            let mut mutant = bytes.clone();
            mutate(&mut prng, &mut mutant, other);
            check(target, path, seed, &mutant);
        }
    }
}
