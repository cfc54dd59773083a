//! No secret is in anything the command says or writes: real runs with marked secrets in every place one can come from, against servers
//! that take them, refuse them, and repeat them. All output and every file written is searched, also for percent and base64 forms.
//!
//! There is no louder level of logging, and no page of metrics, that could be asked for besides; panics would be in the output.
mod echo;
mod forms;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use echo::Echo;
use forms::Marker;
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

/// Every secret of these tests begins so. The rest has what escaping changes.
fn marked(what: &str) -> String {
    format!("MARKED{what}/p+q=9")
}

/// A way to bring a secret: variables and files that hold it, and where it is taken.
#[derive(Debug)]
struct Case {
    name: &'static str,
    variables: Vec<(&'static str, String)>,
    /// What every URI begins with, and its endpoint where it names none.
    uri: String,
    endpoint: Option<String>,
    secrets: Vec<String>,
    /// Whether the server takes it.
    serves: bool,
}

/// A folder for what holds secrets and one for what is written, which alone is searched.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        ["kept", "written", "home"].iter().for_each(|name| std::fs::create_dir(folder.path().join(name)).unwrap());
        std::fs::write(folder.path().join("object"), "what is put").unwrap();
        Desk { folder }
    }

    fn written(&self) -> PathBuf {
        self.folder.path().join("written")
    }

    /// A file with secrets. Returns its path.
    fn keep(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join("kept").join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The commands that ask a bucket, each with all it can write.
    fn commands(&self, case: &Case) -> Vec<Vec<String>> {
        if case.uri.is_empty() {
            return own_buckets();
        }
        let object = self.folder.path().join("object");
        let (object, uri) = (object.to_str().unwrap(), case.uri.as_str());
        let key = format!("{uri}k");
        let asks: [&[&str]; 8] = [
            &["ls", uri],
            &["ls", uri, "--long", "--json"],
            &["ls", uri, "--manifest", "listed.tsv"],
            &["put", object, &key],
            &["put", object, &key, "--json"],
            &["get", &key, "-o", "got"],
            &["get", &key, "-o", "got", "--json"],
            &["bench", "read", uri, "--json", "run.json", "--audit", "audit.log", "--state", "state"],
        ];
        let mut commands: Vec<Vec<String>> =
            asks.iter().map(|ask| ask.iter().map(|word| (*word).to_owned()).collect()).collect();
        for command in &mut commands {
            if command[0] == "bench" {
                let small = ["--shards", "1", "--pin", "false", "--memory-limit", "64MiB", "--batch-size", "4"];
                command.extend(small.map(String::from));
            }
        }
        if case.serves {
            let tune =
                ["tune", uri, "--budget", "6s", "--batch-size", "2", "--memory-limit", "64MiB", "--out", "own.toml"];
            commands.push([&tune[..], &["--json", "tuned.json"]].concat().into_iter().map(String::from).collect());
        }
        commands.push(["inspect", "audit.log"].map(String::from).to_vec());
        commands
    }

    /// Runs one command to its end. Returns what it said, and whether it was content.
    fn run(&self, case: &Case, args: &[String]) -> (String, bool) {
        let mut command = Command::new("timeout");
        command.arg("120").arg(env!("CARGO_BIN_EXE_fuelrail")).args(args).env_clear().current_dir(self.written());
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.folder.path().join("home"));
        command.env("RUST_BACKTRACE", "full").env("RUST_LOG", "trace").env("FUELRAIL_ANONYMOUS", "false");
        command
            .env("FUELRAIL_ATTEMPTS_MAX", "2")
            .env("FUELRAIL_OUTAGE_LIMIT", "1s")
            .env("AWS_EC2_METADATA_DISABLED", "true");
        command.envs(case.endpoint.iter().map(|endpoint| ("FUELRAIL_ENDPOINT", endpoint)));
        command.envs(case.variables.iter().map(|(name, value)| (*name, value)));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 100), "{}: {args:?}: {output:?}", case.name);
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (said.concat(), output.status.success())
    }
}

/// What asks no bucket of anybody's, and writes pages and results.
fn own_buckets() -> Vec<Vec<String>> {
    let commands: [&[&str]; 3] = [&["demo", "--quick", "--html", "demo.html"], &["doctor"], &["doctor", "--json"]];
    commands.map(|command| command.iter().map(|word| (*word).to_owned()).collect()).to_vec()
}

/// Everything below a folder, as text, with its name.
fn files(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                return files(&path);
            }
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            vec![(path.display().to_string(), text)]
        })
        .collect()
}

/// What of it is in what was said and written.
fn leaks(desk: &Desk, case: &Case) -> Vec<String> {
    let markers: Vec<Marker> = case.secrets.iter().map(|secret| Marker::of(secret)).collect();
    let mut found = Vec::new();
    let mut search = |place: &str, text: &str| {
        if let Some(form) = markers.iter().find_map(|marker| marker.found_in(text)) {
            found.push(format!("{}: {place}: '{form}' in: {text}", case.name));
        }
    };
    for args in desk.commands(case) {
        let (said, content) = desk.run(case, &args);
        search(&args.join(" "), &said);
        // Whether a line's bars hold is nothing to this machine.
        let about_bucket = !["report", "inspect", "line"].iter().any(|word| args.iter().any(|arg| arg == word));
        assert!(!about_bucket || content == case.serves, "{}: {args:?}: {said}", case.name);
    }
    files(&desk.written()).iter().for_each(|(name, text)| search(name, text));
    found
}

fn bucket() -> (Bucket, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    DataSet::digits(12, 1).write_to(folder.path(), |_| {}).unwrap();
    let source = Source::Directory(folder.path().to_owned());
    let config = BucketConfig { source, writable: true, bucket: "bucket".into(), ..BucketConfig::default() };
    (Bucket::start(config).unwrap(), folder)
}

/// Takes the cases' turns a few at a time: most of one is waiting between attempts.
fn none_leaks(desk: &(dyn Fn() -> Desk + Sync), cases: &[&(dyn Fn(&Desk) -> Case + Sync)]) {
    let (turn, found) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(make) = turn.lock().unwrap().next() else { return };
                    let desk = desk();
                    let case = make(&desk);
                    let leaks = leaks(&desk, &case);
                    found.lock().unwrap().extend(leaks);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn aws_keys() -> (Vec<(&'static str, String)>, Vec<String>) {
    let (secret, token) = (marked("secret"), marked("token"));
    let variables = vec![
        ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.clone()),
        ("AWS_SESSION_TOKEN", token.clone()),
    ];
    (variables, vec![secret, token])
}

mod cases;
