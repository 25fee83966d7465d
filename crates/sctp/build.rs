//! Links the distribution's usrsctp, with two functions of it replaced by ours.
//!
//! The library sends IP packets by sockets of its own, through `sctp_userspace_ip_output` and the
//! same of IPv6. Made weak symbols in a copy of the archive, they give way to the functions in
//! `src/output.rs`, and packets are ours to send by whichever link they are meant for.

use std::path::PathBuf;
use std::process::{Command, exit};

const REPLACED: [&str; 2] = ["sctp_userspace_ip_output", "sctp_userspace_ip6_output"];
const REMEDY: &str = "on Debian and Ubuntu apt install libusrsctp-dev; or, without \
                      `tabane sctp`: --no-default-features --features dashboard,demo,fleet,lab,sim";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=USRSCTP_LIB_DIR");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-env-changed=OBJCOPY");
    let archive = find_archive();
    println!("cargo:rerun-if-changed={}", archive.display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let objcopy = std::env::var("OBJCOPY").unwrap_or_else(|_| "objcopy".to_owned());
    let run = Command::new(&objcopy)
        .args(REPLACED.map(|symbol| format!("--weaken-symbol={symbol}")))
        .arg(&archive)
        .arg(out.join("libtabane_usrsctp.a"))
        .status();
    match run {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!(
            "{objcopy} could not copy {} ({status})",
            archive.display()
        )),
        Err(error) => fail(&format!(
            "cannot run {objcopy} ({error}); on Debian: apt install binutils"
        )),
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=tabane_usrsctp");
}

/// The static library, from the directory named or from where the C compiler looks.
fn find_archive() -> PathBuf {
    const NAME: &str = "libusrsctp.a";
    if let Some(directory) = std::env::var_os("USRSCTP_LIB_DIR") {
        let path = PathBuf::from(directory).join(NAME);
        if !path.exists() {
            fail(&format!("{} is missing: {REMEDY}", path.display()));
        }
        return path;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let answer = Command::new(&compiler)
        .arg(format!("-print-file-name={NAME}"))
        .output();
    let path = match answer {
        Ok(output) => PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()),
        Err(error) => fail(&format!(
            "cannot run {compiler} ({error}); on Debian: apt install gcc"
        )),
    };
    // A compiler that does not find it repeats the bare name.
    if !path.is_absolute() {
        fail(&format!("{NAME} is missing: {REMEDY}"));
    }
    path
}

fn fail(line: &str) -> ! {
    println!("cargo::error={line}");
    exit(1);
}
