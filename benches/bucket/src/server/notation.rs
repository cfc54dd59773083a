//! How S3 writes things: text in XML, dates, checksums.

use quick_xml::escape::escape;

/// Text for XML: markup characters as entities, control characters as references, as S3 does.
pub(crate) fn xml_text(text: &str) -> String {
    let escaped = escape(text);
    if !escaped.contains(char::is_control) {
        return escaped.into_owned();
    }
    let mut out = String::with_capacity(escaped.len() + 16);
    for c in escaped.chars() {
        if c.is_control() {
            out.push_str(&format!("&#x{:X};", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Standard base64 of the four big-endian bytes of a CRC-32C, as S3 writes it.
pub(crate) fn checksum_text(checksum: u32) -> String {
    base64(&checksum.to_be_bytes())
}

/// Standard base64, padded.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(word);
        for place in 0..4 {
            let sextet = char::from(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]);
            text.push(if place <= chunk.len() { sextet } else { '=' });
        }
    }
    text
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT` for seconds since 1970.
pub(crate) fn http_date(s: u64) -> String {
    let (year, month, day) = civil(s / 86_400);
    let (weekday, name) = (DAYS[(s / 86_400 % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {day:02} {name} {year:04} {:02}:{:02}:{:02} GMT", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// `1994-11-06T08:49:37.000Z` for seconds since 1970.
pub(crate) fn iso_date(s: u64) -> String {
    let (year, month, day) = civil(s / 86_400);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.000Z", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Year, month and day of a day since 1970 in the Gregorian calendar (Howard Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso_date(784_111_777), "1994-11-06T08:49:37.000Z");
        assert_eq!(iso_date(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn checksums_are_base64_of_big_endian() {
        // CRC-32C of "123456789" is 0xE3069283.
        assert_eq!(checksum_text(crc32c::crc32c(b"123456789")), "4waSgw==");
        assert_eq!(checksum_text(0), "AAAAAA==");
        assert_eq!(
            (base64(b"").as_str(), base64(b"foo").as_str(), base64(b"fooba").as_str()),
            ("", "Zm9v", "Zm9vYmE=")
        );
    }
}
