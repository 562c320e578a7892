// Rows: sessions in a list, which is loaded a page at a time.

import { pageOf } from "./address.js";
import { counted, flash, make, plural } from "./elements.js";

/** A session, or that of a change, as one string. */
export const nameOf = ({ app_name, user_id, session_id }) => JSON.stringify([app_name, user_id, session_id]);

const keyOf = ({ app_name, user_id, session_id }) => ({ app_name, user_id, session_id });

const familyOf = (session) => nameOf({ ...session, session_id: session.root_id ?? session.session_id });

const LONGEST = 22; // characters: what a phone has room for

/** An id without its middle: both ends distinguish it from others. */
export function shortened(id) {
  const letters = [...id];
  return letters.length > LONGEST ? `${letters.slice(0, 8).join("")}…${letters.slice(-8).join("")}` : id;
}

function ago(seconds) {
  if (!(seconds >= 5)) return "now";
  const [unit, name] = seconds < 60 ? [1, "second"] : seconds < 3600 ? [60, "minute"] : seconds < 86400 ? [3600, "hour"] : [86400, "day"];
  return `${plural(Math.floor(seconds / unit), name)} ago`;
}

/** One line: a title and what is beneath it, and two words at the side. */
export class Row {
  constructor(href) {
    this.name = make("span", "name");
    this.of = make("div", "of");
    this.labels = make("div", "labels");
    this.count = make("div", "");
    this.ago = make("div", "ago");
    this.link = make("a", "", make("span", "dot"), make("div", "", this.name, this.of, this.labels), make("div", "side", this.count, this.ago));
    this.link.href = href;
    this.element = make("li", "", this.link);
  }

  age(time) {
    this.time = time ?? this.time;
    const age = Date.now() / 1000 - this.time;
    this.element.classList.toggle("fresh", age < 30);
    this.ago.textContent = ago(age);
  }
}

const TURNS = { running: "running", stopping: "stopping", abandoned: "turn abandoned" };

/** What needs a look: a session waits for a person, or a turn of it has not ended; and how many versions it has. */
function badges({ waiting, waiting_more, turn, branches }) {
  const made = [];
  const badge = (className, words, title) => {
    const element = make("span", `tag ${className}`, words);
    element.title = title;
    made.push(element);
  };
  const count = waiting.length + waiting_more;
  if (count) badge("waits", `waits for a person${count > 1 ? ` (${counted.format(count)})` : ""}`, `To answer ${waiting.map(({ name }) => name).join(", ")}`);
  if (Object.hasOwn(TURNS, turn ?? "")) badge(turn, TURNS[turn], "A turn of this session has not ended");
  if (branches > 1) badge("", plural(branches, "version"), "Of this conversation, whose messages were edited or asked again");
  return made;
}

class SessionRow extends Row {
  constructor(session) {
    super(pageOf(keyOf(session)));
    this.session = {};
    this.draw(session);
  }

  /** Show what is known of the session now; what is not given stays as it was. */
  draw(known) {
    const session = this.session = { ...this.session, ...known };
    const { user_id, session_id } = session;
    this.name.textContent = session.title ?? shortened(session_id);
    this.of.textContent = session.title === null ? user_id : `${user_id} › ${shortened(session_id)}`;
    this.link.title = session_id;
    const labels = Object.entries(session.labels).map(([name, value]) => make("span", "tag", `${name}=${value}`));
    this.labels.replaceChildren(...badges(session), ...labels);
    this.count.textContent = plural(session.revision - (session.log_begins ?? 0), "event");
    this.age(session.last_update_time);
  }
}

export class Rows {
  /** `load` gives a page for a token; `more` is the button that asks for the next. */
  constructor(list, more, load) {
    Object.assign(this, { list, more, load });
    this.rows = new Map();
    this.token = null;
    more.addEventListener("click", () => this.next());
  }

  get size() {
    return this.rows.size;
  }

  /** The first page, unless it is given, in place of all that is shown. */
  async begin(first = null) {
    this.token = null;
    const page = first ?? await this.load({});
    this.rows.clear();
    this.list.replaceChildren();
    this.take(page);
  }

  async next() {
    if (this.token === null || this.isLoading) return;
    this.isLoading = true;
    try {
      this.take(await this.load({ page_token: this.token }));
    } finally {
      this.isLoading = false;
    }
  }

  take(page) {
    for (const session of page.sessions) {
      if (!this.rows.has(nameOf(session))) this.list.append(this.add(session));
    }
    this.token = page.next_page_token;
    this.more.hidden = this.token === null;
    this.list.hidden = !this.size;
  }

  /** Ask for the next page whenever the end of the list is in sight. */
  follow() {
    const observer = new IntersectionObserver(async ([entry]) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      await this.next();
      observer.observe(this.more); // it is called at once if the end is still in sight
    }, { rootMargin: "400px" });
    observer.observe(this.more);
  }

  add(session) {
    const row = new SessionRow(session);
    this.rows.set(nameOf(session), row);
    return row.element;
  }

  get(name) {
    return this.rows.get(name);
  }

  /** The row of a session, or that of its family, which is the session's from now on. */
  ofFamily(session) {
    const name = nameOf(session);
    const [former, row] = [...this.rows].find(([, each]) => familyOf(each.session) === familyOf(session)) ?? [];
    if (!row || this.rows.has(name)) return this.rows.get(name);
    this.rows.delete(former);
    this.rows.set(name, row);
    row.link.href = pageOf(keyOf(session));
    return row;
  }

  /** A session that something happened to comes first. */
  lift(session) {
    if (!this.rows.has(nameOf(session))) this.add(session);
    const row = this.rows.get(nameOf(session));
    row.draw(session);
    // A row that has the focus stays under the hands of whoever chose it.
    const isHeld = row.element.contains(document.activeElement);
    if (this.list.firstChild !== row.element && !isHeld) this.list.prepend(row.element);
    flash(row.element);
    this.list.hidden = false;
  }

  remove(name) {
    this.rows.get(name)?.element.remove();
    this.rows.delete(name);
    this.list.hidden = !this.size;
  }

  age() {
    for (const row of this.rows.values()) row.age();
  }
}
