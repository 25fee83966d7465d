//! What there is to know of a user: limits, what of the volume is used, devices and tokens.

use serde::Serialize;

use crate::access::{AccessList, UserEntry, UserName};
use crate::usage::UsageCounters;

/// A user for display. What is missing is not limited.
#[derive(Serialize)]
pub struct UserReport {
    /// What it is called.
    pub name: String,
    /// The most towards the user.
    pub rate_down: Option<String>,
    /// The most from the user.
    pub rate_up: Option<String>,
    /// What it may carry in a day or a month.
    pub volume: Option<String>,
    /// In this day or month, as the relay last wrote it.
    pub volume_used_bytes: Option<u64>,
    /// Sessions at once.
    pub sessions: Option<u32>,
    /// Connections and flows at once.
    pub streams: Option<u32>,
    /// The only destinations, if there are some.
    pub allow: Vec<String>,
    /// Destinations refused.
    pub deny: Vec<String>,
    /// Ports that may lead to it.
    pub ports: Vec<String>,
    /// Names that may.
    pub hosts: Vec<String>,
    /// Networks behind it that others may be led to.
    pub routes: Vec<String>,
    /// Domains that others may ask for there.
    pub domains: Vec<String>,
    /// Among whom such networks are shared.
    pub group: Option<String>,
    /// By which addresses its connections leave.
    pub exit_addresses: Vec<String>,
    /// Private addresses are open to it.
    pub private: bool,
    /// Keys of its devices.
    pub devices: Vec<String>,
    /// Labels of its tokens.
    pub tokens: Vec<String>,
}

impl UserReport {
    /// As the list has it `now`, in seconds since 1970.
    pub(crate) fn new(
        list: &AccessList,
        usage: &UsageCounters,
        user: &UserEntry,
        now: u64,
    ) -> Self {
        let is_own = |owner: &Option<UserName>| owner.as_ref() == Some(&user.name);
        let devices = list.clients().iter();
        let devices = devices.filter(|client| is_own(&client.user) && !client.revoked);
        let tokens = list.tokens().iter();
        let tokens = tokens.filter(|token| is_own(&token.user) && !token.is_expired(now));
        Self {
            name: user.name.to_string(),
            rate_down: user.rate_down.map(|rate| rate.to_string()),
            rate_up: user.rate_up.map(|rate| rate.to_string()),
            volume: user.volume.map(|volume| volume.to_string()),
            volume_used_bytes: user.volume.map(|_| usage.of(user, now).get()),
            sessions: user.sessions,
            streams: user.streams,
            allow: user.allow.iter().map(ToString::to_string).collect(),
            deny: user.deny.iter().map(ToString::to_string).collect(),
            ports: user.ports.iter().map(ToString::to_string).collect(),
            hosts: user.hosts.iter().map(ToString::to_string).collect(),
            routes: user.routes.iter().map(ToString::to_string).collect(),
            domains: user.domains.iter().map(ToString::to_string).collect(),
            group: user.group.as_ref().map(ToString::to_string),
            exit_addresses: user
                .exit_addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            private: user.private,
            devices: devices.map(|client| client.key.to_string()).collect(),
            tokens: tokens.map(|token| token.token.label().to_owned()).collect(),
        }
    }
}
