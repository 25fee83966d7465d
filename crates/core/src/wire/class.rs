//! The CLASS frame's fields [P-11.2].

use super::cursor::{Cursor, Malformed, put_varint};
use super::frame::Frame;
use crate::class::{ClassId, ClassRule};
use crate::config::MAX_PATHS;
use crate::id::PathId;

/// Every piece on every path.
const REDUNDANT: u64 = 0x01;
/// The paths that may carry it follow.
const RESTRICTED: u64 = 0x02;

/// Bytes a CLASS takes at the most.
pub(crate) const CLASS_MAX: usize = 1 + 1 + 8 + 1 + 1 + 4 * MAX_PATHS;

/// Bytes a STREAM_CLASS takes at the most.
pub(crate) const STREAM_CLASS_MAX: usize = 1 + 8 + 8 + 1;

pub(super) fn emit_class(class: ClassId, number: u64, rule: &ClassRule, out: &mut Vec<u8>) {
    let mut flags = 0;
    if rule.redundant {
        flags |= REDUNDANT;
    }
    if rule.paths.is_some() {
        flags |= RESTRICTED;
    }
    for field in [class.get().into(), number, flags] {
        put_varint(out, field);
    }
    if let Some(paths) = &rule.paths {
        put_varint(out, paths.len() as u64);
        for path in paths {
            put_varint(out, path.0.into());
        }
    }
}

pub(super) fn parse_class<'a>(cursor: &mut Cursor<'_>) -> Result<Frame<'a>, Malformed> {
    let (class, number, flags) = (class_id(cursor)?, cursor.varint()?, cursor.varint()?);
    if class == ClassId::ORDINARY {
        return Err(Malformed);
    }
    let paths = match flags & RESTRICTED {
        0 => None,
        _ => {
            let count = cursor.varint()?;
            if count > MAX_PATHS as u64 {
                return Err(Malformed);
            }
            let path = |_| Ok(PathId(cursor.varint_u32()?));
            Some((0..count).map(path).collect::<Result<_, Malformed>>()?)
        }
    };
    let redundant = flags & REDUNDANT != 0;
    let rule = ClassRule { paths, redundant };
    Ok(Frame::Class {
        class,
        number,
        rule,
    })
}

pub(super) fn class_id(cursor: &mut Cursor<'_>) -> Result<ClassId, Malformed> {
    let number = u8::try_from(cursor.varint()?).map_err(|_| Malformed)?;
    ClassId::new(number).ok_or(Malformed)
}
