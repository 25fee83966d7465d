//! Each check, seen to fail: a healthy small repository, one thing broken, the line that says so.

use super::check;
use super::tree::Tree;

const LAYERS: &str = "\
[tabane-base]
pure = true

[tabane-core]
pure = true
dependencies = [\"bytes\", \"tabane-base\"]
dev-dependencies = [\"proptest\"]

[tabane-linux]
may-use-unsafe = true
dependencies = [\"libc\", \"tabane-base\"]

[reasons]
bytes = \"Shared buffers.\"
libc = \"Calls.\"
proptest = \"Random tests.\"
";

/// A repository without a fault.
fn healthy() -> Tree {
    let mut tree = Tree::default();
    tree.insert(
        "Cargo.toml",
        "[workspace]\n[workspace.dependencies]\nbytes = \"1\"\n",
    );
    tree.insert("ARCHITECTURE.md", "`base`, `core` and `crates/linux`\n");
    tree.insert("layers.toml", LAYERS);
    for (name, dependencies) in [
        ("base", ""),
        (
            "core",
            "bytes.workspace = true\ntabane-base.workspace = true\n",
        ),
        ("linux", "libc = \"0.2\"\ntabane-base.workspace = true\n"),
    ] {
        let manifest = manifest(name, dependencies);
        tree.insert(&format!("crates/{name}/Cargo.toml"), manifest);
    }
    for name in ["base", "core"] {
        tree.insert(
            &format!("crates/{name}/clippy.toml"),
            "disallowed-types = []\n",
        );
        tree.insert(
            &format!("crates/{name}/src/lib.rs"),
            "//! Owns a noun.\n#![forbid(unsafe_code)]\nmod noun;\n",
        );
        tree.insert(
            &format!("crates/{name}/src/noun.rs"),
            "//! The noun.\nfn f() {}\n",
        );
    }
    tree.insert(
        "crates/linux/src/lib.rs",
        "//! Owns calls.\n// SAFETY: f has no\n// conditions.\nfn g() { unsafe { f() } }\n",
    );
    tree
}

fn manifest(name: &str, dependencies: &str) -> String {
    format!(
        "[package]\nname = \"tabane-{name}\"\n[lints]\nworkspace = true\n\
         [dependencies]\n{dependencies}"
    )
}

fn errors(tree: &Tree) -> Vec<String> {
    check(tree).errors().map(ToString::to_string).collect()
}

/// Puts `contents` at `path` of a healthy tree; asserts that one error comes, opening so.
#[track_caller]
fn breaks(path: &str, contents: &str, opening: &str) {
    let mut tree = healthy();
    tree.insert(path, contents);
    expect_one(&tree, opening);
}

#[track_caller]
fn expect_one(tree: &Tree, opening: &str) {
    let errors = errors(tree);
    assert!(
        errors.len() == 1 && errors[0].starts_with(opening),
        "expected one error opening with\n  {opening}\nfound\n  {errors:#?}"
    );
}

/// Appends `code` to a file of the pure crate `core`; line 3 is where it begins.
#[track_caller]
fn code_breaks(code: &str, opening: &str) {
    let contents = format!("//! The noun.\nfn f() {{}}\n{code}\n");
    breaks(
        "crates/core/src/noun.rs",
        &contents,
        &format!("crates/core/src/noun.rs:{opening}"),
    );
}

#[test]
fn a_healthy_tree_passes() {
    let findings = check(&healthy());
    assert_eq!(errors(&healthy()), [""; 0]);
    // `proptest` is allowed and not used.
    let hints: Vec<_> = findings.hints().map(ToString::to_string).collect();
    assert_eq!(
        hints,
        ["layers.toml:4: tabane-core does not use proptest: take it out"]
    );
}

#[test]
fn dependencies_outside_the_list() {
    let core = "crates/core/Cargo.toml";
    let opening = "crates/core/Cargo.toml:8: tabane-core may not depend on";
    let fixed = "tabane-base.workspace = true\nbytes.workspace = true\n";
    let with = |more: &str| manifest("core", &format!("{fixed}{more}\n"));
    breaks(core, &with("tokio = \"1\""), &format!("{opening} tokio"));
    breaks(
        core,
        &with("b = { package = \"rand\", version = \"1\" }"),
        &format!("{opening} rand"),
    );
    let nine = opening.replace(":8:", ":9:");
    let build = with("[build-dependencies]\ncc = \"1\"");
    breaks(core, &build, &format!("{nine} cc"));
    let platform = with("[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"");
    breaks(core, &platform, &format!("{nine} libc"));
    // What tests may use, the crate itself may not.
    breaks(
        core,
        &with("proptest = \"1\""),
        &format!("{opening} proptest"),
    );
    let mut tree = healthy();
    tree.insert(core, with("[dev-dependencies]\nproptest = \"1\""));
    assert_eq!(errors(&tree), [""; 0]);
}

#[test]
fn a_dependency_renamed_in_the_workspace_keeps_its_own_name() {
    let mut tree = healthy();
    let root = "[workspace.dependencies]\nbytes = { package = \"rand\", version = \"1\" }\n";
    tree.insert("Cargo.toml", root);
    expect_one(
        &tree,
        "crates/core/Cargo.toml:6: tabane-core may not depend on rand",
    );
}

#[test]
fn arrows_from_pure_to_impure() {
    let mut tree = healthy();
    tree.insert(
        "layers.toml",
        LAYERS.replace("\"bytes\"", "\"bytes\", \"tabane-linux\""),
    );
    let dependencies =
        "bytes.workspace = true\ntabane-base.workspace = true\ntabane-linux.workspace = true\n";
    tree.insert("crates/core/Cargo.toml", manifest("core", dependencies));
    expect_one(
        &tree,
        "crates/core/Cargo.toml:8: tabane-core is pure and tabane-linux is not",
    );
}

#[test]
fn every_dependency_has_a_reason_and_nothing_else_has() {
    let without = LAYERS.replace("libc = \"Calls.\"\n", "");
    breaks(
        "layers.toml",
        &without,
        "layers.toml:13: libc has no reason",
    );
    let empty = LAYERS.replace("Calls.", "");
    breaks("layers.toml", &empty, "layers.toml:13: libc has no reason");
    let more = format!("{LAYERS}rand = \"Dice.\"\n");
    breaks(
        "layers.toml",
        &more,
        "layers.toml:13: no crate may depend on rand",
    );
}

#[test]
fn layers_and_crates_must_match() {
    breaks(
        "layers.toml",
        &format!("[tabane-ghost]\n{LAYERS}"),
        "layers.toml:1: there is no",
    );
    let mut tree = healthy();
    tree.insert(
        "layers.toml",
        LAYERS.replace("tabane-linux]", "tabane-linus]"),
    );
    let found = errors(&tree);
    assert!(
        found
            .iter()
            .any(|e| e.starts_with("crates/linux/Cargo.toml:1: tabane-linux has no"))
    );
    tree.insert(
        "layers.toml",
        LAYERS.replace("pure = true\n\n", "pura = true\n\n"),
    );
    assert!(
        errors(&tree)
            .iter()
            .any(|error| error.starts_with("layers.toml:2: unknown field"))
    );
    tree.remove("layers.toml");
    assert!(
        errors(&tree)
            .iter()
            .any(|error| error.starts_with("layers.toml:1: missing"))
    );
}

#[test]
fn manifests() {
    let manifest = healthy()
        .text("crates/base/Cargo.toml")
        .expect("it is in the tree");
    let path = "crates/base/Cargo.toml";
    let without_lints = manifest.replace("workspace = true", "");
    breaks(
        path,
        &without_lints,
        "crates/base/Cargo.toml:1: the workspace's lints",
    );
    let mut tree = healthy();
    tree.insert(path, manifest.replace("tabane-base", "tabane-ground"));
    let opening = "crates/base/Cargo.toml:2: the crate in crates/base is called tabane-base";
    assert!(errors(&tree).iter().any(|error| error.starts_with(opening)));
}

#[test]
fn pure_crates() {
    let clippy = "crates/core/clippy.toml";
    breaks(
        clippy,
        "disallowed-types = [\n]\n",
        "crates/core/clippy.toml:1: differs from",
    );
    let mut tree = healthy();
    tree.remove(clippy);
    expect_one(&tree, "crates/core/clippy.toml:1: missing");
    let library = "crates/core/src/lib.rs";
    breaks(
        library,
        "//! Owns a noun.\nmod noun;\n",
        "crates/core/src/lib.rs:1: a pure crate",
    );
    code_breaks(
        "#[expect(clippy::disallowed_methods)]\nfn g() {}",
        "3: disallowed_methods holds",
    );
    let mut tree = healthy();
    let in_test =
        "//! The noun.\n#[cfg(test)]\n#[expect(clippy::disallowed_types)]\nmod tests {}\n";
    tree.insert("crates/core/src/noun.rs", in_test);
    assert_eq!(errors(&tree), [""; 0]);
}

#[test]
fn unsafe_code() {
    code_breaks("fn g() { unsafe { f() } }", "3: `unsafe` outside");
    let linux = "crates/linux/src/lib.rs";
    let bare = "//! Owns calls.\n// Fast.\nfn g() {\n    unsafe { f() }\n}\n";
    breaks(linux, bare, "crates/linux/src/lib.rs:4: no `// SAFETY:`");
    let implemented = "//! Owns calls.\nunsafe impl Send for A {}\n";
    breaks(
        linux,
        implemented,
        "crates/linux/src/lib.rs:2: no `// SAFETY:`",
    );
    for sound in [
        "//! Owns calls.\nfn g() {\n    // SAFETY: f asks for nothing.\n    let x =\n        \
         unsafe { f() };\n}\n",
        "//! Owns calls.\nfn g() {\n    unsafe { f() } // SAFETY: nothing is asked.\n}\n",
        "//! Owns calls, no `unsafe { }`.\n/// # Safety\n/// None.\nunsafe fn g() {}\n",
    ] {
        let mut tree = healthy();
        tree.insert(linux, sound);
        assert_eq!(errors(&tree), [""; 0], "{sound}");
    }
}

#[test]
fn dead_files() {
    let path = "crates/core/src/left_over.rs";
    breaks(
        path,
        "//! A noun.\n",
        "crates/core/src/left_over.rs:1: no `mod` names",
    );
    // A child belongs below the file that declares it, not beside; a comment declares nothing.
    for declaration in [
        "mod left_over;",
        "// mod left_over;",
        "mod b { mod left_over; }",
    ] {
        let mut tree = healthy();
        tree.insert(path, "//! A noun.\n");
        tree.insert(
            "crates/core/src/noun.rs",
            format!("//! The noun.\n{declaration}\n"),
        );
        expect_one(&tree, "crates/core/src/left_over.rs:1: no `mod` names");
    }
}

#[test]
fn files_are_reached_along_every_kind_of_declaration() {
    let mut tree = healthy();
    let noun = "//! The noun.\npub(crate) mod a;\nmod b {\n    mod c;\n    fn f() { {} }\n}\n\
                #[path = \"elsewhere.rs\"]\nmod d;\n";
    tree.insert("crates/core/src/noun.rs", noun);
    for path in [
        "src/noun/a.rs",
        "src/noun/b/c.rs",
        "src/elsewhere.rs",
        "tests/whole.rs",
    ] {
        tree.insert(&format!("crates/core/{path}"), "//! A noun.\n");
    }
    assert_eq!(errors(&tree), [""; 0]);
}

#[test]
fn the_map_names_every_crate() {
    breaks(
        "ARCHITECTURE.md",
        "`base`, `linux`, core\n",
        "ARCHITECTURE.md:1: `core` is not",
    );
    let mut tree = healthy();
    tree.remove("ARCHITECTURE.md");
    expect_one(&tree, "ARCHITECTURE.md:1: missing");
}

#[test]
fn module_docs() {
    let path = "crates/core/src/noun.rs";
    breaks(
        path,
        "fn f() {}\n",
        "crates/core/src/noun.rs:1: does not open",
    );
    breaks(path, "", "crates/core/src/noun.rs:1: does not open");
    breaks(
        path,
        "//!\nfn f() {}\n",
        "crates/core/src/noun.rs:1: the `//!` says nothing",
    );
    breaks(
        path,
        "//! (being written)\n",
        "crates/core/src/noun.rs:1: the `//!` says nothing",
    );
}

#[test]
fn words_that_mean_unfinished() {
    code_breaks("fn g() { todo!() }", "3: `todo!`");
    code_breaks("fn g() { unimplemented!() }", "3: `unimplemented!`");
    code_breaks("fn g() { dbg!(1) }", "3: `dbg!`");
    code_breaks("// FIXME later", "3: `FIXME`");
    code_breaks("// XXX", "3: `XXX`");
    code_breaks("// TODO: more", "3: `TODO` without a name");
    code_breaks(
        "#[ignore = \"slow\"]\nfn g() {}",
        "3: a test that never runs",
    );
    let mut tree = healthy();
    let fine = "//! The noun.\n// TODO(ann): one path only, so no fallback.\n\
                fn f() { let _ = \"FIXME todo!() #[ignore]\"; my_dbg!(XXX_1) }\n";
    tree.insert("crates/core/src/noun.rs", fine);
    assert_eq!(errors(&tree), [""; 0]);
}

#[test]
fn long_lines() {
    let long = |characters: usize| format!("// {}", "é".repeat(characters - 3));
    code_breaks(&long(101), "3: 101 characters, at most 100");
    let mut tree = healthy();
    tree.insert(
        "crates/core/src/noun.rs",
        format!("//! The noun.\n{}\n", long(100)),
    );
    assert_eq!(errors(&tree), [""; 0]);
}

#[test]
fn empty_names() {
    code_breaks("mod helpers { }", "3: `mod helpers` says nothing");
    let mut tree = healthy();
    tree.insert(
        "crates/core/src/lib.rs",
        "//! A noun.\n#![forbid(unsafe_code)]\nmod utils;\n",
    );
    tree.remove("crates/core/src/noun.rs");
    tree.insert("crates/core/src/utils.rs", "//! A noun.\n");
    expect_one(&tree, "crates/core/src/utils.rs:1: `utils` says nothing");
    tree.remove("crates/core/src/utils.rs");
    tree.insert(
        "crates/core/src/lib.rs",
        "//! A noun.\n#![forbid(unsafe_code)]\nmod noun;\n",
    );
    tree.insert("crates/core/src/noun/mod.rs", "//! A noun.\n");
    expect_one(&tree, "crates/core/src/noun/mod.rs:1: `foo/mod.rs`");
}

#[test]
fn sizes() {
    let file = |lines: usize| format!("//! The noun.\n{}", "fn f() {}\n".repeat(lines - 1));
    let path = "crates/core/src/noun.rs";
    breaks(
        path,
        &file(501),
        "crates/core/src/noun.rs:1: 501 lines, at most 500",
    );
    let mut tree = healthy();
    tree.insert(path, file(500));
    let found = check(&tree);
    assert_eq!(found.errors().count(), 0);
    assert!(
        found
            .hints()
            .any(|hint| hint.to_string().contains("500 lines, more than 400"))
    );
    let function = |lines: usize| {
        let lines = "    ;\n".repeat(lines - 2);
        format!("//! The noun.\nfn f() {{\n{lines}}}\n")
    };
    breaks(
        path,
        &function(71),
        "crates/core/src/noun.rs:2: `f` has 71 lines, at most 70",
    );
    let mut tree = healthy();
    tree.insert(path, function(70));
    assert_eq!(errors(&tree), [""; 0]);
    breaks(
        "docs/plot.svg",
        &"x".repeat(200_001),
        "docs/plot.svg:1: 200 KB",
    );
}

#[test]
fn more_crates_than_one_keeps_in_mind() {
    let mut findings = super::finding::Findings::default();
    super::size::check_crates(24, &mut findings);
    assert_eq!(findings.errors().count(), 0);
    super::size::check_crates(25, &mut findings);
    let found: Vec<_> = findings.errors().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["Cargo.toml:1: 25 crates, at most 24: which two are one?"]
    );
}

#[test]
fn a_command_line_that_is_more_than_that() {
    let mut tree = healthy();
    let manifest = manifest("core", "").replace("tabane-core", "tabane");
    tree.insert("crates/tabane/Cargo.toml", manifest);
    for number in 0..30 {
        let path = format!("crates/tabane/src/command{number}.rs");
        tree.insert(&path, "//\n".repeat(400));
    }
    // Neither tests nor other crates' files count.
    tree.insert("crates/tabane/tests/cli.rs", "//\n".repeat(400));
    tree.insert("crates/tabane-like/src/lib.rs", "//\n".repeat(400));
    let found = |tree: &Tree| {
        let mut findings = super::finding::Findings::default();
        let crates = super::crates::read(tree, &mut findings);
        let sources = super::source::parse_all(tree);
        super::size::check_command_line(&crates, &sources, &mut findings);
        let errors = findings.errors().map(ToString::to_string);
        errors.collect::<Vec<_>>()
    };
    assert_eq!(found(&tree), [""; 0]);
    tree.insert("crates/tabane/src/output.rs", "//\n");
    let errors = found(&tree);
    let opening = "crates/tabane/Cargo.toml:1: 12001 lines, at most 12000";
    assert!(
        errors.len() == 1 && errors[0].starts_with(opening),
        "{errors:#?}"
    );
}
