// State: the keys of a session by scope, and what changed them.

import { $, make, plural } from "./elements.js";
import { highlight } from "./highlight.js";
import { branch, same, sketch, words } from "./values.js";

const SCOPES = [
  ["session", "", "Session", "this session alone"],
  ["user", "user:", "User", "every session of the user"],
  ["app", "app:", "App", "every user of the app"],
];

/** What ADK keeps a session's title in; it is shown, but is no state that an agent sets. */
export const METADATA = "__session_metadata__";

const inOrder = new Intl.Collator("en", { numeric: true });

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
      this.boxes.set(scope, { box, size, rows: [] });
      place.append(box);
    }
    this.reset();
  }

  reset() {
    this.rows = new Map();
    for (const each of this.boxes.values()) {
      for (const row of each.rows) row.element.remove();
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

  /** Take values over; `at` tells when they were set, null for a snapshot. */
  set(entries, at) {
    const names = [];
    for (const [name, value] of entries) {
      let row = this.rows.get(name);
      const isNew = row === undefined;
      if (isNew) row = this.add(name);
      if (!isNew && at !== null && at.isRepeat && same(row.value, value)) continue;
      row.old = isNew ? undefined : row.value;
      row.value = value;
      row.isMarked = at !== null && name !== METADATA;
      if (row.isMarked) {
        row.at = at;
        names.push(name);
      }
      this.draw(row);
    }
    if (names.length) this.point(names);
    this.summarise();
  }

  /** Note when keys were last set; those with another value were set elsewhere since. */
  date(entries, at) {
    for (const [name, value] of entries) {
      const row = this.rows.get(name);
      if (row === undefined || row.isMarked || name === METADATA) continue;
      row.at = same(row.value, value) ? at : null;
      this.drawTime(row);
    }
  }

  /** Mark these as what changed last. */
  point(names) {
    for (const name of this.latest) {
      const row = this.rows.get(name);
      row?.element.classList.remove("latest", "flash");
    }
    this.latest = new Set(names);
    for (const name of names) {
      const { element } = this.rows.get(name);
      element.classList.add("latest");
      if (!this.isPast && document.visibilityState === "visible") {
        element.classList.remove("flash");
        void element.offsetWidth; // has the animation begin again
        element.classList.add("flash");
      }
    }
  }

  add(name) {
    const scope = StateTree.scopeOf(name);
    const home = this.boxes.get(scope);
    const row = { name, at: null, time: make("span", "at"), element: make("div", "row"), isMarked: false };
    row.element.dataset.key = name;
    let place = home.rows.findIndex((other) => inOrder.compare(other.name, name) > 0);
    if (place < 0) place = home.rows.length;
    const next = home.rows[place];
    home.box.insertBefore(row.element, next ? next.element : null);
    home.rows.splice(place, 0, row);
    home.box.hidden = false;
    this.rows.set(name, row);
    return row;
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
    this.apply(row);
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

  show(name) {
    const row = this.rows.get(name);
    if (!row) return;
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
    this.highlight();
  }

  apply(row) {
    const text = this.wanted.length ? words({ [row.name]: row.value }, []).join("\n").toLowerCase() : "";
    row.element.hidden = !this.wanted.every((word) => text.includes(word));
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
