//! Chromium by its driver: the little of WebDriver (W3C, 2018) that the tests need, in requests of
//! their own. Every call waits for its answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// How long the page may take to show what it was told. It needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// As root, in a container, and without a word to anybody but the page.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,1500",
];

/// A browser with one page, until dropped.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// `None` where there is no driver on this machine.
    pub(crate) fn start() -> Option<Self> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let mut browser = Self {
            driver,
            port: port.unwrap(),
            session: String::new(),
        };
        let options = json!({ "args": ARGUMENTS });
        let wanted = json!({ "alwaysMatch": { "goog:chromeOptions": options } });
        let begun = browser.post("/session", &json!({ "capabilities": wanted }));
        let id = begun["sessionId"].as_str().unwrap();
        browser.session = format!("/session/{id}");
        browser.command(
            "/timeouts",
            &json!({ "script": PATIENCE.as_millis() as u64 }),
        );
        Some(browser)
    }

    pub(crate) fn go_to(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// Runs a script; gives what it returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits for an expression of JavaScript to become true.
    pub(crate) fn wait(&self, what: &str) {
        let script = format!(
            "const done = arguments[0]; \
             const look = () => ({what}) ? done(true) : setTimeout(look, 20); look();"
        );
        let answer = self.command("/execute/async", &json!({ "script": script, "args": [] }));
        assert_eq!(answer, json!(true), "never: {what}");
    }

    /// What is to be read in an element.
    pub(crate) fn text(&self, css: &str) -> String {
        let text = self.run(&format!(
            "return document.querySelector({}).textContent",
            json!(css)
        ));
        text.as_str().unwrap().to_owned()
    }

    /// Clicks where a person would; fails where a person could not.
    pub(crate) fn click(&self, css: &str) {
        let found = self.command(
            "/element",
            &json!({ "using": "css selector", "value": css }),
        );
        let id = found.as_object().unwrap().values().next().unwrap();
        self.command(
            &format!("/element/{}/click", id.as_str().unwrap()),
            &json!({}),
        );
    }

    /// Draws the page as on a screen of this size: a window is never narrower than 500 pixels.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command(
            "/goog/cdp/execute",
            &json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": screen }),
        );
    }

    /// The page as it is drawn, as PNG in base64.
    pub(crate) fn screenshot(&self) -> String {
        let image = self.request("GET", &format!("{}/screenshot", self.session), "");
        image.as_str().unwrap().to_owned()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.post(&format!("{}{path}", self.session), body)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.request("POST", path, &body.to_string())
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        // The driver keeps connections open whatever is asked, so its word on the length counts.
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>())
        });
        let mut body = vec![0; length.unwrap().unwrap()];
        lines.read_exact(&mut body).unwrap();
        let mut value: Value = serde_json::from_slice(&body).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {value}");
        value["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.request("DELETE", &self.session, "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
