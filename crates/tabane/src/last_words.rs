//! What a defect in this program comes to: its message, and the end of the process.
//!
//! Tasks and threads that panic would end alone, and leave a daemon that lives and does nothing.
//! Whoever started it (systemd, a shell) can only help once it has gone; what it has set up in the
//! kernel is taken away by the next start or by `tabane down`, as after SIGKILL.

use std::panic;
use std::process;

/// What Rust's own programs end with when their main thread panics.
const STATUS: i32 = 101;

/// From here on a panic in any thread or task ends the process once it is told.
pub(crate) fn end_with_a_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        tell(panic);
        process::exit(STATUS);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const VARIABLE: &str = "TABANE_TEST_PANICS";
    const NAME: &str = "last_words::tests::a_panic_of_a_task_ends_the_process_and_is_told";

    /// Runs itself again, to be the program that panics.
    #[test]
    fn a_panic_of_a_task_ends_the_process_and_is_told() {
        let lives = async || std::future::pending::<()>().await;
        if let Ok(who) = std::env::var(VARIABLE) {
            end_with_a_panic();
            let panics = async move || {
                tokio::task::spawn_local(async move { panic!("of {who}") });
                lives().await;
            };
            match std::env::var(VARIABLE).as_deref() {
                Ok("a task") => tabane_tunnel::block_on(panics()).unwrap(),
                // A relay's worker is a thread beside the first.
                _ => {
                    std::thread::spawn(|| tabane_tunnel::block_on(panics()));
                    tabane_tunnel::block_on(lives()).unwrap();
                }
            }
        }
        let program = std::env::current_exe().unwrap();
        for who in ["a task", "a worker"] {
            let mut child = Command::new(&program);
            let child = child
                .args(["--exact", NAME, "--nocapture"])
                .env(VARIABLE, who);
            let output = child.output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(STATUS), "{told}");
            assert!(told.contains(&format!("of {who}")), "{told}");
        }
    }
}
