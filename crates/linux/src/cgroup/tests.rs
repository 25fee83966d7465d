//! Groups of the real kernel; skipped without the right to make them.

use super::*;

fn create() -> Option<Cgroup> {
    match Cgroup::create() {
        Ok(group) => Some(group),
        Err(error @ (CgroupError::NotMounted | CgroupError::NotPermitted { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn sleeper(group: &Cgroup) -> std::process::Child {
    let mut command = Command::new("sleep");
    command.arg("60");
    group.place_child(&mut command).unwrap();
    command.spawn().unwrap()
}

#[test]
fn a_child_runs_in_the_group_from_its_first_instruction() {
    let Some(group) = create() else { return };
    let mut command = Command::new("cat");
    command.arg("/proc/self/cgroup");
    group.place_child(&mut command).unwrap();
    let output = command.output().unwrap();
    let name = group
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains(&format!("/tabane/{name}"))
    );
    assert_eq!(group.processes().unwrap(), []);

    let path = group.path().to_owned();
    group.remove(Leftovers::Release).unwrap();
    assert!(!path.exists());
}

#[test]
fn leftovers_are_released_alive_or_killed() {
    let Some(group) = create() else { return };
    let mut child = sleeper(&group);
    assert_eq!(group.processes().unwrap(), [child.id()]);
    let path = group.path().to_owned();
    drop(group);
    assert!(!path.exists());
    assert!(child.try_wait().unwrap().is_none(), "released, not killed");

    let group = Cgroup::create().unwrap();
    group.place(child.id()).unwrap();
    assert_eq!(group.processes().unwrap(), [child.id()]);
    group.remove(Leftovers::Kill).unwrap();
    assert!(!child.wait().unwrap().success());
}

#[test]
fn groups_without_holder_are_cleared_away_and_held_ones_stay() {
    let Some(held) = create() else { return };
    let stale = held
        .path()
        .with_file_name(format!("run-0-{}", std::process::id()));
    fs::create_dir(&stale).unwrap();
    assert!(held.path().exists());
    let fresh = Cgroup::create().unwrap();
    assert!(!stale.exists());
    assert!(held.path().exists());
    assert!(fresh.path().exists());
}
