//! This machine's interfaces and the neighbours who lend theirs: whether each is a link, why not,
//! and how the relay is reached over it.
//!
//! Owns what is asked of whom: the kernel, the policy, neighbours, sessions that run, and where it
//! is wished a session of its own.

use std::io;

use anyhow::{Context, Result};
use serde::Serialize;
use tabane_base::{Duration, Rate};
use tabane_control::{State, running};
use tabane_core::Identity;
use tabane_linux::interfaces::{Interface, Scope};
use tabane_store::Store;
use tabane_tunnel::LinkSnapshot;
use tabane_uplinks::{
    LinkPolicy, gateways,
    lent_links::{self, KIND, Lender},
    links,
};

use crate::client_session::{SessionOrder, SessionPlan};
use crate::reach::measure;

/// A link that there is, or would be, and what is known of it.
#[derive(Default, Serialize)]
pub struct Row {
    /// Its interface, or the neighbour's name.
    pub interface: String,
    /// What kind of interface, or that it is a neighbour.
    pub kind: String,
    /// Of the interface, or the one of the neighbour.
    pub addresses: Vec<String>,
    /// Where its default routes lead.
    pub gateways: Vec<String>,
    /// The interface is switched on.
    pub up: bool,
    /// There is something at the other end of the wire.
    pub carrier: bool,
    /// 0 where it is not known.
    pub mtu_bytes: u32,
    /// It could be a link.
    pub usable: bool,
    /// Why sessions leave it out though it is usable: the policy, a spent budget, or the choice of
    /// links by flag or in config.toml.
    pub unused: Option<String>,
    /// It costs by volume, by the policy or NetworkManager's word: others are used first.
    pub metered: bool,
    /// The instances that run and have paused it.
    pub paused_by: Vec<String>,
    /// Why it is not usable, or why the relay cannot be reached over it.
    pub problem: Option<String>,
    /// By what its packets go in a session that runs, or that measured it: udp or tls.
    pub carried_by: Option<String>,
    /// Why that, where it is not as usual.
    pub carried_by_reason: Option<String>,
    /// The login page (captive portal) that it is behind, as a session that runs has found.
    pub portal: Option<String>,
    /// The last round trip to the relay.
    pub rtt_ms: Option<f64>,
    /// Mean difference of successive round trips.
    pub jitter_ms: Option<f64>,
    /// What the way from the relay could carry, by packet pairs; IP packets whole.
    pub pair_in_bps: Option<u64>,
    /// The same from here.
    pub pair_out_bps: Option<u64>,
    /// Of the packets sent, the share that was lost.
    pub loss: Option<f64>,
    /// The most the last `tabane run` carried over it in half a second.
    pub received_peak_bps: Option<u64>,
    /// The same the other way.
    pub sent_peak_bps: Option<u64>,
}

impl Row {
    /// By what it is carried, and why that; nothing where that is not known.
    fn carrier_note(&self) -> String {
        match (&self.carried_by, &self.carried_by_reason) {
            (Some(carrier), Some(why)) => format!(", by {carrier}: {why}"),
            (Some(carrier), None) => format!(", by {carrier}"),
            (None, _) => String::new(),
        }
    }

    /// Whether sessions use it, and why not.
    pub fn verdict(&self) -> String {
        if let (Some(page), true) = (&self.portal, self.usable) {
            return format!("yes, but behind a login page: {page}");
        }
        match (&self.problem, self.usable) {
            (None, true) => match &self.unused {
                Some(why) => format!("not used: {why}"),
                None if !self.paused_by.is_empty() => {
                    format!("yes, but paused in {}", self.paused_by.join(", "))
                }
                None if self.metered => format!("yes, metered{}", self.carrier_note()),
                None => format!("yes{}", self.carrier_note()),
            },
            (Some(problem), true) => format!("yes, but {problem}"),
            (problem, false) => format!("no: {}", problem.as_deref().unwrap_or("unusable")),
        }
    }
}

/// Looks at all links as `order` has them; by the session of `plan`, where there is one, measures
/// them as well.
pub async fn look(
    plan: Option<SessionPlan>,
    order: &SessionOrder,
    store: &Store,
) -> Result<Vec<Row>> {
    let wanted = order.wanted_links(store)?;
    let policy = LinkPolicy::load_here(store).await?;
    let interfaces = gateways::list(policy.policy())
        .await
        .context("cannot list the interfaces")?;
    let mut rows: Vec<Row> = interfaces
        .iter()
        .map(|it| Row {
            metered: policy.terms(it).decision.metered,
            ..row(it, links::why_unused(it, &wanted, &policy))
        })
        .collect();
    let lenders = lent_links::find(&[], store)?;
    let lent: Vec<_> = match lenders.is_empty() {
        true => Vec::new(),
        false => {
            let identity = store.neighbour_identity()?;
            // All at once: those that are away take some seconds each.
            let row = |lender: Lender| {
                let is_shadowed = lender.is_shadowed(&interfaces);
                let terms = policy.terms_of(&lender.facts());
                let metered = terms.decision.metered;
                let unused = match order.leaves_out(&lender.name, &wanted) {
                    true => Some("other links were chosen".to_owned()),
                    false => terms.why_unused(),
                };
                let identity = identity.clone();
                tokio::task::spawn_local(async move {
                    let row = lent_row(lender, identity, is_shadowed).await;
                    Row {
                        unused,
                        metered,
                        ..row
                    }
                })
            };
            lenders.into_iter().map(row).collect()
        }
    };
    for row in lent {
        rows.push(row.await.context("a neighbour")?);
    }
    for state in running().await {
        add_running(&mut rows, &state);
    }
    if let Some(plan) = plan {
        let (client, lent) = plan.connect_by_all(store).await?;
        let snapshot = measure(&client, &lent).await;
        client.close().await;
        for link in &snapshot.links {
            if let Some(row) = rows.iter_mut().find(|row| row.interface == link.name) {
                add_measurement(row, link);
            }
        }
    }
    Ok(rows)
}

/// A neighbour's link; whether the neighbour is there shows when it proves its key. One that is not
/// is looked for.
async fn lent_row(lender: Lender, identity: Identity, is_shadowed: bool) -> Row {
    let mut reached = lender.answers(&identity, None).await;
    if reached.is_err() && lender.look(&identity, None).await {
        reached = Ok(());
    }
    let problem = match reached {
        _ if is_shadowed => Some("an interface has this name; forget it and pair again".to_owned()),
        Ok(()) => None,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Some("the neighbour does not answer".to_owned())
        }
        Err(error) => Some(format!("the neighbour is away ({error})")),
    };
    Row {
        interface: lender.name.to_string(),
        kind: KIND.to_owned(),
        addresses: vec![lender.at().to_string()],
        up: true,
        carrier: problem.is_none(),
        usable: problem.is_none(),
        problem,
        ..Row::default()
    }
}

/// What an instance that runs says of its links; all of a network's fare alike.
fn add_running(rows: &mut [Row], state: &State) {
    for link in &state.links {
        let Some(row) = rows.iter_mut().find(|row| row.interface == link.name) else {
            continue;
        };
        if link.paused {
            row.paused_by.push(state.instance.name.clone());
        }
        if link.carrier.is_some() {
            row.carried_by.clone_from(&link.carrier);
            row.carried_by_reason.clone_from(&link.carrier_reason);
        }
        // What is behind a login page carries nothing.
        if link.portal.is_some() {
            row.portal.clone_from(&link.portal);
        }
    }
}

fn add_measurement(row: &mut Row, link: &LinkSnapshot) {
    match link.round_trip() {
        Some(latest) => {
            let millis = |span: Duration| span.as_secs_f64() * 1e3;
            let estimate = link.estimate.as_ref();
            row.carried_by = Some(link.carried_by());
            row.carried_by_reason.clone_from(&link.carrier_why);
            row.rtt_ms = Some(millis(latest));
            row.jitter_ms = estimate.and_then(|link| link.jitter).map(millis);
            row.pair_in_bps = estimate.and_then(|link| link.pair_in).map(Rate::as_bps);
            row.pair_out_bps = estimate.and_then(|link| link.pair_out).map(Rate::as_bps);
            row.loss = estimate.map(|link| link.loss);
        }
        None => {
            let problem = link.problem.clone();
            row.problem = Some(problem.unwrap_or_else(|| "no answer from the relay".to_owned()));
        }
    }
}

fn row(interface: &Interface, unused: Option<String>) -> Row {
    let shown = interface
        .addresses
        .iter()
        .filter(|address| address.scope != Scope::Link);
    let gateways = interface
        .default_routes
        .iter()
        .map(|route| match route.gateway {
            Some(gateway) => gateway.to_string(),
            None => "on the wire".to_owned(),
        });
    let usable = interface.usable();
    Row {
        interface: interface.name.clone(),
        kind: interface.kind.to_string(),
        addresses: shown
            .map(|a| format!("{}/{}", a.address, a.prefix_bits))
            .collect(),
        gateways: gateways.collect(),
        up: interface.up,
        carrier: interface.carrier,
        mtu_bytes: interface.mtu,
        usable: usable.is_ok(),
        unused: unused.filter(|_| usable.is_ok()),
        problem: usable.err().map(|reason| reason.to_string()),
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_not_carried_as_usual_says_why() {
        let told = Row {
            carried_by: Some("tls".to_owned()),
            carried_by_reason: Some("UDP gets no answer here".to_owned()),
            usable: true,
            ..Row::default()
        };
        let verdict = "yes, by tls: UDP gets no answer here";
        assert_eq!(told.verdict(), verdict);
        let metered = Row {
            metered: true,
            ..told
        };
        let verdict = "yes, metered, by tls: UDP gets no answer here";
        assert_eq!(metered.verdict(), verdict);
        let paused = Row {
            paused_by: vec!["up".to_owned()],
            ..metered
        };
        assert_eq!(paused.verdict(), "yes, but paused in up");
    }
}
