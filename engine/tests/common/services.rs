//! Small services for tests of credentials: one that hands them out, and a gate before a bucket that looks at them.

use fuelrail_bucket::Bucket;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A request, as a service hears it.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// `GET /path?query`.
    pub line: String,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Heard {
    /// A header's value, empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Reads a request, and gives its bytes as well; `None` at the end of the stream.
    pub fn read(from: &mut impl BufRead) -> Option<(Heard, Vec<u8>)> {
        let mut raw = head(from)?;
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.lines();
        let line = lines.next()?.trim_end_matches(" HTTP/1.1").to_string();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_string())).collect();
        let mut heard = Heard { line, headers, body: String::new() };
        let len: usize = heard.header("content-length").parse().unwrap_or(0);
        let mut body = vec![0; len];
        from.read_exact(&mut body).ok()?;
        heard.body = String::from_utf8_lossy(&body).into_owned();
        raw.extend_from_slice(&body);
        Some((heard, raw))
    }
}

/// A request's head with its blank line; `None` where the stream ends before.
pub fn head(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut raw = Vec::new();
    while !raw.ends_with(b"\r\n\r\n") {
        if from.read_until(b'\n', &mut raw).ok()? == 0 {
            return None;
        }
    }
    Some(raw)
}

/// What is answered: status, further header lines, body.
pub struct Answer(pub u16, pub String, pub String);

impl Answer {
    /// 200 with a body.
    pub fn ok(body: impl Into<String>) -> Answer {
        Answer(200, String::new(), body.into())
    }

    /// An S3 error document.
    pub fn refusal(status: u16, code: &str, headers: &str) -> Answer {
        let body = format!("<Error><Code>{code}</Code><Message>No.</Message></Error>");
        Answer(status, headers.into(), body)
    }

    /// The response.
    pub fn bytes(&self) -> Vec<u8> {
        let Answer(status, headers, body) = self;
        format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }
}

/// A listener whose every connection has a thread of its own; ends when dropped.
pub struct Service {
    addr: SocketAddr,
    over: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    heard: Arc<Mutex<Vec<Heard>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Service {
    /// Answers every request with what `answer` makes of it.
    pub fn start(answer: impl Fn(&Heard) -> Answer + Send + Sync + 'static) -> Service {
        Service::run(None, move |heard| Some(answer(heard)))
    }

    /// Lets requests pass to the bucket that `judge` has nothing against.
    pub fn before(bucket: &Bucket, judge: impl Fn(&Heard) -> Option<Answer> + Send + Sync + 'static) -> Service {
        Service::run(Some(bucket.addr()), judge)
    }

    fn run(behind: Option<SocketAddr>, judge: impl Fn(&Heard) -> Option<Answer> + Send + Sync + 'static) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
        let shared = (Arc::clone(&over), Arc::clone(&open), Arc::clone(&heard));
        let judge = Arc::new(judge);
        let acceptor = std::thread::spawn(move || {
            let (over, open, heard) = shared;
            for stream in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                open.lock().unwrap().extend(stream.try_clone());
                let (judge, heard) = (Arc::clone(&judge), Arc::clone(&heard));
                std::thread::spawn(move || attend(stream, behind, &*judge, &heard));
            }
        });
        Service { addr, over, open, heard, acceptor: Some(acceptor) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Everything asked so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// One connection, until its client closes it.
fn attend(
    stream: TcpStream,
    behind: Option<SocketAddr>,
    judge: &dyn Fn(&Heard) -> Option<Answer>,
    heard: &Mutex<Vec<Heard>>,
) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let mut back = stream.try_clone().ok()?;
    let mut asked = BufReader::new(stream);
    let mut bucket: Option<BufReader<TcpStream>> = None;
    while let Some((request, raw)) = Heard::read(&mut asked) {
        heard.lock().unwrap().push(request.clone());
        let answer = judge(&request);
        if let Some(answer) = answer {
            back.write_all(&answer.bytes()).ok()?;
            continue;
        }
        if bucket.is_none() {
            bucket = Some(BufReader::new(TcpStream::connect(behind?).ok()?));
        }
        let bucket = bucket.as_mut()?;
        bucket.get_mut().write_all(&raw).ok()?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if bucket.read_until(b'\n', &mut head).ok()? == 0 {
                return None;
            }
        }
        back.write_all(&head).ok()?;
        let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let len: u64 = text.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
        std::io::copy(&mut bucket.take(len), &mut back).ok()?;
    }
    Some(())
}
