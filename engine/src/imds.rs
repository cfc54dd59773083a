//! Whether the instance metadata service of EC2 answers from here: where credentials of instance roles come from.
//!
//! Asks for a session token, which costs nothing and reveals nothing, and throws it away. Called only when somebody asked
//! for it: nothing else in the engine talks to this address.

use fuelrail_io::Finding;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Where the service is on every instance.
pub const IMDS_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 169, 254)), 80);

const NAME: &str = "instance metadata";
const ASK: &[u8] =
    b"PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\
                     Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Asks the service at `address` ([`IMDS_ADDRESS`]) for a session token, and says what came of it within twice `patience`.
#[must_use]
pub fn ask_imds(address: SocketAddr, patience: Duration) -> Finding {
    let socket = match TcpStream::connect_timeout(&address, patience) {
        Ok(socket) => socket,
        Err(error) => {
            let cure = "no instance role can be used from here: not EC2, or switched off \
                        (aws ec2 modify-instance-metadata-options --http-endpoint enabled), or a firewall";
            return Finding::degraded(NAME, format!("{address} cannot be reached: {error}"), cure);
        }
    };
    match status(socket, patience) {
        Ok(200) => Finding::good(NAME, "a session token came: instance roles can be used from here"),
        Ok(code) => Finding::degraded(
            NAME,
            format!("{address} answers {code} instead of a session token"),
            "if this is EC2: aws ec2 modify-instance-metadata-options --http-endpoint enabled; else nothing is needed",
        ),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Finding::degraded(
            NAME,
            format!("{address} takes the connection, and its answer is lost"),
            "the hop limit does not reach into this container: aws ec2 modify-instance-metadata-options \
             --http-put-response-hop-limit 2, or host networking",
        ),
        Err(error) => {
            let cure = "something between here and the service interferes: a proxy, a firewall or a service mesh";
            Finding::degraded(NAME, format!("{address} gave no answer: {error}"), cure)
        }
    }
}

/// The status code of the answer.
fn status(mut socket: TcpStream, patience: Duration) -> std::io::Result<u16> {
    socket.set_read_timeout(Some(patience))?;
    socket.write_all(ASK)?;
    let mut head = [0u8; 12];
    socket.read_exact(&mut head)?;
    let code = head.strip_prefix(b"HTTP/1.").and_then(|rest| std::str::from_utf8(&rest[2..]).ok()?.parse().ok());
    code.ok_or_else(|| std::io::Error::new(ErrorKind::InvalidData, "not HTTP"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_io::Grade;
    use std::net::TcpListener;

    /// A service that reads the whole request and says `answer`, then holds the connection until it is closed.
    fn answering(answer: &'static str) -> Finding {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let service = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = vec![0; ASK.len()];
            socket.read_exact(&mut asked).unwrap();
            socket.write_all(answer.as_bytes()).unwrap();
            if !answer.is_empty() {
                return asked;
            }
            // Silent until the other side gives up.
            let _ = socket.read(&mut [0]);
            asked
        });
        // Only the silent service is waited out.
        let patience = if answer.is_empty() { Duration::from_millis(50) } else { Duration::from_secs(60) };
        let finding = ask_imds(address, patience);
        assert_eq!(service.join().unwrap(), ASK);
        finding
    }

    #[test]
    fn every_answer_is_told_with_its_cure() {
        let good = answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(good.grade, Grade::Good, "{good}");
        for (answer, cure) in [
            ("", "hop-limit 2"),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "--http-endpoint enabled"),
            ("220 mail server ready\r\n", "interferes"),
        ] {
            let line = answering(answer);
            assert!(line.grade == Grade::Degraded && line.cure.as_deref().unwrap().contains(cure), "{line}");
        }
        // Nobody listens on the lowest port.
        let line = ask_imds("127.0.0.1:1".parse().unwrap(), Duration::from_secs(60));
        assert!(line.value.contains("cannot be reached"), "{line}");
    }
}
