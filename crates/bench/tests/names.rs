//! What `tabane-bench` says before it builds or measures anything.

use std::process::Command;

#[test]
fn rows_that_are_none_are_told_with_those_there_are_before_anything_is_built() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tabane-bench"));
    // Where no cargo is found, nothing can be built.
    let output = bench.arg("twinn").env_clear().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("twinn") && said.contains("unequal"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
