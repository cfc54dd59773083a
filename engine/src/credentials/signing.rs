//! Requests of the control plane, authorised.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::Signatory;
use fuelrail_wire::sign::{Unsigned, is_covered};
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};

/// Adds the headers that authorise `request`, and to its query what belongs there. The body goes unsigned.
///
/// # Errors
/// `Usage` when the request cannot be signed.
pub(crate) fn authorise<B>(signatory: &mut Signatory, request: &mut Request<B>) -> Result<()> {
    let unfit = || Error::new(Kind::Usage, "the request cannot be signed: its address is incomplete");
    let host = request.uri().authority().ok_or_else(unfit)?.to_string();
    let path_and_query = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_string();
    let (mut query, mut lines) = (String::new(), Vec::new());
    {
        let covered = |name: &str| is_covered(name) || name == "content-length";
        let headers: Vec<(&str, &[u8])> = request
            .headers()
            .iter()
            .filter(|(name, _)| covered(name.as_str()))
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let method = request.method().as_str();
        let unsigned = Unsigned { method, host: &host, path_and_query: &path_and_query, headers: &headers };
        signatory.sign(&unsigned, &mut query, &mut lines)?;
    }
    for line in lines.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(unfit)?;
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| unfit())?;
        let mut value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).map_err(|_| unfit())?;
        value.set_sensitive(true);
        request.headers_mut().insert(name, value);
    }
    if !query.is_empty() {
        let between = if path_and_query.contains('?') { '&' } else { '?' };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(format!("{path_and_query}{between}{query}").parse().map_err(|_| unfit())?);
        *request.uri_mut() = parts.try_into().map_err(|_| unfit())?;
    }
    Ok(())
}
