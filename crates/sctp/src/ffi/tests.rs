//! The layouts above against the header that is installed.

use super::*;
use std::fmt::Write as _;
use std::process::Command;

/// Ours, and what the header calls it.
fn layouts() -> Vec<(&'static str, String)> {
    vec![
        ("sctp_sndinfo", SndInfo::layout()),
        ("sctp_rcvinfo", RcvInfo::layout()),
        ("sctp_event", EventOn::layout()),
        ("sctp_setadaptation", SetAdaptation::layout()),
        ("sctp_paddrparams", PaddrParams::layout()),
        ("sctp_paddrinfo", PaddrInfo::layout()),
        ("sctp_status", Status::layout()),
        ("sctp_assoc_change", AssocChange::layout()),
        ("sctp_shutdown_event", ShutdownEvent::layout()),
        ("sctp_adaptation_event", AdaptationEvent::layout()),
    ]
}

#[test]
fn layouts_are_those_of_the_installed_header() {
    let mut program =
        "#include <stdio.h>\n#include <stddef.h>\n#include <usrsctp.h>\nint main(void) {\n"
            .to_owned();
    let ours = layouts();
    for (theirs, layout) in &ours {
        let mut words = layout.split(' ');
        let name = words.next().unwrap();
        let size = words.next().unwrap();
        assert!(size.parse::<usize>().unwrap() > 0);
        writeln!(program, "printf(\"{name} %zu\", sizeof(struct {theirs}));").unwrap();
        for field in words {
            let field = field.split(':').next().unwrap();
            writeln!(
                program,
                "printf(\" {field}:%zu\", offsetof(struct {theirs}, {field}));"
            )
            .unwrap();
        }
        program += "printf(\"\\n\");\n";
    }
    for (name, ours) in constants() {
        writeln!(program, "printf(\"{name} %ld\\n\", (long)({name}));").unwrap();
        assert!(ours >= 0);
    }
    program += "return 0; }\n";
    let printed = run(&program);
    let mut lines = printed.lines();
    for (_, layout) in ours {
        assert_eq!(lines.next().unwrap(), layout);
    }
    for (name, ours) in constants() {
        assert_eq!(lines.next().unwrap(), format!("{name} {ours}"));
    }
}

fn constants() -> Vec<(&'static str, i64)> {
    macro_rules! named {
        ($($name:ident)*) => { vec![$((stringify!($name), i64::from($name))),*] };
    }
    named! {
        IPPROTO_SCTP MSG_NOTIFICATION MSG_EOR SCTP_BINDX_ADD_ADDR
        SCTP_SENDV_SNDINFO SCTP_RECVV_RCVINFO SCTP_FUTURE_ASSOC SCTP_NODELAY
        SCTP_ADAPTATION_LAYER SCTP_PEER_ADDR_PARAMS SCTP_EVENT SCTP_RECVRCVINFO
        SCTP_STATUS SCTP_GET_ASSOC_NUMBER SCTP_GET_PEER_ADDR_INFO SCTP_SS_FIRST_COME SCTP_EOF
        SCTP_ABORT SCTP_ADDR_OVER SPP_HB_DEMAND SPP_PMTUD_DISABLE SCTP_ASSOC_CHANGE
        SCTP_SHUTDOWN_EVENT
        SCTP_ADAPTATION_INDICATION SCTP_COMM_UP SCTP_COMM_LOST SCTP_RESTART SCTP_SHUTDOWN_COMP
        SCTP_CANT_STR_ASSOC SCTP_ACTIVE SCTP_UNCONFIRMED
    }
}

/// The kernel's `sctp_uio.h` has an address, a number and three short ones; the size is what
/// alignment makes of that.
#[test]
fn what_the_header_lacks_is_as_the_kernel_has_it() {
    let layout = "PaddrThresholds 144 spt_address:0 spt_assoc_id:128 spt_pathmaxrxt:132 \
                  spt_pathpfthld:134 spt_pathcpthld:136";
    assert_eq!(PaddrThresholds::layout(), layout);
}

/// Compiles a C program and gives what it prints.
fn run(program: &str) -> String {
    let directory = std::env::temp_dir().join(format!("tabane-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc")
        .args([&source, &"-o".into(), &binary])
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    String::from_utf8(output.stdout).unwrap()
}
