//! What is wrong with an instance, and what its user can do. Pure.

use crate::state::{Condition, Kind, Link, LinkState, Problem, SessionState, State};

/// More loss than this is worth a word: TCP by itself would suffer.
const NOTABLE_LOSS: f64 = 0.05;

/// Fills in the problems and the condition.
pub(crate) fn find(state: &mut State) {
    let mut problems = Vec::new();
    // Neither has links of its own, nor a session that it waits for.
    if matches!(state.instance.kind, Kind::Relay | Kind::Gateway) {
        state.condition = Condition::Up;
        state.problems = problems;
        return;
    }
    let connected = |state: &State| {
        let mut sessions = state.sessions.iter();
        sessions.any(|session| session.state == SessionState::Connected)
    };
    let is_connected = state.instance.kind.is_web() || connected(state);
    let carries = |link: &Link| link.state == LinkState::Active;
    let any_active = state.links.iter().any(carries);
    if !is_connected {
        problems.push(Problem {
            link: None,
            what: "there is no session to the relay".to_owned(),
            remedy: "it is tried again by itself; is the relay running, and its UDP port open? \
                     `tabane doctor` looks at every link"
                .to_owned(),
        });
    }
    if state.links.is_empty() {
        problems.push(Problem {
            link: None,
            what: "there is no link to use".to_owned(),
            remedy: "`tabane links` says why each interface is none".to_owned(),
        });
    } else if state.links.iter().all(|link| link.paused) {
        problems.push(Problem {
            link: None,
            what: "every link is paused, so nothing is carried".to_owned(),
            remedy: "resume one: `tabane top`, then p".to_owned(),
        });
    } else if !any_active {
        problems.push(Problem {
            link: None,
            what: "no link carries data at present".to_owned(),
            remedy: "connections wait and go on with the first link that returns".to_owned(),
        });
    }
    problems.extend(state.links.iter().filter_map(of_link));
    state.condition = match (is_connected && any_active, problems.is_empty()) {
        (false, _) => Condition::Down,
        (true, false) => Condition::Degraded,
        (true, true) => Condition::Up,
    };
    state.problems = problems;
}

fn of_link(link: &Link) -> Option<Problem> {
    let name = &link.name;
    let (what, remedy) = match link.state {
        LinkState::Paused | LinkState::Opening => return None,
        LinkState::Active => {
            let loss = link.traffic.loss.filter(|loss| *loss >= NOTABLE_LOSS)?;
            (
                format!("{name} loses {:.0} % of what is sent", loss * 100.0),
                "it is used less by itself; signal, cable and the link's other users are where \
                 to look"
                    .to_owned(),
            )
        }
        LinkState::Silent => (
            format!("nothing comes back over {name}"),
            "it is probed, and used again when it answers".to_owned(),
        ),
        LinkState::Down => (
            match &link.problem {
                Some(problem) => format!("{name} cannot be used: {problem}"),
                None => format!("{name} cannot be used"),
            },
            "it is tried again by itself; `tabane links` shows its addresses and carrier"
                .to_owned(),
        ),
    };
    Some(Problem {
        link: Some(name.clone()),
        what,
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::example;

    fn seen(change: impl FnOnce(&mut State)) -> State {
        let mut state = example();
        change(&mut state);
        find(&mut state);
        state
    }

    #[test]
    fn web_mode_needs_no_session() {
        let state = seen(|state| {
            state.instance.kind = Kind::Web;
            state.sessions.clear();
        });
        assert_eq!((state.condition, state.problems.len()), (Condition::Up, 0));
        let state = seen(|state| {
            state.instance.kind = Kind::Web;
            state.sessions.clear();
            state.links[0].state = LinkState::Down;
        });
        assert_eq!(state.condition, Condition::Degraded);
        assert_eq!(state.problems[0].link.as_ref(), Some(&state.links[0].name));
    }

    #[test]
    fn a_problem_names_its_link_and_the_worst_comes_first() {
        let state = seen(|_| {});
        assert_eq!((state.condition, state.problems.len()), (Condition::Up, 0));
        let state = seen(|state| state.links[1].state = LinkState::Silent);
        assert_eq!(state.condition, Condition::Degraded);
        assert_eq!(state.problems[0].link.as_deref(), Some("usb0"));
        let state = seen(|state| {
            state.sessions.clear();
            state.links[1].state = LinkState::Down;
        });
        assert_eq!(state.condition, Condition::Down);
        assert!(state.problems[0].what.contains("no session"));
        assert_eq!(state.problems.len(), 2);
    }

    #[test]
    fn a_paused_link_is_no_problem_unless_there_is_no_other() {
        let pause = |link: &mut Link| {
            link.paused = true;
            link.state = LinkState::Paused;
        };
        let state = seen(|state| pause(&mut state.links[1]));
        assert_eq!((state.condition, state.problems.len()), (Condition::Up, 0));
        let state = seen(|state| state.links.iter_mut().for_each(pause));
        assert_eq!(state.condition, Condition::Down);
        assert!(state.problems[0].what.contains("paused"));
    }
}
