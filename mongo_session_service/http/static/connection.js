// Connection: a stream of server-sent events, and what the page shows of it.

import { refusalOf, request } from "./address.js";
import { $ } from "./elements.js";

const FIRST_PAUSE = 0.4;
const LONGEST_PAUSE = 10;

// A browser has six connections to a host, for all tabs together. Hidden ones leave some.
const HIDDEN = 60_000; // ms after which a hidden tab gives its connection back
const MOST = 4; // streams; if there are more, a hidden tab does so at once
const STREAM = "stream";

const isHidden = () => document.visibilityState === "hidden";

/** How many tabs have a stream; only pages that are served securely can know. */
async function streams() {
  const { held } = (await navigator.locks?.query()) ?? { held: [] };
  return held.filter(({ name }) => name === STREAM).length;
}

const DOTS = { live: "#16a36b", waiting: "#e0962a", over: "#d5473d" };

export function show(is, words, notice = "", action = null) {
  const status = $("status");
  status.dataset.is = is;
  delete status.dataset.shown;
  status.textContent = words;
  $("notice").hidden = !notice;
  $("notice").classList.toggle("bad", is === "over");
  if ($("notice-text").textContent !== notice) $("notice-text").textContent = notice;
  $("notice-button").hidden = !action;
  if (action) {
    $("notice-button").textContent = action[0];
    $("notice-button").onclick = action[1];
  }
  const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="6" fill="${DOTS[is]}"/></svg>`;
  $("icon").href = `data:image/svg+xml,${encodeURIComponent(icon)}`;
}

/**
 * Reads server-sent events, and comes back when the connection breaks.
 *
 * A page has its `address(isResumed)`, a path and parameters; it is notified when it is
 * `opened(headers)` or `refused()`, and it will `take(kind, data)`, unless that
 * `ends(kind)` all.
 */
export class Connection {
  constructor(page) {
    this.page = page;
    this.lastId = null;
    this.failures = 0;
    this.wasLive = false;
    this.silence = 45;
    this.isResting = false;
    addEventListener("online", () => this.wake?.());
    document.addEventListener("visibilitychange", () => this.seen());
  }

  async run() {
    this.isOver = false;
    while (!this.isOver) {
      if (isHidden() && (await streams()) >= MOST) this.isResting = isHidden();
      if (this.isResting) await this.rest();
      this.retryAfter = 0;
      this.wasRefused = false;
      let why = "The connection was lost.";
      try {
        why = (await this.read()) ?? why;
      } catch (error) {
        if (error.name === "AbortError") why = "The connection went silent.";
        else if (!this.wasLive && !(error instanceof TypeError)) throw error;
      } finally {
        clearTimeout(this.watchdog);
        this.release?.();
      }
      if (this.sawEnd) {
        this.end("Deleted", "This session was deleted. What is shown stays until you close the page.");
      }
      if (!this.isOver && !this.isResting) await this.pause(why);
    }
  }

  /** The tab is shown, or hidden. */
  async seen() {
    clearTimeout(this.hiding);
    if (!isHidden()) {
      this.isResting = false;
      this.wake?.();
      return;
    }
    const isCrowded = (await streams()) > MOST;
    if (isHidden()) this.hiding = setTimeout(() => this.give(), isCrowded ? 0 : HIDDEN);
  }

  /** Give the connection back until the tab is shown. */
  give() {
    this.isResting = true;
    this.aborter?.abort();
    this.wake?.();
  }

  /** Read everything once more. */
  startOver() {
    this.isAnew = true;
    this.aborter.abort();
  }

  async rest() {
    show("waiting", "Paused while hidden");
    while (this.isResting) await new Promise((resolve) => { this.wake = resolve; });
    this.wake = null;
    show("waiting", "Reconnecting");
  }

  /** One connection, to its end; gives the reason if one is known. */
  async read() {
    const headers = { Accept: "text/event-stream" };
    if (this.isAnew) this.lastId = null;
    this.isAnew = false;
    if (this.lastId !== null) headers["Last-Event-ID"] = this.lastId;
    this.aborter = new AbortController();
    this.listen();
    const { signal } = this.aborter;
    const response = await request(...this.page.address(this.lastId !== null), { headers, signal });
    if (!response.ok) return this.refused(response);
    if (!(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
      return "This server does not stream changes.";
    }
    navigator.locks?.request(STREAM, { mode: "shared" }, () => new Promise((resolve) => { this.release = resolve; }));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let isLive = false;
    let pieces = [];
    let frame = {};
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return this.trouble;
      this.listen();
      if (!isLive) { // an open connection proves nothing: something has to arrive
        isLive = this.wasLive = true;
        show("live", "Live");
        this.page.opened(response.headers);
      }
      pieces.push(value);
      if (!value.includes("\n")) continue;
      const lines = pieces.join("").split("\n");
      pieces = [lines.pop()];
      for (const line of lines) frame = this.line(line.replace(/\r$/, ""), frame);
    }
  }

  line(line, frame) {
    if (line === "") {
      if (frame.data !== undefined) this.receive(frame);
      return {};
    }
    const [, name, value] = /^([^:]*):? ?([^]*)$/.exec(line);
    if (name === "") this.silence = 2.5 * (Number(/^heartbeat ([\d.]+)/.exec(value)?.[1]) || 18);
    else if (name === "data") frame.data = frame.data === undefined ? value : `${frame.data}\n${value}`;
    else if (name === "retry") this.retryAfter = Number(value) / 1000;
    else frame[name] = value;
    return frame;
  }

  receive({ event, id, data }) {
    this.failures = 0;
    this.trouble = undefined;
    if (event === "trouble") {
      this.trouble = JSON.parse(data).reason;
      return;
    }
    if (event === "snapshot") {
      this.lastId = null;
      this.sawEnd = false; // "deleted" was that of an earlier session with this id
    }
    if (id !== undefined) this.lastId = id;
    if (this.page.ends(event)) this.sawEnd = true;
    this.page.take(event, data);
  }

  async refused(response) {
    const detail = await refusalOf(response);
    const again = ["Try again", () => this.run()];
    this.wasRefused = true;
    this.retryAfter = Number(response.headers.get("retry-after")) || 0;
    if (response.status === 404 && this.wasLive) {
      this.end("Deleted", "This session is no longer stored. What is shown stays until you close the page.");
    } else if (response.status === 404) {
      this.retryAfter ||= 2;
      return "Session not found. This page shows it as soon as it is created.";
    } else if (response.status < 500 && response.status !== 429 && response.status !== 408) {
      this.page.refused();
      this.end(response.status === 422 ? "Refused" : "Not allowed", detail, again);
    }
    return detail;
  }

  end(words, notice, action = null) {
    this.isOver = true;
    show("over", words, notice, action);
  }

  /** Give a connection up that has been silent for longer than its heartbeat. */
  listen() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.aborter.abort(), this.silence * 1000);
  }

  async pause(why) {
    const backoff = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** this.failures);
    this.failures += 1;
    // A connection that merely broke is opened again at once, for once.
    const hint = this.wasRefused || this.failures > 1 || this.retryAfter > 2 ? this.retryAfter : 0;
    let left = Math.max(backoff * (0.75 + Math.random() / 2), hint);
    const isShown = left > 0.9;
    const now = ["Try now", () => this.wake()];
    const end = performance.now() + left * 1000;
    const woken = new Promise((resolve) => { this.wake = () => resolve(true); });
    while ((left = (end - performance.now()) / 1000) > 0) {
      show("waiting", isShown ? `Trying again in ${Math.ceil(left)} s` : "Reconnecting", isShown ? why : "", isShown ? now : null);
      const tick = new Promise((resolve) => { setTimeout(resolve, Math.min(left, 1) * 1000, false); });
      if (await Promise.race([woken, tick])) break;
    }
    this.wake = null;
    show("waiting", isShown ? "Trying again" : "Reconnecting", isShown ? why : "");
  }
}
