//! Tunnels that are ended here, and what leaves HTTP within them.

use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::UPGRADE;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tabane_fetch::Origin;

use super::{Door, Web};
use crate::body::AnswerBody;
use crate::forward;
use crate::interception::{self, HandshakeError};
use crate::journal::{Carried, Entry};
use crate::passage::{Answered, Wish};
use crate::refusal::Refusal;
use crate::tunnel::Tunnel;

impl Web {
    /// Serves a program that believes to speak with a host, when our answer has been written.
    pub(super) fn intercept(
        self: &Rc<Self>,
        request: Request<Incoming>,
        host: String,
        place: Rc<()>,
        entry: &Entry,
    ) {
        entry.answered(StatusCode::OK, Carried::Not);
        let (web, entry) = (self.clone(), entry.clone());
        tokio::task::spawn_local(async move {
            let Some(interception) = &web.interception else {
                return;
            };
            let near = match hyper::upgrade::on(request).await {
                Ok(near) => near,
                Err(error) => return entry.failed(error),
            };
            let failed = |error: HandshakeError| {
                entry.failed(&error);
                interception.advise(&host, &error);
            };
            match interception.accept(near, &host).await {
                Ok(program) => {
                    let door = Door::Within(Origin {
                        is_https: true,
                        host: host.clone(),
                        port: interception::PORT,
                    });
                    if let Err(error) = web.receive_by(TokioIo::new(program), &door).await {
                        tracing::debug!(%error, "a program's connection broke");
                    }
                    // Some look at the certificate after the handshake only. One that has opened
                    // a connection in advance is no news where others ask for something.
                    match interception.is_trusted(&host) {
                        true => entry.leave_out(),
                        false => failed(HandshakeError::HungUp),
                    }
                }
                Err(error) => failed(error),
            }
            drop(place);
        });
    }

    /// The answer with which program and origin leave HTTP, and what follows.
    pub(super) fn change_over(
        &self,
        wish: Wish,
        answered: Answered,
        entry: &Entry,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let Answered {
            mut response, seat, ..
        } = answered;
        let protocol = response.headers().get(UPGRADE).cloned();
        let (Some(near), Some(protocol)) = (wish.near, protocol) else {
            let text = format!("{} left HTTP unasked", wish.url.origin.host);
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, text));
        };
        let place = self.place()?;
        let far = hyper::upgrade::on(&mut response);
        let (mut head, body) = response.into_parts();
        forward::pass_on(&mut head.headers, head.version, &self.name);
        forward::change_protocol(&mut head.headers, protocol);
        entry.answered(head.status, Carried::Tunnel);
        let (link, entry) = (body.link().clone(), entry.clone());
        tokio::task::spawn_local(async move {
            match tokio::try_join!(near, far) {
                Ok((near, far)) => {
                    let far = Box::new(TokioIo::new(far));
                    Tunnel::over(far, link, seat).carry(near, &entry).await;
                }
                Err(error) => entry.failed(error),
            }
            drop(place);
        });
        let nothing = AnswerBody::Text(Bytes::new());
        Ok(Response::from_parts(head, nothing))
    }
}
