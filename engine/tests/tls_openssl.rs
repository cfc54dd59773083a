//! Our session against `openssl s_server`, a third-party TLS, told over its console to change keys in mid-body.
//!
//! `scripts/test` installs the program.

use crate::common::secure::{Authority, named};
use crate::common::skip::skip_or_fail;
use fuelrail_base::{Kind, Result};
use fuelrail_bucket::Tls;
use fuelrail_wire::tls::{Client, Plaintext, Roots, Session, Trust};
use rustls::time_provider::DefaultTimeProvider;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

/// `openssl s_server`, its console, and what it printed.
struct Openssl {
    child: Child,
    console: ChildStdin,
    port: u16,
    printed: Arc<Mutex<String>>,
}

impl Openssl {
    fn start(authority: &Authority, suite: &str) -> Option<Openssl> {
        if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
            skip_or_fail("openssl", "it is not installed");
            return None;
        }
        let Tls::Files { certificate, key } = authority.sign_as(suite, &named(&["127.0.0.1"])) else {
            panic!("the authority writes files");
        };
        // Port 0 is announced as `ACCEPT 127.0.0.1:PORT`.
        let mut command = Command::new("openssl");
        command.args(["s_server", "-accept", "127.0.0.1:0", "-tls1_3", "-ciphersuites", suite]);
        command.arg("-cert").arg(certificate).arg("-key").arg(key);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "s_server ended before it listened");
            if let Some(address) = line.trim().strip_prefix("ACCEPT ") {
                break address.rsplit(':').next().unwrap().parse().unwrap();
            }
        };
        let printed = Arc::new(Mutex::new(String::new()));
        let keep = Arc::clone(&printed);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(got @ 1..) = output.read(&mut bytes) {
                keep.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..got]));
            }
        });
        let console = child.stdin.take().unwrap();
        Some(Openssl { child, console, port, printed })
    }

    fn say(&mut self, bytes: &[u8]) {
        self.console.write_all(bytes).unwrap();
        self.console.flush().unwrap();
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    place: Vec<u8>,
}

impl Plaintext for Taken {
    fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.place.resize(bytes, 0);
        Some(&mut self.place)
    }

    fn placed(&mut self, bytes: usize) -> Result<()> {
        self.bytes.extend_from_slice(&self.place[..bytes]);
        Ok(())
    }

    fn given(&mut self, payload: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(payload);
        Ok(())
    }
}

/// One connection of ours.
struct Line {
    tcp: TcpStream,
    session: Session,
    held: Vec<u8>,
    taken: Taken,
}

impl Line {
    fn new(authority: &Authority, port: u16) -> Line {
        let roots = Roots::from_pem(&std::fs::read(authority.file()).unwrap()).unwrap();
        let client = Client::new("127.0.0.1", Trust::Roots(roots), Arc::new(DefaultTimeProvider)).unwrap();
        let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        Line { tcp, session: Session::new(&client).unwrap(), held: Vec::new(), taken: Taken::default() }
    }

    fn flush(&mut self) {
        let mut out = Vec::new();
        self.session.take_output(&mut out);
        self.tcp.write_all(&out).unwrap();
    }

    /// Goes on until `done`; what is due is sent first.
    fn until(&mut self, done: impl Fn(&Line) -> bool) {
        self.flush();
        while !done(self) {
            self.step().unwrap();
            self.flush();
        }
    }

    /// Receives once.
    fn step(&mut self) -> Result<()> {
        let mut bytes = [0; 3000];
        let got = self.tcp.read(&mut bytes).expect("the server says more");
        assert!(got > 0, "the server closed");
        self.held.extend_from_slice(&bytes[..got]);
        let used = self.session.feed(&mut self.held, &mut self.taken)?;
        self.held.drain(..used);
        Ok(())
    }
}

#[test]
fn openssl_changes_keys_in_the_middle_of_a_body() {
    let authority = Authority::new("openssl");
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] {
        let Some(mut openssl) = Openssl::start(&authority, suite) else { return };
        let mut line = Line::new(&authority, openssl.port);
        line.until(|line| line.session.agreed().is_some());
        line.session.seal(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        line.flush();
        let piece = vec![b'x'; 40_000];
        for round in 1..=3 {
            // The console takes a command only at the start of what it reads: each step waits for the one before.
            openssl.say(&piece);
            line.until(|line| line.taken.bytes.len() == (2 * round - 1) * piece.len());
            // `K` wants our key changed too, `k` does not.
            openssl.say(if round % 2 == 1 { b"K\n" } else { b"k\n" });
            line.until(|line| line.session.key_updates() == round as u64);
            openssl.say(&piece);
            line.until(|line| line.taken.bytes.len() == 2 * round * piece.len());
            let text = format!("round {round} of {suite}");
            line.session.seal(text.as_bytes()).unwrap();
            line.flush();
            crate::common::eventually("s_server reads what our new key sealed", || {
                openssl.printed.lock().unwrap().contains(&text)
            });
        }
        assert!(line.taken.bytes.iter().all(|&byte| byte == b'x'), "commands are not payload");
        // `P` sends plain text down the connection.
        openssl.say(b"P\n");
        let error = std::iter::repeat_with(|| line.step()).find_map(Result::err).unwrap();
        assert!(
            error.kind() == Kind::Protocol && error.to_string().contains("where a TLS record was expected"),
            "{error}"
        );
    }
}
