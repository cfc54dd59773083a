//! Signed assertions (RFC 7515, 7519, 7523): how a service account of Google asks for a token.

use super::credential::Secret;
use crate::base64::encode_url_safe;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use fuelrail_base::{Error, Kind, Result, WallTime};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;

/// The claims of an assertion.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The issuer: the service account's address.
    pub issuer: &'a str,
    /// Which of its keys signs, if it has a name.
    pub key_id: Option<&'a str>,
    /// The scope requested.
    pub scope: &'a str,
    /// The audience: the token endpoint.
    pub audience: &'a str,
    /// Time of issue.
    pub at: WallTime,
    /// Lifetime, seconds.
    pub lifetime_s: u64,
}

/// `grant`, signed with the RSA key in `pem` (PKCS #8).
///
/// # Errors
/// [`Kind::Usage`] when the key is none. Its text is not repeated.
pub fn assertion(grant: &Grant<'_>, pem: &Secret) -> Result<Secret> {
    let Grant { issuer, key_id, scope, audience, at, lifetime_s } = *grant;
    let unusable = |_| {
        Error::new(Kind::Usage, "the service account's private key is not an RSA key in PEM (PKCS #8)")
            .with_hint("download the account's key file again")
    };
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem.expose().as_bytes()).map_err(|_| unusable(()))?;
    let key = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| unusable(()))?;
    let header = match key_id {
        Some(key_id) => json!({ "alg": "RS256", "typ": "JWT", "kid": key_id }),
        None => json!({ "alg": "RS256", "typ": "JWT" }),
    };
    let exp = at.0.saturating_add(lifetime_s);
    let claims = json!({ "iss": issuer, "scope": scope, "aud": audience, "iat": at.0, "exp": exp });
    let [header, claims] = [header, claims].map(|part| encode_url_safe(part.to_string().as_bytes()));
    let mut token = format!("{header}.{claims}");
    let mut signature = vec![0; key.public_modulus_len()];
    // This padding takes no randomness: the same text has the same signature.
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature)
        .map_err(|_| Error::new(Kind::Usage, "the service account's private key cannot sign"))?;
    token.push('.');
    token.push_str(&encode_url_safe(&signature));
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base64::decode;
    use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    /// The URL-safe alphabet, without padding.
    fn bytes(text: &str) -> Vec<u8> {
        let plain = text.replace('-', "+").replace('_', "/");
        decode(format!("{plain}{}", "=".repeat((4 - plain.len() % 4) % 4)).as_bytes()).unwrap()
    }

    #[test]
    fn a_key_that_is_none_is_refused_and_not_repeated() {
        let grant =
            Grant { issuer: "a@b", key_id: None, scope: "s", audience: "https://t", at: WallTime(1), lifetime_s: 3600 };
        for pem in ["marked", "-----BEGIN PRIVATE KEY-----\nbWFya2Vk\n-----END PRIVATE KEY-----\n"] {
            let error = assertion(&grant, &Secret::new(pem)).unwrap_err();
            assert!(error.kind() == Kind::Usage && !error.to_string().contains("marked"), "{error}");
        }
    }

    #[test]
    fn a_grant_says_who_what_and_until_when() {
        // A PKCS #8 key made for this test.
        let made = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let der = aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&made).unwrap();
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            crate::base64::encode(der.as_ref())
        );
        let grant = Grant {
            issuer: "a@b",
            key_id: Some("k1"),
            scope: "s",
            audience: "https://t",
            at: WallTime(100),
            lifetime_s: 3600,
        };
        let token = assertion(&grant, &Secret::new(pem)).unwrap();
        let parts: Vec<&str> = token.expose().split('.').collect();
        assert_eq!(parts.len(), 3);
        let public = RsaKeyPair::from_pkcs8(der.as_ref()).unwrap().public_key().as_ref().to_vec();
        let said = format!("{}.{}", parts[0], parts[1]);
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
        public.verify(said.as_bytes(), &bytes(parts[2])).expect("it is signed with this key");
        let read = |part: &str| serde_json::from_slice::<serde_json::Value>(&bytes(part)).unwrap();
        assert_eq!(read(parts[0]), json!({ "alg": "RS256", "typ": "JWT", "kid": "k1" }));
        let claims = json!({ "iss": "a@b", "scope": "s", "aud": "https://t", "iat": 100, "exp": 3700 });
        assert_eq!(read(parts[1]), claims);
    }
}
