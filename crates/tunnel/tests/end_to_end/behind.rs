//! A relay behind a web server that has port 443 and forwards by name: the real nginx, `stream`
//! with `ssl_preread`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tabane_linux::netns::Netns;
use tabane_tunnel::{Carrier, ClientConfig, TlsPeer};

use super::cables::Stream;
use super::carriers::with_walls;

const NAME: &str = "relay.example";

#[test]
fn nginx_forwards_to_a_relay_by_its_name() {
    if let Err(why) = Nginx::is_here() {
        println!("skipped: {why}");
        return;
    }
    let named = |config: &mut ClientConfig| {
        config.relays[0].tls = Some(TlsPeer {
            port: 443,
            name: Some(NAME.to_owned()),
        });
    };
    with_walls("nginx", &[], named, |world, client| async move {
        let _nginx = Nginx::start(&world.cables.relay);
        // Nobody but nginx gets to the relay's own door.
        world.nft("add rule inet walls in iifname != lo tcp dport 8443 drop");
        world.wall("left");
        world.wall("right");
        world.carried(&client, "left", Carrier::Tls).await;
        world.carried(&client, "right", Carrier::Tls).await;
        let stream = Stream::start(&client, world.cables.server()).await;
        stream.grows("by way of nginx").await;
    });
}

/// Runs in the relay's namespace until it is dropped.
struct Nginx(Child, PathBuf);

impl Nginx {
    fn is_here() -> Result<(), String> {
        let directory = Self::write("check");
        let outcome = Self::command(&directory).arg("-t").output();
        let _ = std::fs::remove_dir_all(&directory);
        match outcome {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err("no nginx".to_owned()),
            Err(error) => panic!("{error}"),
        }
    }

    fn start(netns: &Netns) -> Self {
        let directory = Self::write("run");
        let inner = Self::command(&directory);
        let child = Command::new("ip")
            .args(["netns", "exec", netns.name()])
            .arg(inner.get_program())
            .args(inner.get_args())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child, directory)
    }

    fn command(directory: &PathBuf) -> Command {
        let mut command = Command::new("nginx");
        command.arg("-p").arg(directory).args(["-c", "nginx.conf"]);
        command
    }

    fn write(what: &str) -> PathBuf {
        let name = format!("tabane-nginx-{what}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let config = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n\
             daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {{}}\n\
             stream {{\n  map $ssl_preread_server_name $to {{\n    {NAME} 127.0.0.1:8443;\n\
             \x20   default 127.0.0.1:1;\n  }}\n  server {{\n    listen 443;\n\
             \x20   ssl_preread on;\n    proxy_pass $to;\n  }}\n}}\n"
        );
        std::fs::write(directory.join("nginx.conf"), config).unwrap();
        directory
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // What is gone needs no end.
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}
