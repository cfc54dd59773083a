//! GETs as a load generator sends them: one after the other over a keep-alive connection, without retries.

use crate::access::{Access, wherever};
use crate::client::{ANSWER_TIMEOUT, Ask, Client, runtime, within};
use crate::route::Route;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::Scheme;
use hyper::Method;
use tokio::runtime::Runtime;

/// A bucket whose GETs are timed.
#[derive(Debug)]
pub struct Gets {
    route: Route,
}

impl Gets {
    /// The bucket of `uri`, or where it has moved to: a GET of one byte of `key` finds out.
    ///
    /// # Errors
    /// `Usage` for a bad URI or a folder; `Environment` and `File` for unusable settings in `access`; `NotFound`, `Denied`,
    /// `Network` … for the server's response.
    pub fn open(access: impl Into<Access>, uri: &str, key: &str) -> Result<Gets> {
        let access = access.into().settled(uri)?;
        let endpoint = access.cloud.endpoint(uri)?;
        if endpoint.scheme == Scheme::File {
            return Err(Error::new(Kind::Usage, format!("{uri} is a folder: give the URI of a bucket")));
        }
        let (_, route) =
            wherever(&access, uri, endpoint, |route| route.run(async |client| get(&client, key, Some(1)).await))?;
        Ok(Gets { route })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// `Network`, `Untrusted` … when the server cannot be reached; `Environment` when the system refuses an event loop.
    pub fn connect(&self) -> Result<GetConnection<'_>> {
        let (runtime, client) = (runtime()?, Client::new(&self.route, ANSWER_TIMEOUT)?);
        runtime.block_on(client.dial())?;
        Ok(GetConnection { runtime, client })
    }
}

/// A connection that is kept from one GET to the next. Blocks: not for use inside an async runtime.
pub struct GetConnection<'a> {
    runtime: Runtime,
    client: Client<'a>,
}

impl GetConnection<'_> {
    /// GETs the first `bytes` of an object (at least one), or all of it, to the last byte. Returns the number of bytes.
    ///
    /// # Errors
    /// The error of the server's response, `Truncated` when the body ends early, `Stalled` when nothing arrives.
    pub fn get(&mut self, key: &str, bytes: Option<u64>) -> Result<u64> {
        self.runtime.block_on(get(&self.client, key, bytes))
    }
}

async fn get(client: &Client<'_>, key: &str, bytes: Option<u64>) -> Result<u64> {
    let ask = Ask::new(Method::GET, client.route.endpoint.object_path(key));
    let ask = match bytes {
        Some(bytes) => ask.header("range", format!("bytes=0-{}", bytes.saturating_sub(1))),
        None => ask,
    };
    let mut reply = within(ANSWER_TIMEOUT, client.send_whole(&ask)).await??;
    if !reply.status.is_success() {
        return Err(client.refused(&ask, &reply.read().await?).into_error().with_object(key));
    }
    let mut came = 0;
    while let Some(bytes) = reply.more().await? {
        came += bytes.len() as u64;
    }
    Ok(came)
}
