//! What a bucket means that does not let a request in: which refusals new credentials or another clock end, and what to do
//! about the others.

use fuelrail_base::Kind;

/// Kind and cure of a refusal with this `code`, where it is one about who asks or when; `None` for any other.
#[must_use]
pub fn refusal(status: u16, code: &str) -> Option<(Kind, &'static str)> {
    Some(match code {
        "ExpiredToken"
        | "ExpiredTokenException"
        | "TokenRefreshRequired"
        | "InvalidToken"
        | "RequestExpired"
        | "InvalidAuthenticationInfo"
        | "AuthenticationRequired" => (
            Kind::Expired,
            "the credentials have ended: renew them where they come from (aws sso login, a new token, …)",
        ),
        "RequestTimeTooSkewed" => (Kind::Expired, "this machine's clock is wrong: set it (NTP)"),
        "SignatureDoesNotMatch" => (
            Kind::Denied,
            "the secret access key does not belong to the access key id, or a proxy on the way changes requests: copy both again",
        ),
        "InvalidAccessKeyId" | "NotSignedUp" => (
            Kind::Denied,
            "the access key id is unknown here: it was deleted, belongs to another provider, or is a temporary one without \
             its session token (AWS_SESSION_TOKEN)",
        ),
        "AuthenticationFailed" => (
            Kind::Denied,
            "the storage account's key or the shared access signature is wrong or has ended, or this machine's clock is wrong",
        ),
        "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            (Kind::Denied, "set region to that of the bucket")
        }
        "AccessDenied"
        | "AllAccessDisabled"
        | "AccountProblem"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "InsufficientAccountPermissions"
        | "NoAuthenticationInformation" => (
            Kind::Denied,
            "who asks may not do this: allow reading and listing (s3:GetObject and s3:ListBucket, storage.objects.get and \
             list, Storage Blob Data Reader), or use other credentials; a plain URI is asked without any unless anonymous = false",
        ),
        "ResourceNotFound" if status == 404 => (
            Kind::NotFound,
            "check account and container; a container that is not public hides from who has no credentials",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_new_credentials_end_is_tried_again() {
        for (status, code, kind) in [
            (400, "ExpiredToken", Some(Kind::Expired)),
            (403, "RequestTimeTooSkewed", Some(Kind::Expired)),
            (401, "InvalidAuthenticationInfo", Some(Kind::Expired)),
            (403, "SignatureDoesNotMatch", Some(Kind::Denied)),
            (400, "AuthorizationHeaderMalformed", Some(Kind::Denied)),
            (403, "AccessDenied", Some(Kind::Denied)),
            (404, "NoSuchKey", None),
            (404, "ResourceNotFound", Some(Kind::NotFound)),
            (409, "ResourceNotFound", None),
            (503, "SlowDown", None),
        ] {
            let found = refusal(status, code).map(|(kind, _)| kind);
            assert_eq!(found, kind, "{code}");
            assert_eq!(found.is_some_and(Kind::retryable), kind == Some(Kind::Expired), "{code}");
        }
    }
}
