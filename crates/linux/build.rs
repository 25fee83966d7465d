//! Builds the socket hooks with clang, the only compiler that has always spoken BPF.

use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    // Of this run, not of the build script's own: build directories are copied between worktrees.
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let ebpf = here.join("../../ebpf").canonicalize();
    let ebpf = ebpf.expect("the sources stand beside the crates");
    println!("cargo:rerun-if-changed={}", ebpf.display());
    println!("cargo:rerun-if-env-changed=CLANG");

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let endian = std::env::var("CARGO_CFG_TARGET_ENDIAN").expect("cargo sets the target's endian");
    let target = if endian == "big" { "bpfeb" } else { "bpfel" };
    for name in ["socket", "syn"] {
        let run = Command::new(&clang)
            .args([
                "-target", target, "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c",
            ])
            // Paths of the build machine have no place in the object, nor has where clang runs.
            .arg(format!("-ffile-prefix-map={}=ebpf", ebpf.display()))
            .arg(format!("{name}.bpf.c"))
            .arg("-o")
            .arg(out.join(format!("{name}.bpf.o")))
            .current_dir(&ebpf)
            .status();
        match run {
            Ok(status) if status.success() => {}
            Ok(status) => fail(&format!(
                "{clang} could not build ebpf/{name}.bpf.c ({status})"
            )),
            Err(error) => fail(&format!(
                "cannot run {clang} ({error}): the socket hooks need it; on Debian: apt install \
                 clang"
            )),
        }
    }
}

fn fail(line: &str) -> ! {
    println!("cargo::error={line}");
    exit(1);
}
