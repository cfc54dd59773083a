//! Signed assertions (RFC 7515, 7519, 7523): how a service account of Google asks for a token.

use super::credential::Secret;
use crate::base64::encode_url_safe;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use fuelrail_base::{Error, Kind, Result, WallTime};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;

/// What is asserted.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// Who asks: the service account's address.
    pub issuer: &'a str,
    /// Which of its keys signs, if it has a name.
    pub key_id: Option<&'a str>,
    /// What for.
    pub scope: &'a str,
    /// Who is asked.
    pub audience: &'a str,
    /// When.
    pub at: WallTime,
    /// For how long, seconds.
    pub lifetime_s: u64,
}

#[derive(Serialize)]
struct Header<'a> {
    alg: &'a str,
    typ: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kid: Option<&'a str>,
}

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    scope: &'a str,
    aud: &'a str,
    iat: u64,
    exp: u64,
}

/// `grant`, signed with the RSA key in `pem` (PKCS #8).
///
/// # Errors
/// [`Kind::Usage`] when the key is none. Its text is not repeated.
pub fn assertion(grant: &Grant<'_>, pem: &Secret) -> Result<Secret> {
    let Grant { issuer, key_id, scope, audience, at, lifetime_s } = *grant;
    let unusable = |_| {
        Error::new(Kind::Usage, "the service account's private key is no RSA key in PEM (PKCS #8)")
            .cure("download the account's key file again")
    };
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem.expose().as_bytes()).map_err(|_| unusable(()))?;
    let key = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| unusable(()))?;
    let header = serde_json::to_string(&Header { alg: "RS256", typ: "JWT", kid: key_id });
    let (iat, exp) = (at.0, at.0.saturating_add(lifetime_s));
    let claims = serde_json::to_string(&Claims { iss: issuer, scope, aud: audience, iat, exp });
    let (Ok(header), Ok(claims)) = (header, claims) else {
        return Err(Error::new(Kind::Usage, "the assertion cannot be written as JSON"));
    };
    Ok(Secret::new(signed(&header, &claims, &key)?))
}

/// The compact form: header, claims and signature.
fn signed(header: &str, claims: &str, key: &RsaKeyPair) -> Result<String> {
    let mut token = format!("{}.{}", encode_url_safe(header.as_bytes()), encode_url_safe(claims.as_bytes()));
    let mut signature = vec![0; key.public_modulus_len()];
    // This padding takes no randomness: the same text has the same signature.
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature)
        .map_err(|_| Error::new(Kind::Usage, "the service account's private key cannot sign"))?;
    token.push('.');
    token.push_str(&encode_url_safe(&signature));
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base64::decode;
    use aws_lc_rs::rsa::{KeyPairComponents, PublicKeyComponents};

    /// The URL-safe alphabet, without padding.
    fn bytes(text: &str) -> Vec<u8> {
        let plain = text.replace('-', "+").replace('_', "/");
        decode(format!("{plain}{}", "=".repeat((4 - plain.len() % 4) % 4)).as_bytes()).unwrap()
    }

    /// RFC 7515, appendix A.2.
    #[test]
    fn the_standards_own_example() {
        let key = RsaKeyPair::from_components(&KeyPairComponents {
            public_key: PublicKeyComponents { n: bytes(concat!(
                "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yR",
                "T-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXB",
                "dQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9ia",
                "GNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
            )), e: bytes("AQAB") },
            d: bytes(concat!(
                "Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46su",
                "i395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4",
                "qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB",
                "4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ",
            )),
            p: bytes(concat!(
                "4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8",
                "cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc",
            )),
            q: bytes(concat!(
                "uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t",
                "62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc",
            )),
            dP: bytes(concat!(
                "BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCj",
                "n12Sk3vmAktV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0",
            )),
            dQ: bytes(concat!(
                "h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnw",
                "gjMd2w9cjz3_-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU",
            )),
            qInv: bytes(concat!(
                "IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93",
                "IKLEdfnbJtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U",
            )),
        })
        .unwrap();
        let claims = "{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}";
        let token = signed(r#"{"alg":"RS256"}"#, claims, &key).unwrap();
        let wanted = concat!(
            "eyJhbGciOiJSUzI1NiJ9.",
            "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.",
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZ",
            "cAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-e",
            "OkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        );
        assert_eq!(token, wanted);
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
        assert_eq!(bytes(parts[0]), br#"{"alg":"RS256","typ":"JWT","kid":"k1"}"#);
        assert_eq!(bytes(parts[1]), br#"{"iss":"a@b","scope":"s","aud":"https://t","iat":100,"exp":3700}"#);
    }
}
