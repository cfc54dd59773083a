//! Errors for certificates and messages that rustls refuses and for alerts of the server, each with a hint.

use crate::date::iso;
use fuelrail_base::{Error, Kind, Result, WallTime};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage};

/// The error of a failed handshake or TLS 1.2 connection: rustls's cause, with a hint.
pub fn explain(error: &TlsError) -> Error {
    explained(error).with_source(error.clone())
}

fn explained(error: &TlsError) -> Error {
    match error {
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => no_tls(),
        TlsError::InvalidCertificate(why) => certificate(why),
        TlsError::NoCertificatesPresented => {
            untrusted("the server showed no certificate", "check the server's TLS configuration")
        }
        TlsError::AlertReceived(description) => complaint(*description),
        TlsError::DecryptError => broken("a TLS record failed authentication: it was damaged or forged on the way"),
        TlsError::PeerIncompatible(why) => {
            Error::new(Kind::Protocol, format!("no common TLS parameters with the server: {why:?}"))
                .with_hint("the server must offer TLS 1.3, or TLS 1.2 with ECDHE and AES-GCM or ChaCha20-Poly1305")
        }
        TlsError::FailedToGetCurrentTime | TlsError::FailedToGetRandomBytes => {
            Error::new(Kind::Environment, format!("TLS cannot be set up: {error}"))
        }
        other => broken(&format!("TLS protocol error: {other}")),
    }
}

/// The peer broke TLS: nothing more of this connection can be used.
pub(super) fn broken(cause: &str) -> Error {
    Error::new(Kind::Protocol, cause)
        .with_hint("the server or a device on the network path is faulty, or the traffic is being tampered with")
}

/// The error when a port does not speak TLS.
pub(super) fn no_tls() -> Error {
    Error::new(Kind::Protocol, "the server does not speak TLS on this port")
        .with_hint("check the port in the URI; one that speaks plain HTTP takes http://")
}

fn untrusted(cause: impl Into<String>, cure: &str) -> Error {
    Error::new(Kind::Untrusted, cause).with_hint(cure)
}

fn certificate(why: &CertificateError) -> Error {
    use CertificateError::{
        BadSignature, ExpiredContext, InvalidPurposeContext, NotValidForNameContext, NotValidYetContext, Other,
        UnknownIssuer,
    };
    let clock = "renew it on the server, and check this machine's clock";
    match why {
        UnknownIssuer => untrusted(
            "the server's certificate is signed by an unknown authority",
            "set ca_file to the certificate of the authority that signed it, in PEM",
        ),
        BadSignature => untrusted(
            "the server's certificate is not signed with the key of the authority it names",
            "set ca_file to the certificate of the authority that signed it: a known one has the same name but another key",
        ),
        ExpiredContext { not_after, .. } => {
            untrusted(format!("the server's certificate expired on {}", date(*not_after)), clock)
        }
        NotValidYetContext { not_before, .. } => {
            untrusted(format!("the server's certificate is not valid before {}", date(*not_before)), clock)
        }
        NotValidForNameContext { expected, presented } => wrong_name(expected, presented),
        InvalidPurposeContext { .. } => untrusted(
            "the server's certificate is not meant for servers",
            "have one issued with the extended key usage serverAuth",
        ),
        Other(other) if other.to_string().contains("CaUsedAsEndEntity") => untrusted(
            "the server shows the certificate of an authority as its own",
            "issue the server a certificate of its own (CA:FALSE) and set ca_file to the one that signed it",
        ),
        other => untrusted(format!("the server's certificate is not trusted: {other}"), "replace it"),
    }
}

const WRONG_NAME_CURE: &str = "use one of its names in the URI, or have a certificate issued for this name, too";
/// Names of a certificate that are told: some have hundreds.
const NAMES_TOLD_MAX: usize = 8;

fn wrong_name(expected: &ServerName<'_>, presented: &[String]) -> Error {
    let told = presented.iter().take(NAMES_TOLD_MAX).map(|name| plain_name(name)).collect::<Vec<_>>().join(", ");
    let more = presented.len().saturating_sub(NAMES_TOLD_MAX);
    let names = match (presented.len(), more) {
        (0, _) => "no name at all".to_owned(),
        (_, 0) => told,
        _ => format!("{told} and {more} more"),
    };
    let cause = format!("the server's certificate is for {names}, not for {}", expected.to_str());
    untrusted(cause, WRONG_NAME_CURE)
}

/// `DnsName("a.example")` and `IpAddress(127.0.0.1)` without their wrapping; whatever it holds is safe to print.
fn plain_name(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').escape_debug().to_string()
}

/// The day of a point in time, as `2026-11-21` (UTC).
fn date(time: UnixTime) -> String {
    iso(WallTime(time.as_secs())).chars().take("2026-11-21".len()).collect()
}

/// What an alert after the handshake means: `Ok(true)` is the announced end of the connection, `Ok(false)` nothing.
pub(super) fn alert(content: &[u8]) -> Result<bool> {
    let &[_, code] = content else { return Err(broken("a TLS alert of a wrong length came")) };
    match AlertDescription::from(code) {
        AlertDescription::CloseNotify => Ok(true),
        AlertDescription::UserCanceled => Ok(false),
        description => Err(complaint(description)),
    }
}

/// The error of a fatal alert.
fn complaint(description: AlertDescription) -> Error {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateUnknown, HandshakeFailure,
        InsufficientSecurity, NoCertificate, ProtocolVersion, UnknownCA, UnrecognisedName, UnsupportedCertificate,
    };
    let said = format!("the server ended the connection with the TLS alert {description:?}");
    let (kind, cure) = match description {
        AccessDenied
        | BadCertificate
        | CertificateExpired
        | CertificateRequired
        | CertificateUnknown
        | NoCertificate
        | UnknownCA
        | UnsupportedCertificate => (
            Kind::Denied,
            "the server may require a client certificate, which is not supported: allow access without one",
        ),
        UnrecognisedName => (Kind::Denied, "the server has no certificate for this name: check the host in the URI"),
        HandshakeFailure | InsufficientSecurity | ProtocolVersion => {
            (Kind::Protocol, "the server must offer TLS 1.3, or TLS 1.2 with ECDHE and AES-GCM or ChaCha20-Poly1305")
        }
        _ => (Kind::Protocol, "see the server's logs"),
    };
    Error::new(kind, said).with_hint(cure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn alerts_end_the_connection_or_say_why() {
        assert_eq!(alert(&[1, 0]), Ok(true));
        assert_eq!(alert(&[1, 90]), Ok(false));
        for (code, kind, says) in [
            (116, Kind::Denied, "client certificate"),
            (112, Kind::Denied, "host in the URI"),
            (40, Kind::Protocol, "TLS 1.3"),
            (70, Kind::Protocol, "TLS 1.3"),
            (80, Kind::Protocol, "InternalError"),
            (200, Kind::Protocol, "alert"),
        ] {
            let error = alert(&[2, code]).unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(says), "{code}: {error}");
        }
        for wrong in [&[][..], &[1], &[1, 0, 0]] {
            assert_eq!(alert(wrong).unwrap_err().kind(), Kind::Protocol);
        }
    }

    #[test]
    fn refusals_say_what_is_wrong_and_what_helps() {
        let expected = ServerName::try_from("bucket.example").unwrap();
        let name = |presented: Vec<String>| {
            TlsError::InvalidCertificate(CertificateError::NotValidForNameContext {
                expected: expected.clone(),
                presented,
            })
        };
        let many = (0..20).map(|i| format!("DnsName(\"h{i}.example\")")).collect();
        let day = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let expired = CertificateError::ExpiredContext { time: day(1_000_000_000), not_after: day(951_782_400) };
        for (error, kind, says) in [
            (TlsError::InvalidCertificate(CertificateError::UnknownIssuer), Kind::Untrusted, vec!["ca_file"]),
            (TlsError::InvalidCertificate(expired), Kind::Untrusted, vec!["2000-02-29", "clock"]),
            (name(vec![]), Kind::Untrusted, vec!["no name at all", "not for bucket.example"]),
            (name(vec!["DnsName(\"a.example\")".into()]), Kind::Untrusted, vec!["for a.example, not", "URI"]),
            (name(many), Kind::Untrusted, vec!["h7.example and 12 more"]),
            (TlsError::NoCertificatesPresented, Kind::Untrusted, vec!["no certificate"]),
            (TlsError::DecryptError, Kind::Protocol, vec!["authentication"]),
            (TlsError::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered), Kind::Protocol, vec!["TLS 1.3"]),
            (TlsError::FailedToGetCurrentTime, Kind::Environment, vec!["time"]),
        ] {
            let told = explain(&error);
            assert_eq!(told.kind(), kind, "{told}");
            for word in says {
                assert!(told.to_string().contains(word), "{told}");
            }
        }
    }
}
