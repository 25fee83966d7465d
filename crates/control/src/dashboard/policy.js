// The policy card: what is in force for each link, a form for one entry, and the whole file beside
// it. Both write the same file, and only where it still is what this page has seen.

const $ = (id) => document.getElementById(id);
const NUMBERS = ['weight', 'priority', 'budget-from'];
const KEYS = ['use', 'weight', 'priority', 'metered', 'budget', 'budget-from', 'down', 'up'];

const isSame = (entry, { name, kind }) =>
  (entry.name ?? '') === (name ?? '') && (entry.kind ?? '') === (kind ?? '');
const words = (entry) => KEYS.filter((key) => entry[key] != null)
  .map((key) => `${key} ${entry[key]}`).join(', ') || 'used like any other';

export class PolicyCard {
  constructor(call, element) {
    Object.assign(this, { call, element });
    Object.assign(this, { isAsked: false, saved: '', before: null, entries: [], links: [], drawn: '' });
    this.form = $('entry');
    $('policy').oninput = () => this.showButtons();
    $('policy-save').onclick = () => this.save($('policy').value);
    $('policy-undo').onclick = () => this.undo();
    this.form.oninput = () => this.showButtons();
    this.form.onsubmit = (event) => {
      event.preventDefault();
      // A field that holds no number at all would be read as an empty one.
      if (!this.form.querySelector('input:invalid') || this.form.reportValidity()) this.set(false);
    };
    $('entry-forget').onclick = () => this.set(true);
  }

  // The links of another state.
  show(links) {
    this.links = links;
    if (!this.isAsked) {
      this.isAsked = true;
      this.load();
    }
    this.drawLinks();
  }

  // Another instance is on the screen. Of a kind, it has the same file.
  forget() {
    if (!this.isTyping()) this.isAsked = false;
  }

  // Others may edit the file too; what is being typed here stays.
  refresh() {
    if (this.isAsked && !this.isTyping()) this.load();
  }

  isTyping() {
    return $('policy').value !== this.saved;
  }

  async load() {
    try {
      const answer = await (await this.call('v1/policy')).json();
      $('policy-path').textContent = answer.path;
      $('policy').value = answer.text;
      $('policy-card').hidden = false;
      this.take(answer);
    } catch (refused) {
      $('policy-card').hidden = true; // a relay has none
    }
    this.showButtons();
  }

  take({ text, links }) {
    this.saved = text;
    this.entries = links;
    this.drawLinks();
  }

  showButtons() {
    $('policy-save').disabled = !this.isTyping();
    $('policy-undo').disabled = this.before === null && !this.isTyping();
    $('entry-save').disabled = this.isTyping();
    $('entry-forget').disabled = this.isTyping() || !this.entryOf(this.typed());
    if (this.isTyping()) $('entry-note').textContent = 'Save or undo the text below first.';
    else if ($('entry-note').textContent.endsWith(' first.')) $('entry-note').textContent = '';
  }

  // ---- what is in force ----

  entryOf(whose) {
    return this.entries.find((entry) => isSame(entry, whose));
  }

  drawLinks() {
    const rows = this.links.map(({ name, policy }) => ({
      name,
      text: policy?.text ?? '–',
      line: policy ? policy.line ?? 'default' : '',
      // Its own entry, or what the one in force says, for an own one.
      entry: this.entryOf({ name }) ?? { ...this.entries.find(({ line }) => line === policy?.line), name, kind: '' },
    }));
    const isShown = (entry) => this.links.some(({ name }) => isSame(entry, { name }));
    for (const entry of this.entries.filter((candidate) => !isShown(candidate))) {
      const kind = entry.kind ? `${entry.kind} links` : 'all links';
      const name = entry.name ? [entry.name, entry.kind].filter(Boolean).join(', ') : kind;
      rows.push({ name, text: words(entry), line: entry.line, entry });
    }
    // A button that is replaced while it is pressed is never clicked.
    const drawn = JSON.stringify(rows);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    $('policy-links').replaceChildren(...rows.map((row) => this.row(row)));
    $('entry-names').replaceChildren(...this.links.map(({ name }) => {
      const option = this.element('option');
      option.value = name;
      return option;
    }));
  }

  row({ name, text, line, entry }) {
    const row = this.element('tr');
    const cell = this.element('td', null, 'n');
    const button = this.element('button', 'Change');
    button.type = 'button';
    button.setAttribute('aria-label', `Change ${name}`);
    button.onclick = () => this.fill(entry);
    cell.append(button);
    row.dataset.policy = name;
    row.append(this.element('td', name), this.element('td', text), this.element('td', line), cell);
    return row;
  }

  // ---- the form ----

  fill(entry) {
    for (const key of ['name', 'kind', ...KEYS]) {
      this.form.elements[key].value = String(entry[key] ?? '');
    }
    if (entry.use === 'normal') this.form.elements.use.value = '';
    $('entry-error').textContent = '';
    $('entry-note').textContent = '';
    this.showButtons();
    this.form.elements.use.focus();
  }

  // What is left empty the entry does not say.
  typed() {
    const entry = {};
    for (const key of ['name', 'kind', ...KEYS]) {
      const value = this.form.elements[key].value.trim();
      if (value !== '') entry[key] = NUMBERS.includes(key) ? Number(value) : value;
    }
    if (entry.metered) entry.metered = entry.metered === 'true';
    return entry;
  }

  async set(forget) {
    try {
      const body = JSON.stringify({ entry: this.typed(), forget, was: this.saved });
      const before = this.saved;
      const answer = await this.call('v1/policy/link', { method: 'PUT', body });
      const now = await answer.json();
      this.before = before;
      $('policy').value = now.text;
      $('entry-error').textContent = '';
      $('entry-note').textContent = forget ? 'Forgotten.' : 'Saved; in force.';
      this.take(now);
    } catch (refused) {
      $('entry-error').textContent = refused.message;
      $('entry-note').textContent = 'Not saved; the old policy stays in force.';
      if (refused.status === 409) {
        await this.load();
        $('entry-note').textContent = 'Not saved. It is loaded again: look, and set once more.';
      }
    }
    this.showButtons();
  }

  // ---- the text ----

  // Whether it was.
  async save(text) {
    let isSaved = false;
    try {
      const body = JSON.stringify({ text, was: this.saved });
      const answer = await this.call('v1/policy', { method: 'PUT', body });
      const now = await answer.json();
      this.before = this.saved;
      $('policy').value = now.text;
      $('policy-error').textContent = '';
      $('policy-note').textContent = 'Saved; in force.';
      this.take(now);
      isSaved = true;
    } catch (refused) {
      $('policy-error').textContent = refused.message;
      $('policy-note').textContent = 'Not saved; the old policy stays in force.';
    }
    this.showButtons();
    return isSaved;
  }

  async undo() {
    if (this.isTyping()) {
      // As the file is by now: somebody else may have written it.
      $('policy-error').textContent = '';
      this.load();
    } else if (this.before !== null && await this.save(this.before)) {
      this.before = null; // what could not be undone still can be
      this.showButtons();
    }
  }
}
