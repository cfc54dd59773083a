//! What people meet when something common is wrong, word for word: the real program against real servers and the real system, compared
//! with `errors.txt` beside this file. Each error says what happened, and its hint what to do.
//!
//! After a text was changed on purpose: `FUELRAIL_BLESS=1 cargo nextest run -p fuelrail-cli errors`, and read the difference.

use super::seccomp::{IO_URING, refusing, under};
use super::{Ended, PROGRAM, SMALL};
use fuelrail_bucket::{AccessKey, Bucket, BucketConfig, DataSet, Source, Tls};
use rcgen::{CertificateParams, KeyPair};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One situation: a name, the program's arguments, its environment.
struct Case {
    name: &'static str,
    args: Vec<String>,
    variables: Vec<(&'static str, String)>,
    output: Stdio,
    confined: bool,
}

fn case(name: &'static str, args: &[&str]) -> Case {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Case { name, args, variables: Vec::new(), output: Stdio::piped(), confined: false }
}

/// `bench read` of this URI with small settings.
fn read(name: &'static str, uri: &str, args: &[&str]) -> Case {
    case(name, &[&["bench", "read", uri], &SMALL[..], args].concat())
}

impl Case {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Case {
        self.variables.push((name, value.into()));
        self
    }

    fn signing(self, bucket: &Bucket, secret: &str) -> Case {
        let keyed = self.with("AWS_ACCESS_KEY_ID", KEY_ID).with("AWS_SECRET_ACCESS_KEY", secret);
        keyed.with("FUELRAIL_ENDPOINT", format!("http://{}", bucket.addr()))
    }

    /// Runs the program with nothing of this process's environment, at home in `folder`.
    fn run(self, folder: &Path) -> Ended {
        let mut command = Command::new("timeout");
        command.arg("60").arg(PROGRAM).args(&self.args).env_clear().stdin(Stdio::null()).current_dir(folder);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder);
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(self.variables).stdout(self.output);
        let mut run = || Ended::new(command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
        if self.confined { under(&[refusing(&IO_URING, libc::EPERM)], run) } else { run() }
    }
}

const KEY_ID: &str = "AKIAEXAMPLE";

fn bucket_with(change: impl FnOnce(&mut BucketConfig)) -> Bucket {
    let mut config = BucketConfig { source: Source::Generated(DataSet::digits(20, 1)), ..BucketConfig::default() };
    change(&mut config);
    Bucket::start(config).unwrap()
}

fn scripted(script: &str) -> Bucket {
    bucket_with(|config| config.script = script.parse().unwrap())
}

/// A server that answers every request with these bytes.
fn answering(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = tcp.read(&mut request).and_then(|_| tcp.write_all(answer.as_bytes()));
        }
    });
    address
}

const ELSEWHERE: &str = "HTTP/1.1 301 Moved Permanently\r\nContent-Length: 145\r\nConnection: close\r\n\r\n\
    <Error><Code>PermanentRedirect</Code><Message>The bucket you are attempting to access must be addressed using the \
    specified endpoint.</Message></Error>";
const PROXY_AUTHENTICATION: &str = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// A certificate that ended years ago, by itself its own authority, and its key.
fn expired(folder: &Path) -> (PathBuf, Tls) {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(2020, 2, 3));
    let key = KeyPair::generate().unwrap();
    let (certificate, key_file) = (folder.join("expired.pem"), folder.join("expired.key"));
    fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    (certificate.clone(), Tls::Files { certificate, key: key_file })
}

/// The same on every machine and in every run: ports, this test's folder and long numbers are masked.
fn masked(text: &str, folder: &Path) -> String {
    let text = text.replace(folder.to_str().unwrap(), "DIR");
    let (mut out, mut number) = (String::new(), String::new());
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        let is_port = out.ends_with("127.0.0.1:") && number != "1";
        out.push_str(if is_port {
            "PORT"
        } else if number.len() > 6 {
            "NUMBER"
        } else {
            &number
        });
        number.clear();
        out.push(c);
    }
    out.pop();
    // What a resolver says depends on the system's.
    match out.split_once("failed to lookup address information: ") {
        Some((before, after)) => format!("{before}RESOLVER{}", &after[after.find(" (after").unwrap_or(after.len())..]),
        None => out,
    }
}

fn network(folder: &Path, plain: &Bucket, secured: &Bucket) -> Vec<Case> {
    let (certificate, tls) = expired(folder);
    let old = Box::leak(Box::new(bucket_with(|config| config.tls = Some(tls))));
    let at = |address: SocketAddr, rest: &str| format!("http://{address}/{rest}");
    let proxy = format!("http://{}", answering(PROXY_AUTHENTICATION));
    vec![
        case("connection refused", &["ls", "http://127.0.0.1:1/bucket/"]),
        case("host name that does not resolve", &["ls", "http://no-such-host.invalid/bucket/"]),
        case("proxy asks for a password", &["ls", "http://bucket.invalid/set/"]).with("http_proxy", proxy),
        case("expired certificate", &["ls", &old.url("")]).with("FUELRAIL_CA_FILE", certificate.to_str().unwrap()),
        case("certificate of an unknown authority", &["ls", &secured.url("")]),
        case("http:// to a port that speaks TLS", &["ls", &secured.url("").replace("https", "http")]),
        case("https:// to a port that does not", &["ls", &plain.url("").replace("http", "https")]),
        case("bucket of another region", &["ls", &at(answering(ELSEWHERE), "bucket/")]),
    ]
}

fn bucket_says_no(plain: &Bucket, keyed: &Bucket) -> Vec<Case> {
    let endpoint = format!("http://{}", plain.addr());
    let misbehaving = |name, script, more: &[&str]| {
        let bucket = Box::leak(Box::new(scripted(script)));
        read(name, &bucket.url(""), more).with("FUELRAIL_ATTEMPTS_MAX", "2")
    };
    vec![
        case("no credentials", &["ls", "s3://bucket/training/"]).with("FUELRAIL_ENDPOINT", endpoint),
        case("no permission", &["ls", &keyed.url("")]),
        case("wrong secret key", &["ls", "s3://bucket/training/"]).signing(keyed, "wrong"),
        case("no such bucket", &["ls", &plain.url("").replace("/bucket/", "/buckte/")]),
        case("no such object", &["get", &plain.url("training/no.png")]),
        read("nothing under the prefix", &plain.url("trainign/"), &[]),
        misbehaving("throttled until given up", "slowdown=1,only=training/*,per_key_max=99", &[]),
        misbehaving("answers that end early", "truncate=1@10,only=training/*,per_key_max=99", &[]),
        misbehaving("object changed since it was listed", "changed_keys=training/*", &[]),
    ]
}

fn settings(folder: &Path, plain: &Bucket) -> Vec<Case> {
    let uri = &plain.url("");
    let file = folder.join("fuelrail.toml");
    fs::write(&file, "batchsize = 3\n").unwrap();
    let state = folder.join("run.state");
    let earlier = read("", &plain.url("training/1"), &["--state", state.to_str().unwrap()]).run(folder);
    assert_eq!(earlier.code, 0, "{}", earlier.err);
    let refused = read("io_uring refused, and asked for", uri, &["--ring", "uring"]);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    vec![
        read("unknown setting in a file", uri, &["--config", file.to_str().unwrap()]),
        read("misspelt variable", uri, &[]).with("FUELRAIL_BATCHSIZE", "3"),
        read("wrong value", uri, &["--policy", "next-user"]),
        read("relative spill directory", uri, &[]).with("FUELRAIL_SPILL_DIRS", "scratch"),
        read("batch_size 0", uri, &["--batch-size", "0"]),
        case("memory limit too small", &["bench", "read", uri, "--shards", "1", "--memory-limit", "4KiB"]),
        read("state of another data set", uri, &["--state", state.to_str().unwrap()]),
        case("no such folder", &["ls", "/no/such/folder/"]),
        Case { output: Stdio::from(full), ..case("disk full", &["ls", uri]) },
        Case { confined: true, ..refused },
    ]
}

#[test]
fn common_errors_say_what_happened_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let plain = bucket_with(|_| {});
    let secured = bucket_with(|config| config.tls = Some(Tls::SelfSigned));
    let key = AccessKey { id: KEY_ID.into(), secret: "right".into() };
    let keyed = bucket_with(|config| config.key = Some(key));
    let mut told = String::new();
    let cases = network(folder, &plain, &secured).into_iter().chain(bucket_says_no(&plain, &keyed));
    for case in cases.chain(settings(folder, &plain)) {
        let name = case.name;
        let Ended { code, err, .. } = case.run(folder);
        let lines: Vec<&str> = err.lines().skip_while(|line| !line.starts_with("error: ")).collect();
        let [error, hint] = lines[..] else { panic!("{name}: an error and a hint, a line each: {err}") };
        assert!(hint.len() > "hint: ".len() && hint.starts_with("hint: "), "{name}: {err}");
        told.push_str(&format!("# {name} (exit code {code})\n{}\n{}\n\n", masked(error, folder), masked(hint, folder)));
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/errors.txt");
    if std::env::var_os("FUELRAIL_BLESS").is_some() {
        fs::write(&golden, &told).unwrap();
    }
    assert_eq!(told, fs::read_to_string(golden).unwrap(), "see the head of this file");
}
