//! Buffers for Ethernet frames that return to their pool by themselves.
//!
//! For one thread: frames and pool share a count without atomics.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// The longest frame, in bytes: 1500 of IP, 14 of Ethernet header, 4 of VLAN tag, and room.
pub const FRAME_MAX: usize = 2_048;

/// Buffers kept for reuse, at most: 16 MB. More are in use only while deep queues fill, and go
/// back to the allocator.
const POOL_MAX: usize = 8_192;

type Buffer = Box<[u8; FRAME_MAX]>;

/// Where frames come from and go back to. Clones share the buffers.
#[derive(Clone, Default)]
pub struct FramePool {
    free: Rc<RefCell<Vec<Buffer>>>,
}

impl FramePool {
    /// An empty pool; it grows by what is taken.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A frame of length zero.
    #[must_use]
    pub fn take(&self) -> Frame {
        let recycled = self.free.borrow_mut().pop();
        Frame {
            buffer: Some(recycled.unwrap_or_else(|| Box::new([0; FRAME_MAX]))),
            len: 0,
            pool: self.clone(),
        }
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePool({} free)", self.free.borrow().len())
    }
}

/// One Ethernet frame.
#[derive(Debug)]
pub struct Frame {
    /// Taken only by `drop`.
    buffer: Option<Buffer>,
    len: usize,
    pool: FramePool,
}

impl Frame {
    /// What is in the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer()[..self.len]
    }

    /// The whole buffer, to be written; [`set_len`](Self::set_len) says how much of it counts.
    pub fn room_mut(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Some(buffer) => &mut buffer[..],
            None => unreachable!("a frame has its buffer until it is dropped"),
        }
    }

    /// Makes the first `len` bytes the frame; at most [`FRAME_MAX`].
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(FRAME_MAX);
    }

    fn buffer(&self) -> &Buffer {
        self.buffer
            .as_ref()
            .expect("a frame has its buffer until it is dropped")
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut free = self.pool.free.borrow_mut();
        if let Some(buffer) = self.buffer.take()
            && free.len() < POOL_MAX
        {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_frame_is_used_again() {
        let pool = FramePool::new();
        let mut frame = pool.take();
        frame.room_mut()[..3].copy_from_slice(b"abc");
        frame.set_len(3);
        assert_eq!(frame.bytes(), b"abc");
        let at = frame.bytes().as_ptr();
        drop(frame);
        let again = pool.take();
        assert_eq!(again.buffer().as_ptr(), at);
        assert!(again.bytes().is_empty());
    }
}
