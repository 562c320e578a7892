// Moment: the revision whose state is shown, the slider and address that set it, forks.

import { ask, named, pageOf, pathOf } from "./address.js";
import { $, counted, toast } from "./elements.js";
import { StateTree } from "./state.js";
import { parse } from "./values.js";

const ADDRESS_DELAY = 150; // ms: browsers refuse to change an address too often

const inAddress = () => {
  const [, revision] = /^#r=(\d{1,15})$/.exec(location.hash) ?? [];
  return revision === undefined ? null : Number(revision);
};

export class Moment {
  constructor(timeline, now, placeOf) {
    this.timeline = timeline;
    this.placeOf = placeOf;
    this.now = now;
    this.then = new StateTree($("state-then"), now.opened, true);
    this.wanted = inAddress();
    this.reset();
    $("slider").addEventListener("input", () => this.slide(Number($("slider").value)));
    $("now").addEventListener("click", () => this.close());
    $("state-again").addEventListener("click", () => this.draw());
    $("fork").addEventListener("click", () => this.ask());
    $("fork-cancel").addEventListener("click", () => $("fork-dialog").close());
    $("fork-do").addEventListener("click", () => this.fork());
    addEventListener("popstate", () => this.go(inAddress(), true));
  }

  reset() {
    this.at = null;
    this.latest = 0;
    this.base = null;
    this.draw();
  }

  /** Whether the page shows a revision that somebody has chosen. */
  get isPast() { return this.at !== null || this.wanted !== null; }

  /** The tree that is shown. */
  get state() { return this.at === null ? this.now : this.then; }

  /** The session has come to a revision. */
  reached(revision) {
    this.latest = revision;
    const { timeline, wanted: at } = this;
    if (at !== null && timeline.last() >= at && (timeline.isWhole || timeline.first() <= at)) {
      const { wanted } = this;
      this.wanted = null;
      this.go(wanted, true);
    }
    this.drawSlider();
  }

  slide(revision) {
    if (revision === this.latest) this.close();
    else this.go(revision);
  }

  /** Show the state after an event, or now if null. */
  go(revision, isInAddress = false) {
    if (revision === this.at) return;
    const wasNow = this.at === null;
    this.at = revision;
    if (!isInAddress) this.address(wasNow);
    this.draw();
    this.timeline.mark(revision);
  }

  /** Show a key as an event has set it. */
  async show(revision, name) {
    this.go(revision);
    await this.base;
    this.then.show(name);
  }

  address(isNew) {
    const write = () => {
      if (this.at !== null) history.replaceState(history.state, "", `#r=${this.at}`);
    };
    if (isNew) history.pushState({ isOpened: true }, "", `#r=${this.at}`);
    clearTimeout(this.writing);
    if (!isNew) this.writing = setTimeout(write, ADDRESS_DELAY);
  }

  close() {
    if (this.at === null) return;
    clearTimeout(this.writing);
    if (history.state?.isOpened) {
      history.back(); // which the browser's own button does as well
    } else {
      history.replaceState(null, "", location.search || "?");
      this.go(null, true);
    }
  }

  /** The first revision whose state is known. */
  get first() { return this.timeline.first() - 1; }

  drawSlider() {
    const slider = $("slider");
    slider.min = this.first;
    slider.max = this.latest;
    slider.value = this.at ?? this.latest;
    const after = this.at === 0 ? "as it was created" : `after event ${counted.format(this.at ?? 0)}`;
    const words = this.at === null ? "now" : after;
    slider.setAttribute("aria-valuetext", words);
    $("moment-words").textContent = words;
  }

  async draw() {
    const { at } = this;
    const isPast = at !== null;
    $("state").hidden = isPast;
    $("state-then").hidden = !isPast;
    $("now").hidden = !isPast;
    this.drawSlider();
    this.state.summarise();
    this.pending(isPast ? "Loading the state then." : "");
    if (!isPast) return;
    try {
      this.base ??= this.load();
      const base = await this.base;
      if (this.at !== at) return;
      this.pending("");
      this.fill(base, at);
    } catch (error) {
      this.base = null;
      this.then.reset();
      this.pending(`The state then could not be loaded. ${error.message}`, true);
    }
  }

  /** Say that the state is not there yet, or why; nothing if it is. */
  pending(words, hasFailed = false) {
    $("state-pending").hidden = !words;
    $("state-pending-words").textContent = words;
    $("state-again").hidden = !hasFailed;
    if (words) $("state-empty").hidden = true;
  }

  /** The state before the first event, as entries. */
  async load() {
    await this.timeline.whole;
    const { state } = parse(await ask(pathOf(named), { at_revision: this.placeOf(this.first), numRecentEvents: 0 }));
    return Object.entries(state);
  }

  fill(base, at) {
    const values = new Map(base.filter(([name]) => !StateTree.isShared(name)));
    const dates = new Map();
    let event = null;
    for (const item of this.timeline.events) {
      if (item.revision > at) break;
      event = item.revision === at ? item : null;
      if (event) break;
      for (const [name, value] of Object.entries(item.delta)) {
        if (StateTree.isShared(name)) continue;
        values.set(name, value);
        dates.set(name, item.at);
      }
    }
    const delta = Object.entries(event?.delta ?? {});
    // Shared state has no log. What it was before this event is not known.
    const set = new Set(delta.map(([name]) => name));
    const shared = [...this.now.rows].filter(([name]) => StateTree.isShared(name) && !set.has(name));
    this.then.reset();
    this.then.set([...values, ...shared.map(([name, row]) => [name, row.value])], null);
    for (const [name, when] of dates) this.then.date([[name, values.get(name)]], when);
    this.then.set(delta, event?.at ?? null);
  }

  // ---- Forks

  ask() {
    this.forkAt = this.at ?? this.latest;
    $("fork-words").textContent = `A new session of the same user gets the events up to ${counted.format(this.forkAt)}, and the state after them. App and user state stay as they are.`;
    $("fork-dialog").showModal();
  }

  async fork() {
    $("fork-dialog").close();
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ at_revision: this.forkAt }) };
    try {
      const { app_name, user_id, session_id } = JSON.parse(await ask(pathOf(named, "fork"), {}, options));
      location.assign(pageOf({ app_name, user_id, session_id }));
    } catch (error) {
      toast(`It was not forked. ${error.message}`);
    }
  }
}
