//! What a port that speaks TLS answers to a plain request.

/// Whether the text of a refusal (400) says that a plain request met a port that speaks TLS: nginx, Apache and Go's
/// servers do, each in its own words.
#[must_use]
pub fn asks_for_tls(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    ["sent to HTTPS port", "SSL-enabled server port", "to an HTTPS server"].iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_ports_that_speak_tls_are_known() {
        let nginx = "<center>The plain HTTP request was sent to HTTPS port</center>";
        let apache = "You're speaking plain HTTP to an SSL-enabled server port.";
        for text in [nginx, apache, "Client sent an HTTP request to an HTTPS server.\n"] {
            assert!(asks_for_tls(text.as_bytes()), "{text}");
        }
        assert!(!asks_for_tls(b"400 Bad Request") && !asks_for_tls(b""));
    }
}
