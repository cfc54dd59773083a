//! The forms a secret can hide in.

/// A secret, as it may turn up in a text.
pub(crate) struct Marker {
    forms: Vec<String>,
}

impl Marker {
    pub(crate) fn of(secret: &str) -> Marker {
        let mut forms =
            vec![secret.to_owned(), percent(secret), percent(secret).to_lowercase(), secret.escape_debug().to_string()];
        // In base64 a text has three faces, by what stands before it.
        for before in 0..3 {
            forms.push(base64_inside(secret.as_bytes(), before));
        }
        Marker { forms }
    }

    /// The form that is in it.
    pub(crate) fn found_in(&self, text: &str) -> Option<&str> {
        self.forms.iter().map(String::as_str).find(|form| text.contains(form))
    }
}

/// Every character but letters and digits as `%XX`.
pub(crate) fn percent(text: &str) -> String {
    let escaped = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(escaped).collect()
}

/// The characters of a text's base64 that its neighbours do not change, where `before` bytes stand in front of it.
fn base64_inside(bytes: &[u8], before: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<bool> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect();
    let skipped = (6 - before * 8 % 6) % 6;
    let sixes = bits[skipped..].chunks_exact(6);
    sixes.map(|six| char::from(DIGITS[six.iter().fold(0, |digit, bit| digit * 2 + usize::from(*bit))])).collect()
}

#[test]
fn every_form_is_found_and_nothing_else() {
    let marker = Marker::of("MARKED a/b+c=");
    // "MARKED a/b+c=" after no, one and two other bytes, made with coreutils' `base64`.
    for text in [
        "key MARKED a/b+c= end",
        "?sig=MARKED%20a%2Fb%2Bc%3D&x",
        "?sig=marked%20a%2fb%2bc%3d&x",
        "Basic TUFSS0VEIGEvYitjPQ==",
        "Basic eE1BUktFRCBhL2IrYz15",
        "Basic eHlNQVJLRUQgYS9iK2M9eg==",
    ] {
        assert!(marker.found_in(text).is_some(), "{text}");
    }
    assert!(marker.found_in("MARKED a/b TUFSS0VE").is_none());
}
