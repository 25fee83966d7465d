//! Whether anybody reads what this process writes.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::child::end_by;
use crate::inherited;

/// Ends this process by SIGPIPE where whoever read its standard output has gone, as a write there
/// ends others. Returns where that is not so, or SIGPIPE was ignored when this process began: then
/// it is for us to say.
pub fn end_where_unread() {
    let output = io::stdout();
    let mut asked = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty())];
    let is_unread = poll(&mut asked, Some(&Timespec::default())).is_ok_and(|_| {
        let said = asked[0].revents();
        said.intersects(PollFlags::ERR | PollFlags::HUP)
    });
    if is_unread && !inherited::ignored_pipes() {
        end_by(Signal::SIGPIPE as i32);
    }
}
