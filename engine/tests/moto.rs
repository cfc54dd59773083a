//! The chain of AWS against third-party services: moto's instance metadata, token service and S3.
//!
//! `scripts/test` installs it and sets `TEST_MOTO`. Its S3 takes
//! any signature: what a signature has to be, `signed.rs` holds against a server that checks.

use crate::common::moto::Moto;
use fuelrail::{Access, Credentials, Environment, get_with, list_with, put_with};
use std::io::Cursor;

fn access(variables: &[(&str, &str)]) -> Access {
    let given = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let credentials =
        Credentials { anonymous: Some(false), environment: Environment::given(given), ..Credentials::default() };
    Access { credentials, ..Access::default() }
}

#[test]
fn instance_role_and_web_identity_open_a_bucket() {
    let Some(moto) = Moto::start() else { return };
    let url = moto.url();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let token = file("token", "jwt");
    let config = file("config", "[profile r]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = own\n");
    let keys = file("keys", "[own]\naws_access_key_id = AKIAOWN\naws_secret_access_key = secret\n");
    let role = ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r");
    let service = ("AWS_ENDPOINT_URL_STS", url.as_str());
    let instance = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str())];
    moto.make_bucket("private-bucket");
    for (name, variables) in [
        ("instance", &instance[..]),
        ("web", &[("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str()), role, service]),
        (
            "role",
            &[("AWS_PROFILE", "r"), ("AWS_CONFIG_FILE", &config), ("AWS_SHARED_CREDENTIALS_FILE", &keys), service],
        ),
    ] {
        let access = access(variables);
        let uri = format!("{url}/private-bucket/{name}/a b+é");
        put_with(&access, &uri, &mut Cursor::new(name.as_bytes()), |_| {}).unwrap();
        let listed = list_with(&access, &format!("{url}/private-bucket/{name}/"), |_| {}).unwrap();
        assert_eq!(listed.len(), 1, "{name}");
        let mut brought = Vec::new();
        get_with(&access, &uri, &mut brought).unwrap();
        assert_eq!(brought, name.as_bytes());
    }
}
