//! A certificate for one venue: an authority of its own and a server certificate signed by it, made with `openssl`.
//!
//! Owns nothing; the files belong to the venue's folder. They are good for a month and for no other server.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fuelrail::{Error, Kind, Result};

use super::tool::run;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// The authority, for clients to trust.
    pub authority: PathBuf,
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// Makes a certificate for `address` and `localhost` in `folder`.
pub(super) fn make(folder: &Path, address: IpAddr) -> Result<Certificate> {
    let path = |name: &str| folder.join(name);
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| odd_folder(folder));
    let names = path("names.cnf");
    let words = format!("basicConstraints=CA:FALSE\nsubjectAltName=IP:{address},DNS:localhost\n");
    fs::write(&names, words).map_err(|error| Error::new(Kind::File, format!("{}: {error}", names.display())))?;
    let made = Certificate { authority: path("ca.pem"), chain: path("server.pem"), key: path("server.key") };
    let [names, authority, chain, key] = [&names, &made.authority, &made.chain, &made.key].map(|path| text(path));
    let (names, authority, chain, key) = (names?, authority?, chain?, key?);
    let (authority_key, request) = (text(&path("ca.key"))?, text(&path("server.csr"))?);
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let req = |tail: &[&str]| run("openssl", &[&["req"][..], &new_key, tail].concat());
    let subject = "/CN=cargo x bench authority";
    req(&["-x509", "-days", "30", "-subj", subject, "-keyout", &authority_key, "-out", &authority])?;
    req(&["-subj", "/CN=fuelrail bench", "-keyout", &key, "-out", &request])?;
    let sign = ["x509", "-req", "-days", "30", "-CAcreateserial", "-extfile", &names, "-in", &request];
    run("openssl", &[&sign[..], &["-CA", &authority, "-CAkey", &authority_key, "-out", &chain]].concat())?;
    Ok(made)
}

fn odd_folder(folder: &Path) -> Error {
    Error::new(Kind::Usage, format!("the folder {} is not UTF-8", folder.display())).cure("give another with --dir")
}
