//! A TCP connection that carries one request after another: what the server sends, in packets.

use std::collections::VecDeque;

use tabane_base::{Duration, Instant};
use tabane_ranges::{Answer, Request, RequestId};

use super::sender::{Sender, Tcp};
use crate::reno::RenoReceiver;

/// Payload of a full packet.
pub(super) const SEGMENT: u64 = 1_460;
/// What an answer's head has.
const HEAD: u64 = 300;
/// What is not answered is said again, RFC 6298 §2.1.
const REPEAT: Duration = Duration::from_secs(1);

/// Both ends of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: usize,
    pub(super) sender: Sender,
    receiver: RenoReceiver,
    /// Payload of each packet there is.
    payloads: Vec<u64>,
    /// Packets that the client has had in order.
    delivered: u64,
    response: Option<Response>,
    pub(super) is_open: bool,
    /// The client has gone; what is on its way is wasted.
    pub(super) is_closed: bool,
    /// The server knows.
    pub(super) is_reset: bool,
    /// The request that is not answered yet.
    asked: Option<Request>,
    /// When the client opens, or asks, again, and how long it waits after that.
    pub(super) asks_at: Instant,
    pause: Duration,
}

/// What a client says.
#[derive(Debug)]
pub(super) enum Ask {
    Open,
    Request(Box<Request>),
}

#[derive(Debug)]
struct Response {
    id: RequestId,
    answer: Option<Answer>,
    head: u64,
    body: u64,
}

/// What the client gets to see of a response.
#[derive(Debug)]
pub(super) enum Arrived {
    Answer(RequestId, Answer),
    Data(RequestId, u64),
    End(RequestId),
}

impl Connection {
    pub(super) fn new(link: usize, tcp: Tcp) -> Self {
        Self {
            link,
            sender: Sender::new(tcp),
            receiver: RenoReceiver::default(),
            payloads: Vec::new(),
            delivered: 0,
            response: None,
            is_open: false,
            is_closed: false,
            is_reset: false,
            asked: None,
            asks_at: Instant::NEVER,
            pause: REPEAT,
        }
    }

    /// A request to carry, once it is open.
    pub(super) fn ask(&mut self, now: Instant, request: Request) {
        self.asked = Some(request);
        self.asks_at = now;
        self.pause = REPEAT;
    }

    /// The server has answered the attempt at opening.
    pub(super) fn on_open(&mut self, now: Instant) {
        if !self.is_open {
            self.is_open = true;
            self.asks_at = now;
            self.pause = REPEAT;
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some() && !self.is_closed
    }

    /// What the client says now.
    pub(super) fn poll_ask(&mut self, now: Instant) -> Option<Ask> {
        if !self.is_asking() || self.asks_at > now {
            return None;
        }
        self.asks_at = now + self.pause;
        self.pause *= 2;
        let request = self.asked.clone()?;
        Some(match self.is_open {
            false => Ask::Open,
            true => Ask::Request(Box::new(request)),
        })
    }

    /// The server answers.
    pub(super) fn respond(&mut self, id: RequestId, answer: Answer, body: u64) {
        if self
            .response
            .as_ref()
            .is_some_and(|response| response.id == id)
        {
            return;
        }
        let mut rest = HEAD + body;
        while rest > 0 {
            let payload = rest.min(SEGMENT);
            self.payloads.push(payload);
            rest -= payload;
        }
        self.sender.set_end(self.payloads.len() as u64);
        self.response = Some(Response {
            id,
            answer: Some(answer),
            head: HEAD,
            body,
        });
    }

    /// What a packet carries.
    pub(super) fn payload(&self, number: u64) -> u64 {
        self.payloads.get(number as usize).copied().unwrap_or(0)
    }

    /// A packet reached the client; gives the acknowledgement.
    pub(super) fn handle_packet(&mut self, number: u64, out: &mut VecDeque<Arrived>) -> u64 {
        let ack = self.receiver.handle_packet(number);
        if ack > self.delivered {
            self.asked = None;
        }
        for number in self.delivered..ack {
            let payload = self.payload(number);
            if let Some(response) = &mut self.response {
                response.handle_bytes(payload, out);
            }
        }
        self.delivered = ack;
        ack
    }
}

impl Response {
    fn handle_bytes(&mut self, amount: u64, out: &mut VecDeque<Arrived>) {
        let of_head = amount.min(self.head);
        self.head -= of_head;
        if self.head > 0 {
            return;
        }
        out.extend(
            self.answer
                .take()
                .map(|answer| Arrived::Answer(self.id, answer)),
        );
        let of_body = (amount - of_head).min(self.body);
        if of_body > 0 {
            self.body -= of_body;
            out.push_back(Arrived::Data(self.id, of_body));
        }
        if self.body == 0 {
            out.push_back(Arrived::End(self.id));
        }
    }
}
