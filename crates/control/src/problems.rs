//! What is wrong with an instance, and what its user can do; what is unusual about a link. Pure.

use std::collections::BTreeMap;

use crate::state::{Condition, Kind, Link, LinkState, Problem, SessionState, State};

/// More loss than this is worth a word: TCP by itself would suffer.
const NOTABLE_LOSS: f64 = 0.05;
/// Links that were heard of last within this time of each other fell silent at once: on a quiet
/// session each is asked every 15 s.
const AT_ONCE_MS: u64 = 20_000;

impl Link {
    /// By what its packets are carried and why, in a sentence, where that is not as usual.
    #[must_use]
    pub fn carrier_note(&self) -> Option<String> {
        let why = self.carrier_reason.as_ref()?;
        Some(match &self.carrier {
            Some(carrier) => format!("{} is carried by {carrier}: {why}", self.name),
            None => format!("{}: {why}", self.name),
        })
    }
}

/// Fills in the problems and the condition.
pub(crate) fn find(state: &mut State) {
    // Neither has links of its own, nor a session that it waits for.
    if matches!(state.instance.kind, Kind::Relay | Kind::Gateway) {
        state.problems = of_exits(state);
        state.condition = match state.problems.is_empty() {
            true => Condition::Up,
            false => Condition::Degraded,
        };
        return;
    }
    let connected = |state: &State| {
        let mut sessions = state.sessions.iter();
        sessions.any(|session| session.state == SessionState::Connected)
    };
    let is_connected = state.instance.kind.has_links_alone() || connected(state);
    let any_active = state
        .links
        .iter()
        .any(|link| link.state == LinkState::Active);
    let mut problems = Vec::new();
    let is_suspect = is_relay_suspect(state);
    if !is_connected || is_suspect {
        problems.push(of_relay(state));
    }
    let is_used = |link: &&Link| link.state != LinkState::Unused;
    let mut used = state.links.iter().filter(is_used).peekable();
    if used.peek().is_none() {
        problems.push(Problem {
            link: None,
            what: "there is no link to use".to_owned(),
            remedy: "`tabane links` says why each interface is none".to_owned(),
        });
    } else if used.all(|link| link.paused) {
        problems.push(Problem {
            link: None,
            what: "every link is paused, so nothing is carried".to_owned(),
            remedy: "resume one: `tabane top`, then p".to_owned(),
        });
    } else if !any_active && !is_suspect {
        problems.push(Problem {
            link: None,
            what: "no link carries data at present".to_owned(),
            remedy: format!("{} until a link returns", meanwhile(state)),
        });
    }
    problems.extend(state.policy_fault.as_ref().map(of_policy));
    problems.extend(state.limit.as_ref().map(of_limit));
    let links = state.links.iter();
    let links = links.filter(|link| !(is_suspect && link.state == LinkState::Silent));
    problems.extend(links.filter_map(of_link));
    state.condition = match (is_connected && any_active, problems.is_empty()) {
        (false, _) => Condition::Down,
        (true, false) => Condition::Degraded,
        (true, true) => Condition::Up,
    };
    state.problems = problems;
}

/// Users whose packets have no address of the relay's to leave by, each once.
fn of_exits(state: &State) -> Vec<Problem> {
    let exits = state.sessions.iter().filter_map(|it| it.exit.as_ref());
    let missing: BTreeMap<&str, String> = exits
        .filter(|exit| !exit.missing.is_empty())
        .map(|exit| (&*exit.user, exit.missing.join(", ")))
        .collect();
    let problem = |(user, missing): (&str, String)| Problem {
        link: None,
        what: format!("this machine has no {missing}: what {user} sends by that is refused"),
        remedy: format!(
            "add the address to an interface (a routed range: `ip -6 route add local RANGE dev \
             lo`), or `tabane relay user set {user} --exit-address OTHER`"
        ),
    };
    missing.into_iter().map(problem).collect()
}

/// Whether all links fell silent at once: they have one thing in common.
fn is_relay_suspect(state: &State) -> bool {
    let is_meant = |link: &&Link| !matches!(link.state, LinkState::Unused | LinkState::Paused);
    let links: Vec<&Link> = state.links.iter().filter(is_meant).collect();
    let silent = links.iter().filter(|link| link.state == LinkState::Silent);
    let since = silent.filter_map(|link| link.path.as_ref()?.silent_ms);
    let since: Vec<u64> = since.collect();
    let spread = since.iter().max().zip(since.iter().min());
    let is_at_once = spread.is_some_and(|(longest, shortest)| longest - shortest <= AT_ONCE_MS);
    links.len() > 1 && since.len() == links.len() && is_at_once
}

/// The relay does not answer, or may not.
fn of_relay(state: &State) -> Problem {
    let what = match (state.silent_ms, is_relay_suspect(state)) {
        (Some(ms), true) => format!(
            "nothing has come over any link for {} s: they fell silent together, so it is likely \
             the relay that does not answer",
            ms / 1_000
        ),
        (Some(ms), false) => format!(
            "there is no session to the relay; it was heard last {} s ago",
            ms / 1_000
        ),
        (None, _) => "there is no session to the relay".to_owned(),
    };
    Problem {
        link: None,
        what,
        remedy: format!(
            "it is tried again by itself, and {} until it answers; is it running, and its UDP port \
             open? `tabane doctor` looks at every link",
            meanwhile(state)
        ),
    }
}

/// What becomes of connections that the session cannot carry.
const fn meanwhile(state: &State) -> &'static str {
    match state.instance.kind {
        Kind::Up => "new connections go as without tabane and open ones wait",
        Kind::Run
        | Kind::Proxy
        | Kind::Web
        | Kind::Get
        | Kind::Sctp
        | Kind::Relay
        | Kind::Gateway
        | Kind::Expose => "connections wait",
    }
}

/// The file has a fault, so that its changes are not followed.
fn of_policy(fault: &String) -> Problem {
    Problem {
        link: None,
        what: format!("the policy file is not followed: {fault}"),
        remedy: "the policy before it stays in force; correct that line (`tabane policy check` \
                 tells every fault)"
            .to_owned(),
    }
}

/// The relay, or the session, takes no more.
fn of_limit(limit: &String) -> Problem {
    Problem {
        link: None,
        what: format!("new connections go without the relay: {limit}"),
        remedy: "those that are carried go on; the relay is used again as soon as it takes more"
            .to_owned(),
    }
}

fn of_link(link: &Link) -> Option<Problem> {
    let name = &link.name;
    if let Some(page) = &link.portal {
        return Some(Problem {
            link: Some(name.clone()),
            what: format!("{name} is behind a login page (captive portal): {page}"),
            remedy: format!(
                "open that page over this link: `tabane open {name} -- BROWSER {page}`; the other \
                 links go on"
            ),
        });
    }
    let (what, remedy) = match link.state {
        LinkState::Paused | LinkState::Opening => return None,
        LinkState::Unused => {
            // Everything else is as the user wants it.
            let budget = link.budget.as_ref().filter(|budget| budget.is_spent())?;
            (
                format!("the budget of {name} is spent: it is not used"),
                format!(
                    "it is used again from {} (UTC) on; `tabane policy set {name} --budget AMOUNT` \
                     gives it another one",
                    budget.renews
                ),
            )
        }
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
    use crate::state::LinkBudget;
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
    fn a_limit_in_the_way_is_told() {
        let state = seen(|state| state.limit = Some("too many streams".to_owned()));
        assert_eq!(state.condition, Condition::Degraded);
        assert!(state.problems[0].what.contains("too many streams"));
    }

    #[test]
    fn links_that_fall_silent_together_make_the_relay_suspect() {
        let silence = |millis: [u64; 2], kind| {
            seen(|state| {
                state.instance.kind = kind;
                state.silent_ms = millis.into_iter().min();
                for (link, millis) in state.links.iter_mut().zip(millis) {
                    link.state = LinkState::Silent;
                    link.path.as_mut().unwrap().silent_ms = Some(millis);
                }
            })
        };
        let state = silence([14_200, 14_900], Kind::Run);
        assert_eq!(
            (state.condition, state.problems.len()),
            (Condition::Down, 1)
        );
        let Problem { what, remedy, link } = &state.problems[0];
        assert!(what.contains("14 s") && what.contains("relay"), "{what}");
        assert!(
            link.is_none() && remedy.contains("connections wait"),
            "{remedy}"
        );
        let remedy = &silence([14_200, 14_900], Kind::Up).problems[0].remedy;
        assert!(remedy.contains("go as without tabane"), "{remedy}");
        let state = silence([600_000, 200], Kind::Up);
        assert_eq!(state.problems.len(), 3);
        let Problem { what, remedy, .. } = &state.problems[0];
        assert!(what.contains("no link carries"), "{what}");
        assert!(remedy.contains("go as without tabane"), "{remedy}");
    }

    #[test]
    fn a_spent_budget_is_a_problem_and_a_link_left_out_by_wish_is_none() {
        let unused = |budget: Option<LinkBudget>| {
            seen(|state| {
                state.links[1].state = LinkState::Unused;
                state.links[1].path = None;
                state.links[1].budget = budget;
            })
        };
        assert_eq!(unused(None).condition, Condition::Up);
        let of = |used_bytes| LinkBudget {
            amount_bytes: 1_000,
            used_bytes,
            renews: "2026-12-01".to_owned(),
        };
        assert!(unused(Some(of(999))).problems.is_empty());
        let state = unused(Some(of(1_000)));
        assert_eq!(state.condition, Condition::Degraded);
        assert!(state.problems[0].what.contains("budget of usb0 is spent"));
        assert!(state.problems[0].remedy.contains("2026-12-01"));
    }

    #[test]
    fn a_faulty_policy_is_told_with_its_line() {
        let state = seen(|state| state.policy_fault = Some("policy.toml: line 3: x".to_owned()));
        assert_eq!(state.condition, Condition::Degraded);
        assert!(state.problems[0].what.contains("line 3"));
        assert!(state.problems[0].remedy.contains("stays in force"));
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
    fn a_login_page_is_named_with_what_opens_it() {
        let state = seen(|state| {
            state.links[1].state = LinkState::Silent;
            state.links[1].portal = Some("http://10.0.0.1/login".to_owned());
        });
        let Problem { what, remedy, link } = &state.problems[0];
        assert_eq!(link.as_deref(), Some("usb0"));
        assert!(
            what.contains("login page") && what.contains("http://10.0.0.1/login"),
            "{what}"
        );
        assert!(remedy.contains("tabane open usb0 -- "), "{remedy}");
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
