// Timeline: the events of a session, from the first to the latest.

import { $, button, copy, counted, make, plural } from "./elements.js";
import { inCalendar, inClock, lasted, timeOf } from "./times.js";
import { children, Exact, isTree, literal, parse, pretty, sizeOf, sketch } from "./values.js";

function hueOf(author) {
  if (author === "user") return 255;
  let sum = 7;
  for (const letter of author) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return [160, 300, 60, 345, 200, 110, 25][sum % 7];
}

/** Every word in a value that somebody may look for. */
function words(value, found) {
  if (isTree(value)) {
    for (const [name, each] of Object.entries(value)) {
      if (!Array.isArray(value)) found.push(name);
      words(each, found);
    }
  } else if (value !== null) {
    found.push(value instanceof Exact ? value.text : String(value).slice(0, 20000));
  }
  return found;
}

function text(content, className) {
  const box = make("div", className, content);
  box.dir = "auto";
  const lines = content.split("\n").length;
  if (lines <= 12 && content.length <= 1200) return [box];
  box.classList.add("folded");
  const size = lines > 12 ? plural(lines, "line") : plural(content.length, "character");
  const more = button(`Show all ${size}`, "", () => {
    const isFolded = box.classList.toggle("folded");
    more.textContent = isFolded ? `Show all ${size}` : "Show less";
  });
  more.className = "more";
  return [box, more];
}

/** A named value in one line, the whole of it folded. */
function folded(what, name, value, tail = "") {
  const summary = make("summary", "mono",
    make("span", "what", what), make("span", "fn", name),
    make("span", "sketch", sketch(value, 140)), tail ? make("span", "what", tail) : null);
  const details = make("details", "call", summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const inside = make("div", "inside");
    if (isTree(value) && sizeOf(value)) {
      inside.append(children(value, [], new Set(), value));
    } else {
      inside.append(make("div", "whole", isTree(value) ? "nothing" : String(literal(value))));
    }
    details.append(inside);
  });
  return details;
}

export class Timeline {
  constructor(state) {
    this.state = state;
    this.scroller = $("event-scroll");
    this.list = $("events");
    this.isFollowing = true;
    this.lastTop = 0;
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.list.addEventListener("click", (click) => {
      // What unfolds under the pointer must not run away from it.
      if (click.target.closest("summary, button")) this.isFollowing = false;
    });
    new ResizeObserver(() => this.keepUp()).observe(this.list);
    new ResizeObserver(() => this.keepUp()).observe(this.scroller);
    $("pill").addEventListener("click", () => this.follow());
    this.reset();
  }

  reset() {
    this.events = [];
    this.byElement = new Map();
    this.calls = new Map();
    this.invocation = null;
    this.lastTime = null;
    this.missed = 0;
    this.matching = 0;
    this.list.replaceChildren();
    this.follow();
  }

  /** Take an event in; made elements wait for `place()`. */
  make(change, raw, isNew) {
    const { event, revision } = change;
    const card = make("article", "event");
    card.tabIndex = -1;
    card.dataset.revision = revision;
    card.setAttribute("aria-posinset", revision);
    card.setAttribute("aria-setsize", -1);
    card.setAttribute("aria-label", `Event ${revision} from ${event.author}`);
    if (event.invocationId !== this.invocation) card.classList.add("turn");
    if (isNew) card.classList.add("new");
    this.invocation = event.invocationId;
    const at = timeOf(change.time);
    card.append(make("div", "nth", String(revision)), make("div", "", this.head(event, revision, at, card, raw), ...this.body(change, event, at)));
    this.lastTime = at;
    const item = { card, raw, author: event.author, seen: words([event.author, `#${revision}`, event.content ?? {}, change.state_delta, event.errorMessage ?? "", event.errorCode ?? ""], []).join("\n").toLowerCase() };
    this.events.push(item);
    this.byElement.set(card, item);
    this.apply(item);
    return card;
  }

  head(event, revision, at, card, raw) {
    const author = make("span", "author", event.author || "nobody");
    author.style.setProperty("--hue", hueOf(event.author));
    const since = this.lastTime === null ? "" : lasted(at - this.lastTime);
    const when = make("span", "when", since ? make("i", "", `+${since}`) : null, inClock(at));
    when.title = inCalendar(at);
    const tools = make("span", "tools",
      button("{ }", "Show this event's JSON", () => this.toggleRaw(card)),
      button("copy", "Copy this event's JSON (c)", () => copy(pretty(parse(raw)), `Event ${revision}`)));
    return make("div", "head", author, ...this.tags(event), tools, when);
  }

  tags(event) {
    const tags = [];
    const tag = (label, title, className = "tag") => {
      const element = make("span", className, label);
      element.title = title;
      tags.push(element);
    };
    const actions = event.actions ?? {};
    if (event.branch) tag(event.branch, `Branch ${event.branch}`);
    if (actions.transferToAgent) tag(`→ ${actions.transferToAgent}`, "Transfers to another agent");
    if (actions.escalate) tag("escalates", "Escalates to the agent above");
    if (event.longRunningToolIds?.length) tag("long-running", "Waits for a long-running tool");
    if (event.interrupted) tag("interrupted", "The user interrupted");
    if (Object.keys(actions.requestedAuthConfigs ?? {}).length) tag("asks for credentials", "Requests credentials");
    if (Object.keys(actions.requestedToolConfirmations ?? {}).length) tag("asks to confirm", "Requests a confirmation");
    const tokens = event.usageMetadata?.totalTokenCount;
    if (tokens) tag(`${counted.format(Number(tokens))} tokens`, "Tokens of prompt and answer");
    if (event.finishReason && event.finishReason !== "STOP") tag(String(event.finishReason), "Why the model stopped");
    return tags;
  }

  body(change, event, at) {
    const made = [];
    if (event.errorCode || event.errorMessage) {
      made.push(make("div", "", make("span", "tag bad", String(event.errorCode ?? "error"))));
      if (event.errorMessage) made.push(...text(String(event.errorMessage), "text"));
    }
    for (const part of event.content?.parts ?? []) made.push(...this.part(part, at));
    const chips = make("div", "chips");
    for (const [name, value] of Object.entries(change.state_delta ?? {})) {
      const chip = button("", `Set ${name}: show it in the state`, () => this.state.show(name));
      chip.className = "chip";
      chip.append(make("b", "", name), ` = ${sketch(value, 60)}`);
      chips.append(chip);
    }
    for (const [name, version] of Object.entries(event.actions?.artifactDelta ?? {})) {
      const chip = make("span", "chip artifact", `${name} (version ${literal(version)})`);
      chip.title = "Saved an artifact";
      chips.append(chip);
    }
    if (chips.childElementCount) made.push(chips);
    return made;
  }

  part(part, at) {
    if (typeof part.text === "string") {
      return part.text ? text(part.text, part.thought ? "text thought" : "text") : [];
    }
    if (part.functionCall) {
      const { id, name, args } = part.functionCall;
      if (id) this.calls.set(id, at);
      return [folded("calls", name ?? "", args ?? {})];
    }
    if (part.functionResponse) {
      const { id, name, response } = part.functionResponse;
      return [folded("returns", name ?? "", response ?? {}, lasted(at - this.calls.get(id)))];
    }
    if (part.executableCode) {
      return [make("pre", "", String(part.executableCode.code ?? ""))];
    }
    if (part.codeExecutionResult) {
      return [make("pre", "", String(part.codeExecutionResult.output ?? part.codeExecutionResult.outcome ?? ""))];
    }
    if (part.inlineData) {
      const { mimeType, data } = part.inlineData;
      const size = Math.floor(((data ?? "").length * 3) / 4);
      return [make("div", "chips", make("span", "tag", `${mimeType ?? "data"}, ${plural(size, "byte")}`))];
    }
    if (part.fileData) {
      return [make("div", "chips", make("span", "tag", part.fileData.fileUri ?? "a file"))];
    }
    const kind = Object.keys(part)[0];
    return kind ? [folded("part", kind, part[kind])] : [];
  }

  note(words, className = "note") {
    const note = make("div", className, words);
    this.list.append(note);
    return note;
  }

  place(cards) {
    if (!cards.length) return;
    const batch = document.createDocumentFragment();
    batch.append(...cards);
    this.list.append(batch);
    if (!this.isFollowing) this.missed += cards.length;
    this.drawPill(); // and the list's growth has it keep up
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollTop + clientHeight >= scrollHeight - 24) this.isFollowing = true;
    else if (scrollTop < this.lastTop - 1) this.isFollowing = false;
    this.lastTop = scrollTop;
    if (this.isFollowing) this.missed = 0;
    this.drawPill();
  }

  keepUp() {
    if (this.isFollowing) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      this.lastTop = this.scroller.scrollTop;
    }
    this.drawPill();
  }

  follow() {
    this.isFollowing = true;
    this.missed = 0;
    this.keepUp();
  }

  drawPill() {
    $("pill").hidden = this.missed === 0;
    $("pill").textContent = `↓ ${counted.format(this.missed)} new`;
  }

  filter(text) {
    this.wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.matching = 0;
    for (const item of this.events) this.apply(item);
    this.summarise();
    this.keepUp();
  }

  apply(item) {
    const isWanted = (this.wanted ?? []).every((word) => item.seen.includes(word));
    item.card.hidden = !isWanted;
    if (isWanted) this.matching += 1;
  }

  summarise() {
    const all = this.events.length;
    const isFiltered = Boolean(this.wanted?.length);
    $("event-count").textContent = isFiltered ? `${counted.format(this.matching)} of ${counted.format(all)}` : counted.format(all);
    $("events-empty").hidden = all > 0;
    $("events-unmatched").hidden = !(isFiltered && all > 0 && this.matching === 0);
  }

  toggleRaw(card) {
    const body = card.lastChild;
    const shown = body.querySelector(":scope > pre.raw");
    if (shown) shown.remove();
    else body.append(make("pre", "raw", pretty(parse(this.byElement.get(card).raw).event)));
  }

  current() { return this.byElement.has(document.activeElement) ? document.activeElement : null; }

  move(step) {
    const cards = this.events.map((item) => item.card).filter((card) => !card.hidden);
    if (!cards.length) return;
    const at = cards.indexOf(this.current());
    const next = at < 0 ? (step > 0 ? 0 : cards.length - 1) : Math.min(cards.length - 1, Math.max(0, at + step));
    this.select(cards[at < 0 && this.isFollowing ? cards.length - 1 : next]);
  }

  select(card) {
    this.isFollowing = card === this.events.at(-1)?.card;
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  }

  unfold(card) {
    const parts = [...card.querySelectorAll("details.call")];
    const more = card.querySelectorAll(".folded + .more");
    if (parts.length) {
      const isOpen = parts.some((part) => part.open);
      for (const part of parts) part.open = !isOpen;
    } else if (more.length || card.querySelector(".more")) {
      card.querySelectorAll(".more").forEach((each) => each.click());
    } else {
      this.toggleRaw(card);
    }
  }

  toJSON() { return this.events.map((item) => parse(item.raw).event); }
}
