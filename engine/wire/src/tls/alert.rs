//! What a server says when it is unhappy: alerts, and what can be done about each.

use super::record::broken;
use fuelrail_base::{Error, Kind, Result};
use rustls::AlertDescription;

/// What an alert after the handshake means: `Ok(true)` is the announced end of the connection, `Ok(false)` nothing.
///
/// # Errors
/// As [`complaint`]; `Protocol` for what is no alert.
pub(super) fn alert(content: &[u8]) -> Result<bool> {
    let &[_, code] = content else { return Err(broken("a TLS alert of a wrong length came")) };
    match AlertDescription::from(code) {
        AlertDescription::CloseNotify => Ok(true),
        AlertDescription::UserCanceled => Ok(false),
        description => Err(complaint(description)),
    }
}

/// The error a fatal alert stands for.
pub(super) fn complaint(description: AlertDescription) -> Error {
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
        | UnsupportedCertificate => {
            (Kind::Denied, "it may ask for a client certificate, and this loader has none: let it in without")
        }
        UnrecognisedName => (Kind::Denied, "the server has no certificate for this name: check the host in the URI"),
        HandshakeFailure | InsufficientSecurity | ProtocolVersion => {
            (Kind::Protocol, "it must offer TLS 1.3, or TLS 1.2 with ECDHE and AES-GCM or ChaCha20-Poly1305")
        }
        _ => (Kind::Protocol, "see the server's logs"),
    };
    Error::new(kind, said).cure(cure)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
