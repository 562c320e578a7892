// Session: its changes, drawn in the order of their arrival, and the keyboard.

import { appName, ask, named, pageOf, pathOf, sessionId, userId } from "./address.js";
import { Connection, show } from "./connection.js";
import { $, copy, counted, make, plural } from "./elements.js";
import { hasTime, soon } from "./frames.js";
import { Moment } from "./moment.js";
import { shortened } from "./rows.js";
import { RunningTurn } from "./running.js";
import { METADATA, StateTree } from "./state.js";
import { Timeline } from "./timeline.js";
import { inCalendar, timeOf } from "./times.js";
import { parse, pretty, wordsOf } from "./values.js";
import { Versions } from "./versions.js";

/** Take in what has arrived as far as there is time, which may go by with parsing one. */
function takeSome(arrived, act) {
  let taken = 0;
  for (; taken < arrived.length && hasTime(); taken += 1) {
    const each = arrived[taken];
    each.change ??= parse(each.raw);
    if (!hasTime()) break;
    act(each);
  }
  arrived.splice(0, taken);
}

const PAGE = 100; // events
const AGAIN = 2000; // ms after which a page that could not be had is asked for again

class SessionPage {
  constructor() {
    this.state = new StateTree($("state"));
    this.timeline = new Timeline();
    this.moment = new Moment(this.timeline, this.state, (revision) => this.place(revision));
    this.running = new RunningTurn(this.timeline);
    this.versions = new Versions(this.timeline, () => this.moment.isPast);
    this.timeline.onSelect = (revision) => this.moment.go(revision);
    this.timeline.onShow = (revision, name) => this.moment.show(Number(revision), name);
    this.queue = [];
    this.earlier = []; // events from before the snapshot
    this.isPaused = false;
    this.unread = 0;
    this.name = null;
    this.reset(null);
    $("events-empty").textContent = "Nothing is loaded yet.";
  }

  reset(snapshot) {
    this.revision = snapshot ? Number(snapshot.revision) : 0;
    this.begins = this.revision + 1;
    this.hasSnapshot = snapshot !== null;
    this.timeline.reset();
    this.state.reset();
    this.moment.reset();
    this.running.reset();
    this.timeline.summarise();
  }

  address() {
    return [pathOf(named, "changes"), { partials: "true" }];
  }

  /** A revision of the session that is shown; another one may have its id by now. */
  place(revision) {
    const creation = this.connection.lastId?.split("-").at(-1);
    return creation ? `${revision}-${creation}` : revision;
  }

  /** Read what was appended before the snapshot, the latest first, until another snapshot comes. */
  async readEarlier() {
    const reading = this.reading = {};
    let limit = PAGE;
    for (let before = this.begins, hasMore = before > 1; hasMore;) {
      const parameters = { newest_first: "true", before_revision: this.place(before), limit };
      try {
        const page = parse(await ask(pathOf(named, "events"), parameters));
        if (this.reading !== reading) return;
        for (const { revision, event } of page.events) {
          const change = { kind: "appended", ...named, revision, event, state_delta: event.actions?.stateDelta ?? {}, time: event.timestamp };
          this.earlier.push({ kind: "earlier", change, raw: JSON.stringify(change) });
          before = Number(revision);
        }
        hasMore = page.has_more;
        limit = PAGE;
      } catch (error) {
        if (this.reading !== reading || [401, 403, 404].includes(error.status)) return;
        if (error.status !== 500) await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
        else if (limit > 1) limit = 1; // one of the page cannot be read
        else this.earlier.push({ kind: "earlier", change: { revision: before -= 1 } });
        hasMore = before > 1;
      }
      this.draw();
    }
    this.earlier.push({ kind: "beginning", change: {} });
    this.draw();
  }

  /** The headers name what else the server offers. */
  opened(headers) {
    this.hasOpened = true; // and nothing has arrived since
    const permitted = (headers.get("permitted-actions") ?? "").split(", ");
    $("fork").hidden = !permitted.includes("fork");
    $("home").hidden = !permitted.includes("list");
    this.running.permit(permitted.includes("stop"));
    this.versions.opened(permitted.includes("update"));
  }

  ends(kind) {
    return kind === "deleted";
  }

  refused() {}

  /** A frame that arrived; it is drawn in its turn. */
  take(kind, raw) {
    if (kind === "redacted") { // what it takes away may be in any event, state and search
      this.queue.length = this.earlier.length = 0;
      this.reading = null;
      this.connection.startOver();
      return;
    }
    const isFirst = this.hasOpened;
    this.hasOpened = false;
    if (kind === "snapshot") {
      if (!isFirst) return this.connection.startOver(); // trimmed: the history before it is to be read again
      this.earlier.length = 0;
      this.reading = null;
      this.hasSnapshot = false; // before it is drawn
    }
    this.queue.push({ kind, raw });
    this.draw();
    if (kind !== "appended" || document.visibilityState !== "hidden") return;
    this.unread += 1;
    this.title();
  }

  draw() {
    if (this.isPaused) $("pause").textContent = this.queue.length ? `Resume (${this.queue.length})` : "Resume";
    if ((this.earlier.length && this.hasSnapshot) || (this.queue.length && !this.isPaused)) soon(this.drawSome);
  }

  drawSome = () => {
    const isFlood = this.queue.length > 40;
    if (!this.isPaused) {
      takeSome(this.queue, ({ kind, raw, change }) => {
        if (kind === "appended") this.appended(change, raw, isFlood);
        else this.other(kind, change);
      });
    }
    if (this.hasSnapshot) {
      takeSome(this.earlier, (each) => this.happenedEarlier(each));
      this.timeline.joinEarlier();
    }
    this.summarise();
    this.versions.arrive();
    this.draw();
  };

  /** What was appended before the snapshot, the latest first; it has no part in the state. */
  happenedEarlier({ kind, raw, change }) {
    if (kind === "beginning") {
      this.timeline.end(this.begins - 1);
      return;
    }
    this.begins = Number(change.revision);
    for (const { delta, at } of this.timeline.prepend(change, raw)) this.state.date(Object.entries(delta), at);
  }

  appended(change, raw, isFlood) {
    const revision = Number(change.revision);
    if (revision <= this.revision) return; // never received twice; if it were, it is not shown twice
    const missing = revision - this.revision - 1;
    if (missing) this.timeline.note(`${plural(missing, "event")} before this one cannot be had.`);
    this.revision = revision;
    if (!change.event) {
      this.timeline.note(`Event ${revision} cannot be read.`);
      return;
    }
    this.running.stored(change.event.id);
    const { at, delta } = this.timeline.add(change, raw, !isFlood);
    this.state.set(Object.entries(delta), at);
    if (delta[METADATA]) this.rename(delta[METADATA].displayName);
    if (!isFlood) this.announce(change);
  }

  other(kind, change) {
    const seconds = timeOf(change.time);
    if (kind === "snapshot") {
      document.body.classList.remove("unknown", "gone");
      this.reset(change);
      this.state.set(Object.entries(change.state ?? {}), null);
      this.rename(change.state?.[METADATA]?.displayName);
      this.readEarlier();
    } else if (kind === "state") {
      this.hasSharedState = true;
      // A page that reconnects receives all of it again.
      this.state.set(Object.entries(change.state_delta ?? {}), { revision: null, words: inCalendar(seconds), isRepeat: true });
    } else if (kind === "updated") {
      // As a snapshot shows a title.
      const { displayName, ...others } = this.state.rows.get(METADATA)?.value ?? {};
      const value = change.title ? { ...others, displayName: change.title } : others;
      if (change.title || displayName) this.state.set([[METADATA, value]], null);
      this.rename(change.title);
      if (change.root_id) this.versions.read();
    } else if (kind === "partial") {
      this.running.addPartial(change);
    } else if (kind === "turn") {
      this.running.stands(change.turn);
    } else if (kind === "deleted") {
      this.running.reset();
      this.reading = null; // by now another session may have this id
      document.body.classList.add("gone");
      this.timeline.note(`The session was deleted, ${inCalendar(seconds)}.`);
      this.timeline.keepUp();
    }
  }

  announce(change) {
    this.unannounced = (this.unannounced ?? 0) + 1;
    const text = (change.event.content?.parts ?? []).map((part) => part.text ?? part.functionCall?.name ?? "").join(" ").slice(0, 120);
    this.lastAnnouncement = `${change.event.author}: ${text}`;
    this.announcing ??= setTimeout(() => {
      $("announcement").textContent = this.unannounced > 1 ? `${this.unannounced} new events. Latest, ${this.lastAnnouncement}` : this.lastAnnouncement;
      this.unannounced = 0;
      this.announcing = undefined;
    }, 1200);
  }

  summarise() {
    const { revision } = this;
    $("revision").replaceChildren("revision ", make("b", "", counted.format(revision)));
    this.timeline.summarise();
    $("events-empty").textContent = revision
      ? "No events are shown: the earlier ones were trimmed, or are still to arrive."
      : "No events yet. They appear here as they are appended.";
    this.moment.reached(revision);
  }

  rename(title) {
    this.name = title || null;
    this.title();
  }

  /** Show the name of the session in the heading and on the tab. */
  title() {
    const waiting = this.unread ? `(${this.unread}) ` : "";
    document.title = `${waiting}${this.name ?? sessionId}`;
    $("where").lastChild.textContent = this.name ?? shortened(sessionId);
  }

  pause() {
    this.isPaused = !this.isPaused;
    $("pause").setAttribute("aria-pressed", String(this.isPaused));
    $("pause").textContent = this.isPaused ? "Resume" : "Pause";
    this.draw();
  }
}

export function watch() {
  $("session").hidden = false;
  $("home").href = pageOf({ app_name: appName });
  const part = (className, name) => {
    const element = make("span", className, shortened(name));
    element.title = name;
    return element;
  };
  $("where").append(part("of", appName), make("span", "gap", "›"), part("of", userId), make("span", "gap", "›"), part("name", sessionId));
  const page = new SessionPage();
  const { timeline, moment } = page;
  page.title();
  show("waiting", "Connecting");
  const unfoldNear = () => { const item = timeline.current(); if (item) timeline.unfold(item); };
  const filter = () => timeline.filter($("filter").value, $("filter-by").value);
  const latest = () => {
    moment.close();
    timeline.follow();
  };
  const keys = {
    j: () => timeline.move(1), ArrowDown: () => timeline.move(1),
    k: () => timeline.move(-1), ArrowUp: () => timeline.move(-1),
    g: () => timeline.moveToFirst(),
    G: () => latest(), End: () => latest(),
    p: () => page.pause(),
    c: () => { const item = timeline.current(); if (item) copy(pretty(parse(item.raw)), "Event"); },
    "/": () => $("filter").focus(),
    "?": () => $("help").showModal(),
  };
  document.addEventListener("keydown", (press) => {
    const target = press.target;
    if (press.ctrlKey || press.metaKey || press.altKey || document.querySelector("dialog[open]")) return;
    if (press.key === "Escape") {
      if (!$("filter").value && !$("filter-by").value && target !== $("filter")) moment.close();
      $("filter").value = "";
      $("filter-by").value = "";
      filter();
      $("filter").blur();
      return;
    }
    if (target.closest("input, select")) return;
    if (press.key === "Enter" && timeline.byElement.has(target)) {
      press.preventDefault();
      unfoldNear();
    } else if (Object.hasOwn(keys, press.key)) {
      press.preventDefault();
      keys[press.key]();
    }
  });
  let filtering = 0;
  $("filter-by").addEventListener("change", () => filter());
  $("state-filter").addEventListener("input", () => {
    for (const tree of [moment.now, moment.then]) tree.search(wordsOf($("state-filter").value));
  });
  $("filter").addEventListener("input", () => {
    clearTimeout(filtering);
    filtering = setTimeout(filter, 80);
  });
  $("pause").addEventListener("click", () => page.pause());
  $("copy-events").addEventListener("click", () => copy(pretty(timeline.toJSON()), plural(timeline.events.length, "event")));
  $("copy-state").addEventListener("click", () => copy(pretty(moment.state.toJSON()), "State"));
  $("fold").addEventListener("click", () => moment.state.fold());
  $("help-button").addEventListener("click", () => $("help").showModal());
  $("help").addEventListener("click", (click) => { if (click.target === $("help")) $("help").close(); });
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") {
      page.unread = 0;
      page.title();
    }
  });
  page.connection = new Connection(page);
  page.connection.run();
}
