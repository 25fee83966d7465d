//! What the head of an answer says, as values that a transfer understands.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName,
    LOCATION, RETRY_AFTER,
};
use hyper::http::response::Parts;
use tabane_ranges::{Answer, ContentRange, EntityTag};

/// What an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// One for the transfer.
    Answer(Answer),
    /// It is elsewhere.
    Redirect(String),
}

/// Reads a head.
pub(crate) fn read(parts: &Parts) -> Head {
    let headers = &parts.headers;
    let status = parts.status.as_u16();
    Head::Answer(match status {
        200 | 203 => Answer::Whole {
            length: length(headers),
            tag: tag(headers),
        },
        204 => Answer::Whole {
            length: Some(0),
            tag: tag(headers),
        },
        206 => part(headers),
        301 | 302 | 303 | 307 | 308 => match text(headers, &LOCATION) {
            Some(location) => return Head::Redirect(location.to_owned()),
            None => Answer::Refused { status },
        },
        416 => Answer::Outside {
            total: match content_range(headers) {
                Some(ContentRange::None { total }) => Some(total),
                _ => None,
            },
        },
        408 | 425 | 429 | 500 | 502 | 503 | 504 => Answer::Busy {
            status,
            retry_after: retry_after(headers),
        },
        _ => Answer::Refused { status },
    })
}

/// Whether the server says that it knows ranges, RFC 9110 §14.3.
pub(crate) fn knows_ranges(headers: &HeaderMap) -> bool {
    let units = text(headers, &ACCEPT_RANGES).unwrap_or_default();
    let mut units = units.split(',').map(str::trim);
    units.any(|unit| unit.eq_ignore_ascii_case("bytes"))
}

/// Statuses after which what a redirect led to is worth looking up again.
pub(crate) fn is_stale(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 410)
}

/// What `Authorization` says of `user:password`, RFC 7617.
#[must_use]
pub fn basic(user: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("Basic ");
    for chunk in user.as_bytes().chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            let is_there = digit <= chunk.len();
            text.push(if is_there {
                char::from(DIGITS[value as usize])
            } else {
                '='
            });
        }
    }
    text
}

fn part(headers: &HeaderMap) -> Answer {
    match content_range(headers) {
        Some(ContentRange::Part {
            first,
            last,
            total: Some(total),
        }) if !is_encoded(headers) && length(headers).is_none_or(|n| n == last - first + 1) => {
            let tag = tag(headers);
            Answer::Part {
                first,
                last,
                total,
                tag,
            }
        }
        _ => Answer::Garbled,
    }
}

/// An encoding that nobody asked for is part of the file for us, as for curl. But it may be made
/// anew for every answer, so its tag says nothing.
fn tag(headers: &HeaderMap) -> Option<EntityTag> {
    EntityTag::strong(text(headers, &ETAG)?).filter(|_| !is_encoded(headers))
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let encoding = text(headers, &CONTENT_ENCODING);
    encoding.is_some_and(|encoding| !encoding.trim().eq_ignore_ascii_case("identity"))
}

fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, &CONTENT_LENGTH)?.trim().parse().ok()
}

fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    ContentRange::parse(text(headers, &CONTENT_RANGE)?)
}

/// In seconds; a date is left to our own patience.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = text(headers, &RETRY_AFTER)?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Response;

    fn head(status: u16, headers: &[(&str, &str)]) -> Head {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        read(&response.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn parts_are_taken_only_where_they_make_sense() {
        let range = ("content-range", "bytes 5-9/20");
        let tag = ("etag", "\"a\"");
        assert_eq!(
            head(206, &[range, tag, ("content-length", "5")]),
            Head::Answer(Answer::Part {
                first: 5,
                last: 9,
                total: 20,
                tag: EntityTag::strong("\"a\"")
            })
        );
        for wrong in [
            vec![tag],
            vec![("content-range", "bytes 5-9/*"), tag],
            vec![range, ("content-length", "6")],
            vec![range, ("content-encoding", "gzip")],
            vec![("content-type", "multipart/byteranges; boundary=x")],
        ] {
            assert_eq!(
                head(206, &wrong),
                Head::Answer(Answer::Garbled),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_weak_or_encoded_answer_has_no_tag() {
        for headers in [
            vec![("etag", "W/\"a\"")],
            vec![("etag", "\"a\""), ("content-encoding", "gzip")],
        ] {
            let whole = Answer::Whole {
                length: None,
                tag: None,
            };
            assert_eq!(head(200, &headers), Head::Answer(whole), "{headers:?}");
        }
    }

    #[test]
    fn other_statuses_say_what_to_do() {
        let busy = |status, seconds: Option<u64>| {
            let retry_after = seconds.map(Duration::from_secs);
            Head::Answer(Answer::Busy {
                status,
                retry_after,
            })
        };
        assert_eq!(head(503, &[("retry-after", "7")]), busy(503, Some(7)));
        assert_eq!(
            head(429, &[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")]),
            busy(429, None)
        );
        assert_eq!(
            head(404, &[]),
            Head::Answer(Answer::Refused { status: 404 })
        );
        assert_eq!(
            head(302, &[]),
            Head::Answer(Answer::Refused { status: 302 })
        );
        assert_eq!(
            head(302, &[("location", "/x")]),
            Head::Redirect("/x".to_owned())
        );
        let outside = Answer::Outside { total: Some(0) };
        assert_eq!(
            head(416, &[("content-range", "bytes */0")]),
            Head::Answer(outside)
        );
    }

    #[test]
    fn credentials_are_encoded_as_the_rfc_says() {
        assert_eq!(
            basic("Aladdin:open sesame"),
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        );
        assert_eq!(basic("me:pw"), "Basic bWU6cHc=");
        assert_eq!(basic("me:pw1"), "Basic bWU6cHcx");
    }
}
