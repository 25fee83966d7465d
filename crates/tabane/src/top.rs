//! `tabane top`'s screen: what an instance does, as it does it.
//!
//! Owns the terminal and the loop around it. What is shown and what keys do is the app's affair,
//! how it looks the view's, where it comes from the feed's. The terminal is given back on every
//! way out: the end, an error, a panic, a signal.

mod app;
mod columns;
mod feed;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tabane_linux::terminal;

use crate::commands::status::InstanceArgs;
use crate::failure::Failure;
use crate::output;
use app::{Action, App};
use feed::{Feed, Update};

/// How long a key or an update may wait to be seen.
const TICK: Duration = Duration::from_millis(50);

/// Shows the instance until the user has seen enough.
pub(crate) fn show(instance: InstanceArgs) -> Result<()> {
    if !output::obeys_codes(&io::stdout()) || !io::stdin().is_terminal() {
        let text = "tabane top needs a terminal, and a TERM that says what it can (not dumb); \
                    `tabane status --watch` does without";
        return Err(Failure::usage(text).into());
    }
    // An instance that is not there is told on the terminal as it was.
    instance.find()?;
    let feed = Feed::start(instance).context("cannot start")?;
    let mut screen = ratatui::try_init().context("cannot use the terminal")?;
    let shown = attend(&mut screen, &feed);
    if terminal::has_hung_up(Duration::ZERO)? {
        // Nobody is there to be told of errors, and it would tell of them, and panic.
        std::mem::forget(screen);
        return Ok(());
    }
    ratatui::restore();
    shown
}

fn attend(screen: &mut DefaultTerminal, feed: &Feed) -> Result<()> {
    let mut app = App::default();
    let mut is_stale = true;
    loop {
        while let Some(update) = feed.poll() {
            match update {
                Update::State(state) => app.handle_state(*state),
                Update::Lost(why) => app.handle_lost(why),
                Update::Answer(answer) => app.handle_answer(answer),
                Update::Quit => return Ok(()),
            }
            is_stale = true;
        }
        if is_stale {
            screen.draw(|frame| view::draw(&app, frame))?;
            is_stale = false;
        }
        // Whoever reads keys of a terminal that has is told for ever that there are none yet.
        if terminal::has_hung_up(TICK)? {
            return Ok(());
        }
        if !event::poll(Duration::ZERO)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match app.handle_key(key) {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Change(link, change)) => feed.change(link, change),
                None => {}
            },
            _ => {}
        }
        is_stale = true;
    }
}
