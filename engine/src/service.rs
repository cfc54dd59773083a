//! Small requests to services beside the buckets: those that hand out credentials, and the metadata services of instances.

use crate::client::{Answer, Ask, Client, Refused, on_thread, within};
use crate::environment::Environment;
use crate::proxy::Route;
use crate::proxy::proxy_for;
use crate::tls::Tls;
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_io::Finding;
use fuelrail_wire::{Endpoint, Scheme};
use hyper::Method;
use std::net::SocketAddr;
use std::path::PathBuf;

/// One service. The default sends one attempt, without a proxy, and trusts the system's authorities under https.
#[derive(Default)]
pub(crate) struct Service<'a> {
    pub(crate) uri: &'a str,
    /// Timeout of the connection, and then of the response.
    pub(crate) patience: Duration,
    /// Attempts when it does not respond or is busy.
    pub(crate) attempts: u32,
    /// Where to read the proxy variables; `None`, for services of this machine, connects directly.
    pub(crate) proxies: Option<&'a Environment>,
    /// The authorities trusted under https.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Service<'_> {
    /// Sends the request, with retries. Any status is a response, unless the service is busy.
    ///
    /// # Errors
    /// `Network` when it cannot be reached, `Stalled` when it does not answer, `Throttled` and `Server` when it is busy, `Usage` for a URI
    /// that is none, `File` and `Environment` for what TLS lacks. Nothing of an answer is repeated: it may hold a secret.
    pub(crate) async fn ask(&self, method: Method, headers: &[(&'static str, &str)], body: String) -> Result<Answer> {
        let (server, path) = self.uri.split_at(self.uri.find("://").map_or(0, |at| at + 3));
        let (host, path) = path.split_at(path.find(['/', '?']).unwrap_or(path.len()));
        let endpoint: Endpoint = format!("{server}{host}").parse()?;
        if endpoint.scheme == Scheme::File {
            let error = Error::new(Kind::Usage, "the URI of a service for credentials is neither http:// nor https://");
            return Err(error.with_hint("check the variables and the profile that name it"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let tls = Tls { ca_file: self.ca_file.clone(), insecure: false }.client(&endpoint)?;
        let proxy = self.proxies.map(|environment| proxy_for(environment, &endpoint)).transpose()?.flatten();
        let route = Route { tls, proxy, ..Route::new(endpoint) };
        let client = Client::new(&route, self.patience)?;
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let ask = Ask { headers, body: body.into(), ..Ask::new(method, path) };
        let attempt = async || {
            let answer = within(self.patience * 2, async { client.send_whole(&ask).await?.read().await }).await??;
            let kind = match answer.status.as_u16() {
                429 => Kind::Throttled,
                500.. => Kind::Server,
                _ => return Ok(answer),
            };
            Err(Refused::from(Error::new(kind, format!("unexpected status {}", answer.status.as_str()))))
        };
        let asked = client.persist(self.attempts.max(1), attempt).await;
        asked.map_err(|Refused { error, .. }| {
            let server = route.endpoint.authority();
            if error.cause().contains(&server) { error } else { error.within(server) }
        })
    }
}

/// Where the metadata service is on every instance.
pub const IMDS_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 169, 254)), 80);

/// One request to the metadata service at `address` ([`IMDS_ADDRESS`]), with one header line: the status and the body of the answer.
///
/// # Errors
/// `Network`, `Stalled` … when no answer comes within twice `patience`, `Usage` for a request that cannot be written.
pub fn ask_metadata(
    address: SocketAddr,
    (method, path): (&str, &str),
    header: (&'static str, &str),
    patience: Duration,
) -> Result<(u16, String)> {
    let method = Method::from_bytes(method.as_bytes());
    let method = method.map_err(|_| Error::new(Kind::Usage, "invalid HTTP method"))?;
    let uri = format!("http://{address}{path}");
    on_thread("fuelrail-metadata", async || {
        let answer =
            Service { uri: &uri, patience, ..Service::default() }.ask(method, &[header], String::new()).await?;
        Ok((answer.status.as_u16(), String::from_utf8_lossy(&answer.body).into_owned()))
    })
}

/// Whether the instance metadata service of EC2 at `address` ([`IMDS_ADDRESS`]) answers from here: where credentials of instance roles come
/// from. Asks for a session token, which costs nothing and reveals nothing, and throws it away; says what came of it within twice `patience`.
#[must_use]
pub fn ask_imds(address: SocketAddr, patience: Duration) -> Finding {
    const NAME: &str = "instance metadata";
    let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", "60");
    let error = match ask_metadata(address, ("PUT", "/latest/api/token"), lifetime, patience) {
        Ok((200, _)) => return Finding::good(NAME, "session token received: instance roles work from here"),
        Ok((code, _)) => {
            let cure = "if this is EC2: aws ec2 modify-instance-metadata-options --http-endpoint enabled; else nothing is needed";
            return Finding::degraded(NAME, format!("{address} answers {code} instead of a session token"), cure);
        }
        Err(error) => error,
    };
    let (cause, cure) = match error.kind() {
        Kind::Network => (
            format!("cannot be reached ({})", error.cause()),
            "instance roles do not work from here: not EC2, or disabled \
             (aws ec2 modify-instance-metadata-options --http-endpoint enabled), or a firewall",
        ),
        Kind::Stalled => (
            format!("{address} accepts the connection but does not respond"),
            "the hop limit does not reach into this container: aws ec2 modify-instance-metadata-options \
             --http-put-response-hop-limit 2, or host networking",
        ),
        _ => (
            format!("no valid response ({})", error.cause()),
            "check for a proxy, a firewall or a service mesh that intercepts requests to the service",
        ),
    };
    Finding::degraded(NAME, cause, cure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_io::Grade;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A service that reads the whole request and says `answer`, then holds the connection until it is closed.
    fn answering(answer: &'static str) -> Finding {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let service = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = vec![0; 4096];
            let len = socket.read(&mut asked).unwrap();
            asked.truncate(len);
            socket.write_all(answer.as_bytes()).unwrap();
            if !answer.is_empty() {
                return asked;
            }
            // Silent until the other side gives up.
            let _ = socket.read(&mut [0]);
            asked
        });
        // Only the silent service is waited out.
        let patience = Duration::from_secs(if answer.is_empty() { 1 } else { 60 });
        let finding = ask_imds(address, patience);
        let asked = String::from_utf8(service.join().unwrap()).unwrap();
        assert!(
            asked.starts_with("PUT /latest/api/token HTTP/1.1\r\nx-aws-ec2-metadata-token-ttl-seconds: 60\r\n"),
            "{asked}"
        );
        finding
    }

    #[test]
    fn every_answer_is_told_with_its_cure() {
        let good = answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(good.grade, Grade::Good, "{good}");
        for (answer, cure) in [
            ("", "hop-limit 2"),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "--http-endpoint enabled"),
            ("220 mail server ready\r\n", "service mesh"),
        ] {
            let line = answering(answer);
            assert!(line.grade == Grade::Degraded && line.cure.as_deref().unwrap().contains(cure), "{line}");
        }
        // Nothing listens on the lowest port.
        let line = ask_imds("127.0.0.1:1".parse().unwrap(), Duration::from_secs(60));
        assert!(line.value.contains("cannot be reached"), "{line}");
    }
}
