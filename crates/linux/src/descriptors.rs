//! How many descriptors this process may have open.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one and returns what it is then, `None` for no limit. The soft
/// limit is 1,024 almost everywhere, for the sake of programs that call `select(2)`.
///
/// # Errors
/// As `setrlimit(2)`; the limit is as it was.
pub fn raise_limit() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )?;
    }
    Ok(limit.maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_limit().unwrap();
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.maximum), (raised, raised));
    }
}
