//! One file per command: its flags with their help, and what it does.

pub(crate) mod completion;
pub(crate) mod dashboard;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod gateway;
pub(crate) mod get;
pub(crate) mod join;
pub(crate) mod lab;
pub(crate) mod leave;
pub(crate) mod links;
pub(crate) mod peer;
pub(crate) mod policy;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod relays;
pub(crate) mod run;
pub(crate) mod sctp;
pub(crate) mod service;
pub(crate) mod share;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod up;
pub(crate) mod web;
