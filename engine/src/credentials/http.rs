//! Small requests to the services that hand out credentials.

use super::environment::Environment;
use crate::dial::{Asker, innermost, told};
use crate::proxy::proxy_for;
use crate::tls::Tls;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_wire::{Endpoint, date};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use std::path::PathBuf;

/// One request.
#[derive(Default)]
pub(super) struct Ask<'a> {
    pub(super) method: &'a str,
    pub(super) uri: &'a str,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    /// For the whole of it.
    pub(super) patience: Duration,
    /// How often it is tried where nobody answers or the service is busy.
    pub(super) attempts: u32,
    /// Whose variables say through which proxy; none asks straight, as befits services beside this machine.
    pub(super) proxies: Option<&'a Environment>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
    /// The service's clock.
    pub(super) at: Option<WallTime>,
}

/// Longest answer: credentials are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks, and asks again where that may help. `ca_file` holds the authorities believed under https, else the system's are.
///
/// # Errors
/// `Network` when nobody answers, `Usage` for a URI that is none, `File` and `Environment` for what TLS lacks.
pub(super) async fn ask(ask: Ask<'_>, ca_file: Option<PathBuf>) -> Result<Answer> {
    let endpoint: Endpoint = ask.uri.split('?').next().unwrap_or_default().parse()?;
    let tls = Tls { ca_file, insecure: false }.client(&endpoint)?;
    let proxy = ask.proxies.map(|environment| proxy_for(environment, &endpoint)).transpose()?.flatten();
    let client = Asker::new(tls.as_ref(), proxy.as_ref(), ask.patience)?;
    let mut tried = 0;
    loop {
        tried += 1;
        let outcome = tokio::time::timeout(ask.patience, once(&client, &ask)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(Error::new(Kind::Network, format!("no answer for {:.1} s", ask.patience.as_secs_f64())))
        });
        let again = match &outcome {
            Ok(answer) => answer.status == 429 || answer.status >= 500,
            Err(error) => error.kind().retryable(),
        };
        if !again || tried >= ask.attempts {
            return outcome.map_err(|e| {
                let cause = format!("{}: {}", endpoint.authority(), e.cause());
                e.because(cause)
            });
        }
        tokio::time::sleep(PAUSE * tried).await;
    }
}

async fn once(client: &Asker<Full<Bytes>>, ask: &Ask<'_>) -> Result<Answer> {
    let mut request = Request::builder().method(ask.method).uri(ask.uri);
    for (name, value) in &ask.headers {
        request = request.header(name, value);
    }
    // A part of it may be a secret: what hyper says of a request that cannot be written is not repeated.
    let request = request
        .body(Full::new(Bytes::from(ask.body.clone())))
        .map_err(|_| Error::new(Kind::Usage, "it cannot be asked over HTTP: its address or a token is malformed"))?;
    let response = client.request(request).await;
    let response = response.map_err(|e| told(&e).unwrap_or_else(|| Error::new(Kind::Network, innermost(&e))))?;
    let status = response.status().as_u16();
    let at = response.headers().get("date").and_then(|date| date::parse_http(date.as_bytes()));
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|e| Error::new(Kind::Network, format!("reading the answer: {e}")))?.to_bytes();
    Ok(Answer { status, body, at })
}

/// `name=value` pairs, escaped as forms are.
pub(super) fn form(pairs: &[(&str, &str)]) -> String {
    let escaped = |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    pairs.join("&")
}
