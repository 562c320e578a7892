// State: the keys of a session by scope, and what changed them.

import { Blocks } from "./blocks.js";
import { $, arrange, flash, make, plural } from "./elements.js";
import { soon } from "./frames.js";
import { highlight } from "./highlight.js";
import { branch, same, sketch, words } from "./values.js";

const SCOPES = [
  ["session", "", "Session", "this session alone"],
  ["user", "user:", "User", "every session of the user"],
  ["app", "app:", "App", "every user of the app"],
];

/** What ADK keeps a session's title in; it is shown, but is no state that an agent sets. */
export const METADATA = "__session_metadata__";

/** What names are ordered by: numbers in them by their value. */
const orderOf = (name) => `${name.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(16, "0"))}\n${name}`;
const byOrder = (one, other) => (one.order < other.order ? -1 : 1);

/** Where a row belongs among others, by halving. */
const AT_ONCE = 1000; // rows that get their places between two frames

function placeOf(row, rows) {
  let [from, to] = [0, rows.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (byOrder(rows[middle], row) < 0) from = middle + 1;
    else to = middle;
  }
  return from;
}

export class StateTree {
  constructor(place, opened = new Set(), isPast = false) {
    this.place = place;
    this.opened = opened;
    this.isPast = isPast;
    this.wanted = [];
    place.addEventListener("toggle", () => this.highlight(), true);
    this.boxes = new Map();
    for (const [scope, , title, whose] of SCOPES) {
      const size = make("small", "");
      const words = isPast && scope !== "session" ? `${whose}, as now but for what this event set` : whose;
      const head = make("h3", "scope", title, size, make("small", "", words));
      const box = make("div", "", head);
      box.hidden = true;
      place.append(box);
      this.boxes.set(scope, { box, size, rows: [], blocks: new Blocks(box, this, 26) });
    }
    this.reset();
  }

  reset() {
    this.rows = new Map();
    this.waiting = []; // rows without a place
    this.isSorted = true;
    for (const each of this.boxes.values()) {
      each.blocks.clear();
      each.rows = [];
      each.box.hidden = true;
    }
    this.latest = new Set();
    this.summarise();
  }

  static scopeOf(name) {
    return SCOPES.find(([, prefix]) => prefix && name.startsWith(prefix))?.[0] ?? "session";
  }

  static isShared(name) { return StateTree.scopeOf(name) !== "session"; }

  /** Take values over; `at` is when they were set, null for a snapshot. */
  set(entries, at) {
    const names = [];
    const added = [];
    for (const [name, value] of entries) {
      let row = this.rows.get(name);
      const isNew = row === undefined;
      if (isNew) added.push(row = this.make(name));
      if (!isNew && at !== null && at.isRepeat && same(row.value, value)) continue;
      row.old = isNew ? undefined : row.value;
      row.value = value;
      row.text = null;
      row.isMarked = at !== null && name !== METADATA;
      if (row.isMarked) {
        row.at = at;
        names.push(name);
      }
      const wasShown = row.isShown;
      this.apply(row);
      if (row.block && row.isShown !== wasShown) this.blocksOf(row).changed(row.block);
      if (row.element) this.draw(row);
    }
    if (added.length) {
      this.waiting = this.waiting.concat(added);
      this.isSorted = false;
      if (added.length > AT_ONCE) soon(this.insertSome);
      else this.insertSome();
    }
    if (names.length) this.point(names);
    this.summarise();
  }

  /** Note when keys were last set, the last time first; those with another value were set elsewhere since. */
  date(entries, at) {
    for (const [name, value] of entries) {
      const row = this.rows.get(name);
      if (row === undefined || row.isMarked || row.isDated || name === METADATA) continue;
      row.isDated = true;
      row.at = same(row.value, value) ? at : null;
      if (row.element) this.drawTime(row);
    }
  }

  /** Mark these as what changed last. */
  point(names) {
    for (const name of this.latest) {
      const row = this.rows.get(name);
      row?.element?.classList.remove("latest", "flash");
    }
    this.latest = new Set(names);
    for (const name of names) {
      const { element } = this.rows.get(name);
      if (!element) continue;
      element.classList.add("latest");
      if (!this.isPast && document.visibilityState === "visible") flash(element);
    }
  }

  blocksOf(row) { return this.boxes.get(StateTree.scopeOf(row.name)).blocks; }

  make(name) {
    const row = { name, at: null, isMarked: false };
    this.rows.set(name, row);
    return row;
  }

  /** Give new rows their places: many, and the rest before a later frame. */
  insertSome = () => {
    if (!this.isSorted) {
      for (const row of this.waiting) row.order ??= orderOf(row.name);
      this.waiting.sort(byOrder);
      this.isSorted = true;
      if (this.waiting.length > AT_ONCE) return soon(this.insertSome);
    }
    const added = this.waiting.splice(0, AT_ONCE);
    if (!added.length) return;
    if (this.waiting.length) soon(this.insertSome);
    for (const [scope, { box, rows, blocks }] of this.boxes) {
      const own = added.filter(({ name }) => StateTree.scopeOf(name) === scope);
      if (!own.length) continue;
      box.hidden = false;
      let from = 0;
      for (; from < own.length; from += 1) { // until the others all come last
        const place = placeOf(own[from], rows);
        if (place === rows.length) break;
        blocks.insert(own[from], rows[place]);
        rows.splice(place, 0, own[from]);
      }
      const rest = own.slice(from);
      blocks.add(rest);
      for (const row of rest) rows.push(row);
      blocks.begin();
    }
    this.summarise();
  };

  /** Draw what a block has. */
  fill(box, rows) {
    for (const row of rows.filter(({ element }) => !element)) {
      row.element = make("div", `row${this.latest.has(row.name) ? " latest" : ""}`);
      row.element.dataset.key = row.name;
      row.time = make("span", "at");
      this.draw(row);
    }
    arrange(box, rows.map(({ element }) => element));
    if (this.wanted.length) this.highlight();
  }

  draw(row) {
    const { name, value, old } = row;
    const wasThere = row.isMarked && old !== undefined;
    const tree = branch(name, value, [name], this.opened, wasThere ? old : value);
    if (wasThere && !same(old, value)) {
      const line = tree.tagName === "DETAILS" ? tree.firstChild : tree;
      line.append(make("span", "was", sketch(old, 36)));
    }
    row.element.replaceChildren(make("div", "", tree), row.time);
    this.drawTime(row);
  }

  drawTime(row) {
    if (row.at === null) {
      row.time.textContent = "";
    } else if (row.at.revision === null) {
      row.time.textContent = "elsewhere";
      row.time.title = `Changed outside of this session, ${row.at.words}`;
    } else {
      row.time.textContent = `#${row.at.revision}`;
      row.time.title = `Changed at revision ${row.at.revision}, ${row.at.words}`;
    }
  }

  async show(name) {
    const row = this.rows.get(name);
    while (row && !row.block && row === this.rows.get(name)) await new Promise(soon);
    if (!row?.isShown || !row.block) return;
    this.blocksOf(row).show(row);
    row.element.scrollIntoView({ block: "center", behavior: "smooth" });
    row.element.classList.add("pointed");
    setTimeout(() => row.element.classList.remove("pointed"), 1600);
  }

  fold() {
    this.opened.clear();
    for (const tree of this.place.querySelectorAll("details[open]")) tree.open = false;
  }

  /** Show only the keys that have these words, in their name or value. */
  search(wanted) {
    this.wanted = wanted;
    for (const row of this.rows.values()) this.apply(row);
    for (const { blocks } of this.boxes.values()) blocks.refresh();
    this.highlight();
  }

  apply(row) {
    if (this.wanted.length) row.text ??= words({ [row.name]: row.value }, []).join("\n").toLowerCase();
    row.isShown = this.wanted.every((word) => row.text.includes(word));
  }

  highlight() {
    if (this.place.hidden) return;
    highlight("state", this.wanted.length ? [this.place] : [], this.wanted);
  }

  summarise() {
    for (const { size, rows } of this.boxes.values()) size.textContent = String(rows.length);
    if (this.place.hidden) return;
    $("state-count").textContent = plural(this.rows.size, "key");
    this.highlight();
    $("state-empty").hidden = this.rows.size > 0;
  }

  toJSON() {
    // Keys as they are, "__proto__" too.
    return Object.fromEntries([...this.rows].map(([name, row]) => [name, row.value]));
  }
}
