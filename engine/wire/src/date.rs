//! Dates as texts: those of HTTP, of credentials (ISO 8601) and of signatures.

use fuelrail_base::WallTime;
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

/// The last second that four digits of a year can tell.
const LAST: u64 = 253_402_300_799;
const COMPACT: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");
const HTTP: &[BorrowedFormatItem<'_>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
const ISO: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

fn push(out: &mut impl std::io::Write, time: WallTime, form: &[BorrowedFormatItem<'_>]) {
    let time = OffsetDateTime::from_unix_timestamp(time.0.min(LAST) as i64).expect("the year has four digits");
    time.format_into(out, &form).expect("there is memory for it");
}

fn since_1970(time: OffsetDateTime) -> Option<WallTime> {
    u64::try_from(time.unix_timestamp()).ok().filter(|seconds| *seconds <= LAST).map(WallTime)
}

/// As AWS dates a request: `20130524T000000Z`. The first eight are the day.
pub fn compact(time: WallTime) -> [u8; 16] {
    let mut out = [0; 16];
    push(&mut &mut out[..], time, COMPACT);
    out
}

/// As HTTP writes it: `Fri, 24 May 2013 00:00:00 GMT`.
pub fn push_http(out: &mut Vec<u8>, time: WallTime) {
    push(out, time, HTTP);
}

/// As ISO 8601 writes it: `2013-05-24T00:00:00Z`.
pub fn iso(time: WallTime) -> String {
    let mut out = Vec::new();
    push(&mut out, time, ISO);
    String::from_utf8(out).expect("digits are text")
}

/// Reads a Date header in the one form that is still written (RFC 9110, 5.6.7).
pub fn parse_http(text: &[u8]) -> Option<WallTime> {
    let text = core::str::from_utf8(text).ok()?;
    since_1970(PrimitiveDateTime::parse(text, HTTP).ok()?.assume_utc())
}

/// Reads ISO 8601 as credentials are dated: `2013-05-24T00:00:00Z`, with parts of a second or an offset such as `+02:00`.
pub fn parse_iso(text: &str) -> Option<WallTime> {
    since_1970(OffsetDateTime::parse(&text.replacen(' ', "T", 1), &Rfc3339).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_in_every_form() {
        for (seconds, compacted, said, iso_said) in [
            (0, "19700101T000000Z", "Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z"),
            (1_369_353_600, "20130524T000000Z", "Fri, 24 May 2013 00:00:00 GMT", "2013-05-24T00:00:00Z"),
            (951_827_696, "20000229T123456Z", "Tue, 29 Feb 2000 12:34:56 GMT", "2000-02-29T12:34:56Z"),
            (LAST, "99991231T235959Z", "Fri, 31 Dec 9999 23:59:59 GMT", "9999-12-31T23:59:59Z"),
        ] {
            let time = WallTime(seconds);
            assert_eq!(core::str::from_utf8(&compact(time)).unwrap(), compacted);
            let mut http = Vec::new();
            push_http(&mut http, time);
            assert_eq!((http.as_slice(), iso(time).as_str()), (said.as_bytes(), iso_said));
            assert_eq!((parse_http(said.as_bytes()), parse_iso(iso_said)), (Some(time), Some(time)));
        }
        let time = Some(WallTime(1_369_353_600));
        for text in ["2013-05-24T00:00:00.123456Z", "2013-05-24T02:00:00+02:00", "2013-05-23 23:30:00.0-00:30"] {
            assert_eq!(parse_iso(text), time, "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "2013-05-24",
            "2013-06-31T00:00:00Z",
            "2013-13-01T00:00:00Z",
            "2013-05-24T24:00:00Z",
            "2013-05-24T00:00:00",
            "2013-05-24T00:00:00.Z",
            "2013-05-24T00:00:00+2",
            "1969-12-31T23:59:59Z",
            "2013-5-24T00:00:00Z",
        ] {
            assert_eq!(parse_iso(text), None, "{text}");
        }
        for text in ["", "Fri, 24 May 2013 00:00:00", "Friday, 24-May-13 00:00:00 GMT", "Fri, 24 Mai 2013 00:00:00 GMT"]
        {
            assert_eq!(parse_http(text.as_bytes()), None, "{text}");
        }
    }
}
