// The dashboard: one page for one instance. Owns what is on the screen; what is true comes from
// the instance's API (docs/control.md), which also carries out what is clicked here.
//
// Everything from the network is written as text, never as markup.

import { Chart } from './chart.js';
import { PolicyCard } from './policy.js';

const KEPT_MS = 120_000;
const RETRY_MS = [500, 1000, 2000, 5000];
const COLOURS = 8;

const $ = (id) => document.getElementById(id);
const links = new Map(); // name -> { card, colour, busy }
const history = { at: [], series: new Map() }; // name -> { down, up, rtt, loss }
let shown = 'down';
let state = null;

// ---- who we are ----

function token() {
  if (location.hash.length > 1) {
    sessionStorage.setItem('tabane-token', decodeURIComponent(location.hash.slice(1)));
    window.history.replaceState(null, '', location.pathname); // out of sight, out of bookmarks
  }
  return sessionStorage.getItem('tabane-token') ?? '';
}

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const answer = await fetch(path, {
    ...options,
    headers: { Authorization: `Bearer ${token()}` },
    cache: 'no-store',
  });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error ?? answer.statusText);
}

const policy = new PolicyCard(call, element);

// ---- the stream of states ----

async function follow(onState) {
  const answer = await call('v1/events');
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    const lines = pending.split('\n');
    pending = lines.pop();
    const data = lines.filter((line) => line.startsWith('data: ')).pop();
    if (data) onState(JSON.parse(data.slice(6)));
  }
}

async function run() {
  for (let failures = 0; ; failures += 1) {
    try {
      await follow((next) => {
        failures = 0;
        $('login').hidden = true;
        show(next);
      });
      showGone();
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        await logIn(error);
        continue;
      }
      // 503 is the word of `tabane dashboard`, or of an instance that begins or ends.
      if (error instanceof Refused && error.status !== 503) condition(error.message, 'bad');
      else showGone();
    }
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// What is on the screen is the last that was told.
function showGone() {
  condition(state ? 'gone' : 'no answer', 'bad');
  if (!state) return;
  document.body.classList.add('gone');
  document.title = `gone · tabane ${state.instance.name}`;
  $('about').textContent =
    `${state.instance.name} does not answer any more. This page waits for the next one.`;
}

function logIn() {
  const form = $('login');
  $('login-error').textContent = token() ? 'This token is not the instance’s (any more).' : '';
  form.hidden = false;
  condition('locked', 'warn');
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem('tabane-token', $('token').value.trim());
      resolve();
    };
  });
}

// ---- words and figures ----

function scaled(value, units, base) {
  let unit = 0;
  while (value >= base && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  const digits = value >= 100 || unit === 0 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}
const rate = (bps) => scaled(bps, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s'], 1000);
const size = (bytes) => scaled(bytes, ['B', 'kB', 'MB', 'GB', 'TB'], 1000);
const millis = (ms) => (ms == null ? '–' : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`);
const count = (number, thing) => `${number} ${thing}${number === 1 ? '' : 's'}`;
const percent = (part) => (part == null ? '–' : `${(part * 100).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`);

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text != null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function condition(word, tone) {
  $('condition').textContent = word;
  $('condition').dataset.tone = tone;
}

// ---- what a state looks like ----

const TONES = { up: 'good', degraded: 'warn', down: 'bad' };
const LINK_TONES = { active: 'good', opening: 'warn', silent: 'bad', down: 'bad', paused: '', unused: '' };

function show(next) {
  if (state && isAnother(state.instance, next.instance)) forget();
  state = next;
  document.body.classList.remove('gone');
  condition(state.condition, TONES[state.condition]);
  showHead();
  showProblems();
  remember();
  showLinks();
  showSessions();
  showGateway();
  showRules();
  showFleet();
  showHosts();
  showEvents();
  draw();
  policy.show(state.links);
}

function showHead() {
  const { instance, totals, process } = state;
  const age = (state.at_unix_ms - instance.started_at_unix_ms) / 1000;
  const by = instance.relay ? ` by relay ${instance.relay}` : '';
  const what = instance.kind === 'up' ? 'the whole machine' : instance.about;
  $('about').textContent = `${instance.name}: ${what}${by}, for ${duration(age)}`;
  document.title = `${rate(totals.traffic.received_bps)} ↓ · tabane ${instance.name}`;
  $('version').textContent = `tabane ${instance.version}, process ${instance.pid}`;
  $('down').textContent = rate(totals.traffic.received_bps);
  $('up').textContent = rate(totals.traffic.sent_bps);
  $('carried').textContent = size(totals.traffic.sent_bytes + totals.traffic.received_bytes);
  const isRelay = instance.kind === 'relay';
  $('streams').textContent = isRelay ? `${totals.sessions} · ${totals.streams}` : totals.streams;
  const streams = `${instance.kind === 'gateway' ? 'connection' : 'stream'}${totals.streams === 1 ? '' : 's'}`;
  $('streams-label').textContent = isRelay ? 'sessions · streams' : streams;
  showRelay();
  const busy = age > 0 ? process.cpu_ms / 10 / age : 0;
  $('process').textContent = `${size(process.memory_bytes)} · ${busy.toFixed(1)} %`;
}

// A link is active while something comes back over it.
function showRelay() {
  const { instance, links: known, silent_ms: silent } = state;
  const isUnheard = known.every((link) => link.state !== 'active');
  $('relay-figure').hidden = !instance.relay;
  $('relay-label').textContent = `relay ${instance.relay}`;
  const silence = silent == null ? 'no answer yet' : `silent for ${duration(silent / 1000)}`;
  $('relay').textContent = isUnheard ? silence : 'answers';
}

function showProblems() {
  const cards = state.problems.map((problem) => {
    const card = element('div', null, 'card trouble');
    card.append(element('strong', problem.what), element('p', problem.remedy, 'muted'));
    return card;
  });
  $('problems').replaceChildren(...cards);
}

function colour(name) {
  if (!links.has(name)) links.set(name, { colour: `--link-${links.size % COLOURS}` });
  const value = getComputedStyle(document.documentElement).getPropertyValue(links.get(name).colour);
  return value.trim();
}

function isAnother(before, now) {
  return before.name !== now.name || before.started_at_unix_ms !== now.started_at_unix_ms;
}

// The page begins anew, but for the policy that somebody is typing: the next instance of a kind has
// the same file.
function forget() {
  history.at.length = 0;
  history.series.clear();
  links.clear();
  $('explained').textContent = '';
  policy.forget();
}

// What the chart draws: links at a client, the whole at a relay or a gateway.
function remember() {
  const now = state.at_unix_ms;
  history.at.push(now);
  const things = state.links.length ? state.links : [{ name: 'all', traffic: state.totals.traffic }];
  for (const thing of things) {
    if (!history.series.has(thing.name)) {
      history.series.set(thing.name, { down: [], up: [], rtt: [], loss: [] });
    }
  }
  for (const [name, series] of history.series) {
    const thing = things.find((candidate) => candidate.name === name);
    const missing = history.at.length - 1 - series.down.length;
    for (const values of Object.values(series)) {
      for (let i = 0; i < missing; i += 1) values.push(null);
    }
    series.down.push(thing ? thing.traffic.received_bps : null);
    series.up.push(thing ? thing.traffic.sent_bps : null);
    series.rtt.push(thing?.path?.rtt_ms ?? null);
    series.loss.push(thing?.traffic.loss ?? null);
  }
  while (history.at.length && history.at[0] < now - KEPT_MS) {
    history.at.shift();
    for (const series of history.series.values()) {
      for (const values of Object.values(series)) values.shift();
    }
  }
}

const KINDS = {
  down: { title: 'Download by link', format: rate, stacked: true },
  up: { title: 'Upload by link', format: rate, stacked: true },
  rtt: { title: 'Round trip by link', format: millis, stacked: false },
  loss: { title: 'Loss by link', format: percent, stacked: false },
};

const chart = new Chart($('chart'), $('tip'));

function draw() {
  const kind = KINDS[shown];
  $('chart-title').textContent = kind.title;
  const series = [...history.series].map(([name, values]) => ({
    name,
    colour: colour(name),
    values: values[shown],
  }));
  chart.draw({ at: history.at, span: KEPT_MS, series, ...kind });
  const entries = series.map(({ name, colour: fill }) => {
    const entry = element('li');
    const swatch = element('i', null, 'swatch');
    swatch.style.background = fill;
    entry.append(swatch, element('span', name));
    return entry;
  });
  $('legend').replaceChildren(...entries);
}

// ---- links ----

function card(name) {
  const entry = links.get(name);
  if (entry.card) return entry.card;
  const made = $('link-template').content.firstElementChild.cloneNode(true);
  const weight = made.querySelector('.weight');
  made.querySelector('.name').textContent = name;
  made.dataset.link = name;
  weight.setAttribute('aria-label', `Weight of ${name}`);
  weight.oninput = () => {
    entry.busy = true;
    made.querySelector('.weight-text').textContent = `${weight.value} %`;
  };
  weight.onchange = () => change(name, { weight: Number(weight.value) / 100 });
  made.querySelector('.pause').onclick = () => {
    const link = state.links.find((candidate) => candidate.name === name);
    if (link) change(name, { paused: !link.paused });
  };
  entry.card = made;
  return made;
}

async function change(name, wish) {
  const entry = links.get(name);
  const error = entry.card.querySelector('.error');
  try {
    await call(`v1/links/${encodeURIComponent(name)}`, { method: 'PUT', body: JSON.stringify(wish) });
    error.textContent = '';
  } catch (refused) {
    error.textContent = refused.message;
  }
  entry.busy = false;
}

function budget({ amount_bytes: amount, used_bytes: used, renews }) {
  return `${size(Math.max(amount - used, 0))} of ${size(amount)} left until ${renews}`;
}

function showLinks() {
  const cards = state.links.map((link) => {
    const fill = colour(link.name);
    const made = card(link.name);
    const put = (selector, text) => {
      const target = made.querySelector(selector);
      if (target.textContent !== text) target.textContent = text;
    };
    made.classList.toggle('idle', link.state !== 'active');
    made.querySelector('.swatch').style.background = fill;
    put('.state', link.state);
    made.querySelector('.state').dataset.tone = LINK_TONES[link.state];
    made.querySelector('.problem').hidden = !link.problem;
    made.querySelector('.problem').classList.toggle('bad', link.state !== 'unused');
    put('.problem', link.state === 'unused' ? `not used: ${link.problem}` : link.problem ?? '');
    made.querySelector('.metered').hidden = !link.metered;
    made.querySelector('.budget').hidden = !link.budget;
    made.querySelector('.carrier').hidden = !link.carrier_reason;
    put('.carrier-text', [link.carrier, link.carrier_reason].filter(Boolean).join(': '));
    put('.left', link.budget ? budget(link.budget) : '');
    put('.down', rate(link.traffic.received_bps));
    put('.up', rate(link.traffic.sent_bps));
    const bar = made.querySelector('.bar i');
    bar.style.width = `${(link.share_now ?? 0) * 100}%`;
    bar.style.background = fill;
    made.querySelector('.bar').setAttribute('aria-label', `${percent(link.share_now)} of the traffic`);
    put('.share', `${percent(link.share_now)} now, ${percent(link.share)} since the start`);
    const path = link.path;
    put('.rtt', path ? `${millis(path.rtt_ms)} (least ${millis(path.rtt_min_ms)})` : '–');
    put('.queue', millis(path?.queue_ms));
    put('.loss', percent(link.traffic.loss));
    put('.carried', size(link.traffic.sent_bytes + link.traffic.received_bytes));
    put('.remote', path?.remote ?? '–');
    if (!links.get(link.name).busy) {
      made.querySelector('.weight').value = Math.round(link.weight * 100);
      put('.weight-text', `${Math.round(link.weight * 100)} %`);
    }
    put('.pause', link.paused ? 'Resume' : 'Pause');
    return made;
  });
  const holder = $('links');
  if (cards.length !== holder.children.length || cards.some((made, i) => holder.children[i] !== made)) {
    holder.replaceChildren(...cards);
  }
}

// ---- sessions and events ----

// As the headings of the table, which a narrow screen has no room for.
const SESSION_CELLS = ['session', 'peer', 'state', 'streams', '↓', '↑', 'paths'];

function showSessions() {
  const rows = state.sessions.map((session) => {
    const row = element('tr');
    const paths = session.paths
      .map((path) => `${path.remote} ${millis(path.rtt_ms)} ${path.state === 'active' ? '' : path.state}`)
      .map((text) => element('div', text));
    const cell = element('td');
    cell.append(...paths);
    if (session.packets) {
      const { addresses, sent, received } = session.packets;
      const who = addresses.length ? addresses.join(', ') : 'pings';
      cell.append(element('div', `${who}: ${count(sent, 'packet')} out, ${received} back`));
    }
    row.append(
      element('td', session.number),
      element('td', session.peer ? session.peer.slice(0, 12) : '–'),
      element('td', session.state),
      element('td', session.streams, 'n'),
      element('td', rate(session.traffic.received_bps), 'n'),
      element('td', rate(session.traffic.sent_bps), 'n'),
      cell,
    );
    SESSION_CELLS.forEach((label, at) => { row.children[at].dataset.label = label; });
    return row;
  });
  $('sessions').replaceChildren(...rows);
  const more = state.sessions_omitted ? `and ${state.sessions_omitted} more` : '';
  $('omitted').textContent = rows.length ? more : 'None at present.';
}

function showGateway() {
  const { gateway } = state;
  $('gateway-card').hidden = !gateway;
  $('sessions-card').hidden = Boolean(gateway);
  if (!gateway) return;
  const { totals } = gateway;
  $('gateway-radio').textContent = gateway.radio;
  $('gateway-mode').textContent = gateway.draining ? `${gateway.mode}, draining` : gateway.mode;
  const figures = [
    ['connections so far', totals.opened || totals.joined],
    ['silences', totals.silences],
    ['spurious timeouts', totals.spurious_timeouts],
    ['timeouts avoided', totals.avoided_timeouts],
    ['sent needlessly', percent(totals.needless_bytes / Math.max(totals.bytes, 1))],
    ['held', size(totals.held_bytes)],
    ['owed', size(totals.owed_bytes)],
    ['sent again', totals.resent],
  ].map(([name, value]) => {
    const figure = element('div');
    figure.append(element('dt', name), element('dd', value));
    return figure;
  });
  $('gateway-figures').replaceChildren(...figures);
  const reasons = Object.entries(gateway.bypassed).map(([why, count]) => `${count} ${why}`);
  $('gateway-bypassed').textContent = reasons.length ? `left alone: ${reasons.join(', ')}` : '';
  const ended = gateway.ended.slice(-10).reverse();
  const rows = [
    ...gateway.flows.map((flow) => flowRow(flow, flow.shut ? 'shut' : flow.stance)),
    ...ended.map((flow) => flowRow(flow, 'ended')),
  ];
  $('flows').replaceChildren(...rows);
  $('flows-omitted').textContent = gateway.flows_omitted ? `and ${gateway.flows_omitted} more` : '';
}

function flowRow(flow, word) {
  const row = element('tr');
  row.append(
    element('td', flow.mobile),
    element('td', flow.server),
    element('td', word),
    element('td', millis(flow.radio_rtt_ms), 'n'),
    element('td', millis(flow.wired_rtt_ms), 'n'),
    element('td', size(flow.bytes), 'n'),
    element('td', percent(flow.needless_bytes / Math.max(flow.bytes, 1)), 'n'),
    element('td', flow.silences, 'n'),
    element('td', flow.spurious_timeouts, 'n'),
    element('td', flow.avoided_timeouts, 'n'),
    element('td', size(flow.held_bytes), 'n'),
  );
  return row;
}

function showRules() {
  const rules = state.rules ?? [];
  $('rules-card').hidden = rules.length === 0;
  const rows = rules.map((rule) => {
    const row = element('tr');
    row.append(
      element('td', rule.rule ?? 'no rule'),
      element('td', rule.connections, 'n'),
      element('td', rule.connections_so_far, 'n'),
      element('td', size(rule.received_bytes), 'n'),
      element('td', size(rule.sent_bytes), 'n'),
      element('td', rule.text),
    );
    return row;
  });
  $('rules').replaceChildren(...rows);
}

function showHosts() {
  const hosts = state.lan_hosts ?? [];
  $('hosts-card').hidden = hosts.length === 0;
  const rows = hosts.map((host) => {
    const row = element('tr');
    row.append(
      element('td', host.address ?? 'others'),
      element('td', host.hardware ?? ''),
      element('td', host.connections, 'n'),
      element('td', host.connections_so_far, 'n'),
      element('td', size(host.received_bytes), 'n'),
      element('td', size(host.sent_bytes), 'n'),
    );
    return row;
  });
  $('hosts').replaceChildren(...rows);
}

function showFleet() {
  const { fleet } = state;
  $('fleet-card').hidden = !fleet;
  if (!fleet) return;
  $('fleet-counts').textContent =
    `${fleet.users} users, ${fleet.tokens} tokens, ${fleet.clients} clients; list ${fleet.epoch}`;
  const wrong = fleet.odd.map((key) => `Not understood in etcd: ${key}`);
  if (fleet.away) wrong.unshift(`Known clients are served, new ones wait: ${fleet.away}`);
  $('fleet-wrong').textContent = wrong.join('\n');
  const rows = fleet.relays.map((relay) => {
    const load = relay.capacity ? percent(relay.sessions / relay.capacity) : '';
    const behind = relay.clock_behind_s;
    const row = element('tr');
    row.append(
      element(relay.name === fleet.own ? 'th' : 'td', relay.name),
      element('td', relay.state, relay.state === 'down' ? 'bad' : ''),
      element('td', relay.region),
      element('td', relay.sessions, 'n'),
      element('td', load, 'n'),
      element('td', size(relay.carried_bytes), 'n'),
      element('td', behind ? `${behind} s behind` : '', 'n'),
      element('td', relay.addresses.join(' ')),
    );
    return row;
  });
  $('fleet').replaceChildren(...rows);
}

$('explain').onsubmit = async (event) => {
  event.preventDefault();
  const host = $('explain-host').value.trim();
  const isAddress = /^[0-9.]+$/.test(host) || host.includes(':');
  const question = { port: Number($('explain-port').value), [isAddress ? 'address' : 'domain']: host };
  try {
    const answer = await call('v1/explain', { method: 'PUT', body: JSON.stringify(question) });
    const { rule, names } = await answer.json();
    const known = names.length && isAddress ? ` (known as ${names.join(', ')})` : '';
    $('explained').textContent = `${host}${known}: ${rule ? `rule “${rule}”` : 'no rule fits'}`;
  } catch (refused) {
    $('explained').textContent = refused.message;
  }
};

function showEvents() {
  const rows = [...state.events].reverse().map((event) => {
    const row = element('li');
    const at = new Date(event.at_unix_ms);
    const time = element('time', at.toLocaleTimeString());
    time.dateTime = at.toISOString();
    row.append(time, element('span', [event.link, event.text].filter(Boolean).join(': ')));
    return row;
  });
  $('events').replaceChildren(...rows);
}

// ---- the page itself ----

for (const button of document.querySelectorAll('[data-series]')) {
  button.onclick = () => {
    shown = button.dataset.series;
    for (const other of document.querySelectorAll('[data-series]')) {
      other.setAttribute('aria-pressed', String(other === button));
    }
    if (state) draw();
  };
}

const theme = localStorage.getItem('tabane-theme');
if (theme) document.documentElement.dataset.theme = theme;
$('theme').onclick = () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = isDark ? 'light' : 'dark';
  localStorage.setItem('tabane-theme', root.dataset.theme);
  if (state) draw();
};
matchMedia('(prefers-color-scheme: dark)').onchange = () => state && draw();
window.onresize = () => state && draw();
// Others may edit the file too; what is being typed here stays.
window.onfocus = () => {
  policy.refresh();
};

run();
