//! Who trusts a local certificate authority: a command of ours by its environment, other programs
//! by what their users are told here, with what it risks, and how they trust it no more.
//!
//! Owns by which variable, file or setting each program is told. Nothing beyond the command is done
//! by us: whom a program trusts is its user's to say.

use std::path::{Path, PathBuf};

use crate::authority::KeptAuthority;
use crate::web_ca::WebCa;

/// The variables by which single programs are told of a file with all authorities.
const ONE_PROGRAMS: [&str; 7] = [
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    NODE,
];
/// Node's: a file with further authorities.
const NODE: &str = "NODE_EXTRA_CA_CERTS";
/// wget's: a file of settings.
const WGET: &str = "WGETRC";
/// Where apt, which reads nothing of a user's, is to find it.
const APT_CERTIFICATE: &str = "/etc/apt/tabane.pem";
const APT_SETTINGS: &str = "/etc/apt/apt.conf.d/90tabane";
const DEBIAN_CERTIFICATE: &str = "/usr/local/share/ca-certificates/tabane.crt";
const FIREFOX: &str = "Settings, Privacy & Security, View Certificates, Authorities:";

/// The variables that have a command trust the authority, beside whom it trusts anyway: the
/// system's, or those in a file that a variable names already.
pub fn variables(kept: &KeptAuthority, home: &WebCa) -> Vec<(&'static str, PathBuf)> {
    let (bundle, own) = (home.bundle(), home.certificate());
    // OpenSSL, Go and rustls read this one; what it names is among the system's.
    let mut variables = vec![("SSL_CERT_FILE", bundle.clone())];
    for name in ONE_PROGRAMS {
        let named = std::env::var_os(name).filter(|path| !path.is_empty());
        let joined = named.map(|path| home.join(kept, Path::new(&path), name));
        match joined {
            Some(Ok(path)) => variables.push((name, path)),
            Some(Err(error)) => tracing::warn!("{name} stays as it is: {error:#}"),
            // Node has the system's built in, and adds to them.
            None if name == NODE => variables.push((name, own.clone())),
            None => variables.push((name, bundle.clone())),
        }
    }
    match home.join_wgetrc(kept, wgetrc().as_deref()) {
        Ok(path) => variables.push((WGET, path)),
        Err(error) => tracing::warn!("{WGET} stays as it is: {error:#}"),
    }
    variables
}

/// The settings that wget reads without us.
fn wgetrc() -> Option<PathBuf> {
    let named = std::env::var_os(WGET).filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| {
        let own = std::env::home_dir()?.join(".wgetrc");
        own.exists().then_some(own)
    })
}

/// Said before one is made.
pub fn risks(made: &KeptAuthority, path: &Path) -> String {
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
pub fn made(made: &KeptAuthority, date: &str, hosts: &[String]) -> String {
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
pub fn how(kept: &KeptAuthority, certificate: &str, bundle: &str) -> String {
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
pub fn how_not(kept: &KeptAuthority) -> String {
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
