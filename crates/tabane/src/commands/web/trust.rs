//! Words about a local certificate authority: what it risks, and how programs are told to trust it
//! and to trust it no more.
//!
//! None of it is done by us: whom a program trusts is its user's to say.

use std::path::Path;

use tabane_web::KeptAuthority;

/// Where apt, which reads nothing of a user's, is to find it.
const APT_CERTIFICATE: &str = "/etc/apt/tabane.pem";
const APT_SETTINGS: &str = "/etc/apt/apt.conf.d/90tabane";
const DEBIAN_CERTIFICATE: &str = "/usr/local/share/ca-certificates/tabane.crt";
const FIREFOX: &str = "Settings, Privacy & Security, View Certificates, Authorities:";

/// Said before one is made.
pub(super) fn risks(made: &KeptAuthority, path: &Path) -> String {
    let names = made.domains.join(", ");
    format!(
        "This makes a certificate authority for {names} and all names below. What that means:\n\
         \n\
         - Whoever has its key can pretend to be these hosts towards every program that trusts \
         it. It\n  will be in {}\n  without a password: you can read it, and so can \
         every program that runs as you, and backups.\n\
         - It can pretend to be no other host: that stands in its certificate. Browsers and TLS \
         libraries\n  of today hold to it; some old ones do not.\n\
         - Programs no longer see these hosts' own certificates. tabane checks them instead, by \
         this\n  system's authorities, and answers 502 when one is wrong. Revoked ones it does not \
         notice, nor\n  what a browser knows beyond that (pinned keys, transparency logs).\n\
         - tabane sees in the clear what passes to and from these hosts while it is told to \
         intercept\n  them: passwords, cookies, contents. It keeps nothing of that; its lines show \
         addresses up to\n  the question mark.\n\
         - Nobody trusts it yet. Tell single programs rather than the whole system, and remove it \
         when\n  it is no longer needed.",
        path.display()
    )
}

/// Said when one was made.
pub(super) fn made(made: &KeptAuthority, date: &str, hosts: &[String]) -> String {
    let names = hosts.iter().map(|name| quoted(name)).collect::<Vec<_>>();
    format!(
        "made {}, until {date}; nobody trusts it yet\n\
         for one command:    tabane web --intercept {} -- CMD\n\
         for other programs: `tabane web ca show` says how",
        made.title,
        names.join(",")
    )
}

/// How programs are told to trust it.
pub(super) fn how(kept: &KeptAuthority, certificate: &str, bundle: &str) -> String {
    let title = &kept.title;
    let names = kept.domains.join(",");
    let run = format!("tabane web --intercept {names} -- CMD");
    let by_environment = "(sets SSL_CERT_FILE, CURL_CA_BUNDLE and their like for CMD alone)";
    let curl = format!("curl --cacert {bundle} …");
    let wget = format!("wget --ca-certificate={bundle} …");
    let git = format!("git -c http.sslCAInfo={bundle} …");
    let pip = format!("pip --cert {bundle} …");
    let node = format!("NODE_EXTRA_CA_CERTS={certificate} npm …");
    let certutil =
        format!("certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n '{title}' -i {certificate}");
    let mut apt = vec![
        format!("sudo install -m 644 {certificate} {APT_CERTIFICATE}"),
        format!("and in {APT_SETTINGS}:"),
    ];
    let told = |host| format!("Acquire::https::{host}::CAInfo \"{APT_CERTIFICATE}\";");
    apt.extend(kept.domains.iter().map(told));
    let apt: Vec<&str> = apt.iter().map(String::as_str).collect();
    let single = [
        row("a command", &[&run, by_environment]),
        row("curl", &[&curl]),
        row("wget", &[&wget]),
        row("git", &[&git]),
        row("pip", &[&pip]),
        row("npm, node", &[&node]),
        row("apt", &apt),
        row(
            "Firefox",
            &[FIREFOX, "Import the certificate, for websites"],
        ),
        row("Chromium", &[&certutil, "(package libnss3-tools)"]),
    ];
    let install = format!("sudo install -m 644 {certificate} {DEBIAN_CERTIFICATE}");
    let anchor = format!("sudo trust anchor {certificate}");
    let whole = [
        row("Debian", &[&install, "sudo update-ca-certificates"]),
        row("Fedora", &[&anchor]),
    ];
    format!(
        "Nobody trusts it who was not told to. Single programs:\n{}\
         The whole system, every program of every user:\n{}\n\
         `tabane web ca remove` ends it.",
        single.concat(),
        whole.concat()
    )
}

/// How they are told to trust it no more.
pub(super) fn how_not(kept: &KeptAuthority) -> String {
    let title = &kept.title;
    let apt = format!("sudo rm {APT_CERTIFICATE} {APT_SETTINGS}");
    let firefox = format!("Delete '{title}'");
    let certutil = format!("certutil -d sql:$HOME/.pki/nssdb -D -n '{title}'");
    let debian = format!("sudo rm {DEBIAN_CERTIFICATE}");
    let listed = "trust list --filter=ca-anchors";
    let rows = [
        row("apt", &[&apt]),
        row("Firefox", &[FIREFOX, &firefox]),
        row("Chromium", &[&certutil]),
        row("Debian", &[&debian, "sudo update-ca-certificates --fresh"]),
        row(
            "Fedora",
            &[
                listed,
                "sudo trust anchor --remove with the pkcs11:… it shows",
            ],
        ),
    ];
    let rows = rows.concat();
    format!("Take it out where it was trusted:\n{}", rows.trim_end())
}

/// A program's name beside its lines.
fn row(program: &str, lines: &[&str]) -> String {
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let name = if number == 0 { program } else { "" };
        text += &format!("  {name:<11} {line}\n");
    }
    text
}

/// A pattern would be expanded by the shell.
fn quoted(name: &str) -> String {
    match name.contains('*') {
        true => format!("'{name}'"),
        false => name.to_owned(),
    }
}
