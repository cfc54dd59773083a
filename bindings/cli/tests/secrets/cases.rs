//! Every place that a secret comes from.

use super::forms::percent;
use super::{Case, Desk, Echo, aws_keys, bucket, marked, none_leaks};

#[test]
fn keys_that_are_taken() {
    // One each: what one puts, another would read half of before and half of after.
    let buckets = [bucket(), bucket(), bucket()];
    let case = |at: usize, name, (variables, secrets)| {
        let (bucket, _) = &buckets[at];
        Case { name, variables, uri: bucket.url("training/"), endpoint: None, secrets, serves: true }
    };
    let profile = |desk: &Desk| {
        let secret = marked("profile");
        let keys = format!("[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = {secret}\n");
        (vec![("AWS_SHARED_CREDENTIALS_FILE", desk.keep("credentials", &keys))], vec![secret])
    };
    let process = |desk: &Desk| {
        let (secret, option) = (marked("printed"), marked("option"));
        let keys = format!(r#"{{"Version":1,"AccessKeyId":"AKIAEXAMPLE","SecretAccessKey":"{secret}"}}"#);
        let file = desk.keep("keys.json", &keys);
        let config = format!("[default]\ncredential_process = cat {file} # {option}\n");
        (vec![("AWS_CONFIG_FILE", desk.keep("config", &config))], vec![secret, option])
    };
    none_leaks(
        &Desk::new,
        &[
            &|_| case(0, "keys of the environment", aws_keys()),
            &|desk| case(1, "keys of a profile", profile(desk)),
            &|desk| case(2, "keys a program prints", process(desk)),
        ],
    );
}

/// One case each, as its URI names the cloud.
fn refused(
    (name, uri): (&'static str, &str),
    endpoint: &str,
    variables: Vec<(&'static str, String)>,
    secrets: Vec<String>,
) -> Case {
    Case { name, variables, uri: uri.into(), endpoint: Some(endpoint.into()), secrets, serves: false }
}

const AMAZON: &str = "s3://bucket/set/";
const GOOGLE: &str = "gs://bucket/set/";
const AZURE: &str = "az://account/bucket/set/";

#[test]
fn keys_that_are_refused_by_a_server_that_repeats_them() {
    let server = Echo::start(403, "SignatureDoesNotMatch");
    let old = Echo::start(400, "ExpiredToken");
    let odd = Echo::start(418, "Odd");
    let azure_key = "TUFSS0VEa2V5L3ArcT05TUFSS0VEa2V5L3ArcT05";
    let signature = marked("sas");
    let sas = || {
        let query = format!("sv=2021-12-02&sp=r&sig={}", percent(&signature));
        vec![("AZURE_STORAGE_SAS_TOKEN", query)]
    };
    let keys = |name, url: &str| {
        let (variables, secrets) = aws_keys();
        refused((name, AMAZON), url, variables, secrets)
    };
    none_leaks(
        &Desk::new,
        &[
            &|_| keys("a wrong key", &server.url()),
            &|_| keys("a token that has ended", &old.url()),
            &|_| keys("keys a server knows nothing of", &odd.url()),
            &|_| refused(("a wrong signature", AZURE), &server.url(), sas(), vec![signature.clone()]),
            &|_| refused(("a signature a server knows nothing of", AZURE), &odd.url(), sas(), vec![signature.clone()]),
            &|_| {
                let key = vec![("AZURE_STORAGE_KEY", azure_key.to_owned())];
                refused(("an account's key", AZURE), &server.url(), key, vec![azure_key.into()])
            },
            &|_| {
                let key = marked("no base64!");
                refused(("no account's key", AZURE), &server.url(), vec![("AZURE_STORAGE_KEY", key.clone())], vec![key])
            },
        ],
    );
}

#[test]
fn tokens_that_a_service_refuses_and_repeats() {
    let service = Echo::start(400, "invalid_grant");
    let nobody = "http://127.0.0.1:9";
    let bearer = marked("bearer");
    let web = |desk: &Desk, sts: &str| {
        vec![
            ("AWS_WEB_IDENTITY_TOKEN_FILE", desk.keep("token", &bearer)),
            ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r".to_owned()),
            ("AWS_ENDPOINT_URL_STS", sts.to_owned()),
        ]
    };
    let container = |uri: &str| {
        vec![
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.to_owned()),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", bearer.clone()),
        ]
    };
    let entra = |secret: (&'static str, String)| {
        let service = ("AZURE_AUTHORITY_HOST", service.url());
        vec![("AZURE_TENANT_ID", "tenant".to_owned()), ("AZURE_CLIENT_ID", "client".to_owned()), secret, service]
    };
    let url = service.url();
    none_leaks(
        &Desk::new,
        &[
            &|desk| refused(("a web identity", AMAZON), &url, web(desk, &url), vec![bearer.clone()]),
            &|desk| refused(("a web identity nobody takes", AMAZON), &url, web(desk, nobody), vec![bearer.clone()]),
            &|_| refused(("a container's token", AMAZON), &url, container(&url), vec![bearer.clone()]),
            &|_| refused(("a container nobody answers in", AMAZON), &url, container(nobody), vec![bearer.clone()]),
            &|_| {
                refused(
                    ("a secret of Entra ID", AZURE),
                    &url,
                    entra(("AZURE_CLIENT_SECRET", bearer.clone())),
                    vec![bearer.clone()],
                )
            },
            &|desk| {
                let file = ("AZURE_FEDERATED_TOKEN_FILE", desk.keep("token", &bearer));
                refused(("a federated token", AZURE), &url, entra(file), vec![bearer.clone()])
            },
            &|desk| {
                let (secret, token) = (marked("client"), marked("refresh"));
                let file = format!(
                    r#"{{"type":"authorized_user","client_id":"c","client_secret":"{secret}","refresh_token":"{token}","token_uri":"{url}/token"}}"#
                );
                let named = vec![("GOOGLE_APPLICATION_CREDENTIALS", desk.keep("user.json", &file))];
                refused(("a user of Google", GOOGLE), &url, named, vec![secret, token])
            },
        ],
    );
}

#[test]
fn files_and_programs_that_hold_rubbish() {
    let url = Echo::start(403, "AccessDenied").url();
    let secret = marked("rubbish");
    let config = |desk: &Desk, command: &str| {
        vec![("AWS_CONFIG_FILE", desk.keep("config", &format!("[default]\ncredential_process = {command}\n")))]
    };
    let google = |desk: &Desk, text: String| {
        let named = vec![("GOOGLE_APPLICATION_CREDENTIALS", desk.keep("key.json", &text))];
        refused(("a key file of Google", GOOGLE), &url, named, vec![secret.clone()])
    };
    let program = |desk: &Desk, command: &str| {
        let command = command.replace("SECRET", &secret);
        refused(("a program", AMAZON), &url, config(desk, &command), vec![secret.clone()])
    };
    none_leaks(
        &Desk::new,
        &[
            &|desk| program(desk, "echo SECRET"),
            &|desk| program(desk, "echo '{\"AccessKeyId\": \"SECRET\"'"),
            &|desk| program(desk, "sh -c 'echo SECRET >&2; exit 3'"),
            &|desk| program(desk, "/no/such/program --password SECRET"),
            &|desk| {
                let key = format!("-----BEGIN PRIVATE KEY-----\\n{secret}\\n-----END PRIVATE KEY-----\\n");
                google(desk, format!(r#"{{"type":"service_account","client_email":"e","private_key":"{key}"}}"#))
            },
            &|desk| google(desk, format!(r#"{{"type":"service_account","private_key":"{secret}","client_email":7}}"#)),
            &|desk| google(desk, format!("{secret} is no JSON")),
            &|desk| {
                let keys = format!("[default]\naws_secret_access_key {secret}\n{secret}\n");
                let named = vec![("AWS_SHARED_CREDENTIALS_FILE", desk.keep("credentials", &keys))];
                refused(("a broken profile", AMAZON), &url, named, vec![secret.clone()])
            },
            &|_| {
                let half = vec![("AWS_SECRET_ACCESS_KEY", secret.clone()), ("AWS_ACCESS_KEY_ID", "a\nb".to_owned())];
                refused(("a key with a line break", AMAZON), &url, half, vec![secret.clone()])
            },
            &|_| {
                let broken = vec![("AZURE_STORAGE_SAS_TOKEN", format!("sv=2021\r\n&sig={secret}"))];
                refused(("a broken signature", AZURE), &url, broken, vec![secret.clone()])
            },
        ],
    );
}

#[test]
fn secrets_in_addresses() {
    let url = Echo::start(403, "AccessDenied").url();
    let secret = "MARKEDinaddress";
    let keys = || vec![("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE".to_owned()), ("AWS_SECRET_ACCESS_KEY", "plain".to_owned())];
    let at = |uri: String| Case { uri, endpoint: None, ..refused(("a URI", ""), "", keys(), vec![secret.into()]) };
    let endpoint = |endpoint: String| refused(("an endpoint", AMAZON), &endpoint, keys(), vec![secret.into()]);
    let host = url.strip_prefix("http://").unwrap();
    none_leaks(
        &Desk::new,
        &[
            &|_| at(format!("http://user:{secret}@{host}/bucket/")),
            &|_| at(format!("https://account.blob.core.windows.net/bucket/k?sv=2021-12-02&sig={secret}&x=")),
            &|_| at(format!("s3://AKIAEXAMPLE:{secret}@bucket/")),
            &|_| at(format!("http://{host}/bucket/#{secret}/")),
            &|_| endpoint(format!("http://user:{secret}@{host}")),
            &|_| endpoint(format!("http://{host}/?token={secret}")),
            &|_| {
                let variables = vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://user:{secret}@{host}/"))];
                refused(("a service", AMAZON), &url, variables, vec![secret.into()])
            },
        ],
    );
}

/// Requests without TLS are handed to it with all that a server is sent, and it may repeat them.
#[test]
fn who_asks_a_proxy() {
    let password = marked("proxy");
    let escaped = percent(&password);
    let (knows, unknown) = (Echo::start(403, "AccessDenied"), Echo::start(407, "WhoAreYou"));
    let case = |name, (variable, server, written): (&'static str, &Echo, &str), uri| {
        let proxy = server.url().replace("http://", &format!("http://somebody:{written}@"));
        let variables = vec![(variable, proxy), ("FUELRAIL_ANONYMOUS", "true".to_owned())];
        Case { name, variables, uri: String::from(uri), endpoint: None, secrets: vec![password.clone()], serves: false }
    };
    none_leaks(
        &Desk::new,
        &[
            &|_| case("a proxy that repeats requests", ("http_proxy", &knows, &escaped), "http://far.test/bucket/set/"),
            &|_| {
                case(
                    "a proxy that wants another password",
                    ("http_proxy", &unknown, &escaped),
                    "http://far.test/bucket/set/",
                )
            },
            &|_| case("a way that is refused", ("https_proxy", &knows, &escaped), "https://far.test/bucket/set/"),
            &|_| case("a password that is not escaped", ("HTTPS_PROXY", &unknown, &password), "s3://bucket/set/"),
        ],
    );
}

#[test]
fn what_reads_buckets_of_its_own_beside_keys_for_others() {
    let (mut variables, mut secrets) = aws_keys();
    let proxy = marked("proxy");
    variables.push(("https_proxy", format!("http://somebody:{}@far.test:3128", percent(&proxy))));
    secrets.push(proxy);
    let case = || Case {
        name: "its own bucket",
        variables: variables.clone(),
        uri: String::new(),
        endpoint: None,
        secrets: secrets.clone(),
        serves: true,
    };
    none_leaks(&Desk::new, &[&|_| case()]);
}
