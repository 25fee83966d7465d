//! The time of day in an HTTP answer: `Thu, 26 Nov 2026 04:47:08 GMT` (RFC 9110 §5.6.7).

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// In seconds since 1970; `None` for what is no such date.
pub(super) fn parse(text: &str) -> Option<i64> {
    let mut words = text.strip_suffix(" GMT")?.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut clock = words
        .next()?
        .split(':')
        .map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let is_sane = (1970..10_000).contains(&year)
        && (1..32).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..61).contains(&second);
    // Before anything is reckoned: a year may be any number.
    if !is_sane {
        return None;
    }
    // Years begin in March, so that the odd day is the last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199)),
            ("Fri, 01 Mar 2024 00:00:00 GMT", Some(1_709_251_200)),
            ("Thu, 26 Nov 2026 04:47:08 GMT", Some(1_795_668_428)),
            ("Sun, 06 Nov 9223372036854775807 08:49:37 GMT", None),
            ("Sun, 06 Nov -9223372036854775808 08:49:37 GMT", None),
            (
                "Sun, 9223372036854775807 Nov 1994 9223372036854775807:49:37 GMT",
                None,
            ),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 28:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(parse(text), seconds, "{text}");
        }
    }
}
