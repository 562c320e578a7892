// Timeline: the events of a session, from the first to the latest.

import { $, button, copy, counted, make, plural } from "./elements.js";
import { highlight } from "./highlight.js";
import { markdown } from "./markdown.js";
import { METADATA } from "./state.js";
import { inCalendar, inClock, lasted, timeOf } from "./times.js";
import { hasFailed, Sums, tokensOf, tokenWords, Turn } from "./turns.js";
import { children, find, isTree, literal, matches, parse, pretty, sizeOf, sketch, words, wordsOf } from "./values.js";

function hueOf(author) {
  if (author === "user") return 255;
  let sum = 7;
  for (const letter of author) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return [160, 300, 60, 345, 200, 110, 25][sum % 7];
}

function text(content, className) {
  const box = make("div", className, ...markdown(content));
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

function whole(value, name) {
  if (!isTree(value) || !sizeOf(value)) return make("div", "whole", isTree(value) ? "nothing" : String(literal(value)));
  return children(value, [name], new Set(), value);
}

const SEARCHED = 400;

/** A named value: how large it is, a button to copy it, a search if it is long, and all of it. */
function section(name, value, root) {
  const json = pretty(value);
  const all = button("copy", `Copy the ${name} as JSON`, () => copy(json, name));
  all.className = "more";
  const title = make("div", "what", `${name}, ${plural(json.length, "character")} `, all);
  const box = make("div", "", whole(value, root));
  if (isTree(value) && json.length > SEARCHED) {
    const search = make("input", "find");
    search.type = "search";
    search.placeholder = "Find";
    search.setAttribute("aria-label", `Find in the ${name}`);
    search.addEventListener("keydown", (press) => press.stopPropagation()); // no keys of the page
    search.addEventListener("input", () => {
      const wanted = wordsOf(search.value);
      box.replaceChildren(wanted.length ? matches(find(value, [root], wanted)) : whole(value, root));
      highlight("result", [box], wanted);
    });
    title.append(search);
  }
  return [title, box];
}

const PICTURE = /^image\/(?:png|jpeg|gif|webp)$/;
const LARGEST = 6_000_000; // characters of base64

/** An image that a part holds, or what it is if it cannot be shown. */
function inlined({ mimeType, data }) {
  const size = Math.floor(((data ?? "").length * 3) / 4);
  const words = `${mimeType ?? "data"}, ${plural(size, "byte")}`;
  const tag = make("span", "tag", words);
  if (!PICTURE.test(mimeType) || data.length > LARGEST) return tag;
  const image = make("img", "picture");
  image.alt = words;
  image.title = words;
  image.addEventListener("error", () => image.replaceWith(tag));
  image.src = `data:${mimeType};base64,${data.replaceAll("-", "+").replaceAll("_", "/")}`;
  return image;
}

/** A line that unfolds what `fill` makes, each time it is opened. */
function folding(summary, fill) {
  const details = make("details", "call", summary);
  details.addEventListener("toggle", () => {
    while (details.childElementCount > 1) details.lastChild.remove();
    if (details.open) details.append(make("div", "inside", ...fill()));
  });
  return details;
}

/** A named value in one line, the whole of it folded. */
function folded(what, name, value) {
  const summary = make("summary", "mono",
    make("span", "what", what), make("span", "fn", name), make("span", "sketch", sketch(value, 140)));
  return folding(summary, () => section(name, value, name));
}

/** A tool call and its result as one card. */
class Call {
  constructor(part, event, at, turn, batch) {
    this.name = part.name ?? "";
    this.args = part.args ?? {};
    Object.assign(this, { at, turn, batch });
    this.tail = make("span", "what", "no result yet");
    this.result = make("span", "sketch result");
    const summary = make("summary", "mono", make("span", "what", "tool"), make("span", "fn", this.name),
      make("span", "sketch", sketch(this.args, 140)), this.result, this.tail);
    this.card = folding(summary, () => this.inside());
    turn.sums.add("calls", 1);
  }

  inside() {
    const result = this.response ? section("Result", this.response, "response") : [];
    return [...section("Arguments", this.args, "args"), ...result];
  }

  /** Take the result; a user's answer took a user's time, which is not the tool's. */
  answer(response, at, isByUser) {
    this.response = response;
    this.result.textContent = `→ ${sketch(response, 90)}`;
    const seconds = at - this.at;
    this.tail.textContent = isByUser ? "answered by the user" : lasted(seconds);
    if (hasFailed(response)) {
      this.card.classList.add("bad");
      this.turn.sums.add("errors", 1);
    }
    if (!isByUser && seconds > this.batch.seconds) {
      this.turn.sums.add("toolSeconds", seconds - this.batch.seconds);
      this.batch.seconds = seconds;
    }
    this.turn.isChanged = true;
    if (this.card.open) this.card.lastChild.replaceChildren(...this.inside());
  }

  show() {
    this.card.open = true;
    this.card.scrollIntoView({ block: "center" });
  }
}

/** What the agent remembers of earlier events: ADK's compaction. */
const summaryOf = (event) => event.actions?.compaction?.compactedContent ?? {};

export class Timeline {
  constructor() {
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
    this.list.addEventListener("focusin", (focus) => {
      const item = this.byElement.get(focus.target);
      if (item) this.onSelect(item.revision);
    });
    $("pill").addEventListener("click", () => this.follow());
    this.reset();
  }

  reset() {
    this.events = [];
    this.byElement = new Map();
    this.calls = new Map();
    this.turns = [];
    this.offered = new Set();
    this.kind = "";
    $("filter-by").replaceChildren($("filter-by").firstElementChild);
    this.numbers = new Map(); // of invocations
    this.sums = new Sums();
    this.missed = 0;
    this.matching = 0;
    this.list.replaceChildren();
    this.follow();
  }

  /** Take an event in, below the others. */
  add(change, raw, isNew) {
    const { event } = change;
    const revision = Number(change.revision);
    const card = make("article", "event");
    card.tabIndex = -1;
    card.dataset.revision = revision;
    card.setAttribute("aria-posinset", revision);
    card.setAttribute("aria-setsize", -1);
    card.setAttribute("aria-label", `Event ${revision} from ${event.author}`);
    if (isNew) card.classList.add("new");
    const turn = this.turnOf(event);
    const at = timeOf(change.time);
    const delta = change.state_delta ?? {};
    const since = turn.take(event, at);
    card.append(make("div", "nth", String(revision)), make("div", "", this.head(event, revision, at, since, card, raw), ...this.body(change, event, at, turn)));
    const item = { card, raw, turn, revision, delta, at: { revision, words: inCalendar(at) }, author: event.author, kinds: this.kindsOf(event, delta), seen: words([event.author, `#${revision}`, event.content ?? {}, summaryOf(event), change.state_delta, event.errorMessage ?? "", event.errorCode ?? ""], []).join("\n").toLowerCase() };
    this.events.push(item);
    this.byElement.set(card, item);
    this.apply(item);
    turn.box.append(card);
    if (!this.isFollowing) this.missed += 1;
    return item;
  }

  /** The revisions of the first event and of the last; 1 and 0 if there is none. */
  first() { return this.events[0]?.revision ?? 1; }

  last() { return this.events.at(-1)?.revision ?? 0; }

  /** Mark the event of a revision, and show it. */
  mark(revision) {
    this.marked?.removeAttribute("aria-current");
    this.marked = revision === null ? null : this.events.find((item) => item.revision === revision)?.card;
    if (!this.marked) return;
    this.marked.setAttribute("aria-current", "true");
    this.isFollowing = false;
    this.marked.scrollIntoView({ block: "nearest" });
  }

  /** What an event can be filtered by; the choice of them grows with each new one. */
  kindsOf(event, delta) {
    const kinds = [["Authors", event.author ?? ""]];
    if (event.errorCode || event.errorMessage) kinds.push(["Others", "errors"]);
    for (const { functionCall: call, functionResponse: answer } of event.content?.parts ?? []) {
      if (call || answer) kinds.push(["Tools", (call ?? answer).name ?? ""]);
      if (hasFailed(answer?.response)) kinds.push(["Others", "errors"]);
    }
    for (const name of Object.keys(delta)) if (name !== METADATA) kinds.push(["State keys", name]);
    const ids = kinds.map((kind) => JSON.stringify(kind));
    kinds.forEach(([group, name], place) => this.offer(group, name, ids[place]));
    return new Set(ids);
  }

  offer(group, name, id) {
    if (this.offered.has(id)) return;
    this.offered.add(id);
    const choice = $("filter-by");
    let box = [...choice.children].find((each) => each.label === group);
    if (!box) {
      box = make("optgroup", "");
      box.label = group;
      choice.append(box);
    }
    const option = make("option", "", name);
    option.value = id;
    box.append(option);
  }

  /** The turn that an event belongs to: the last one, as a summary does, or a new one. */
  turnOf(event) {
    const invocation = event.invocationId ?? "";
    let turn = this.turns.at(-1);
    if (turn && (turn.invocation === invocation || event.actions?.compaction)) return turn;
    const isKnown = this.numbers.has(invocation);
    if (invocation && !isKnown) this.numbers.set(invocation, this.numbers.size + 1);
    const title = `Turn ${this.numbers.get(invocation)}${isKnown ? ", continued" : ""}`;
    turn = new Turn(invocation, title, this.sums);
    this.turns.push(turn);
    this.list.append(turn.box);
    return turn;
  }

  head(event, revision, at, since, card, raw) {
    const author = make("span", "author", event.author || "nobody");
    author.style.setProperty("--hue", hueOf(event.author));
    const took = since === null ? "" : lasted(since);
    const when = make("span", "when", took ? make("i", "", `+${took}`) : null, inClock(at));
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
    if (actions.compaction) tag("summary", "Takes the place of earlier events in the model's requests");
    const before = actions.rewindBeforeInvocationId;
    if (before) tag("rewinds", `Undoes invocation ${before} and what came after it`);
    if (actions.escalate) tag("escalates", "Escalates to the agent above");
    if (event.longRunningToolIds?.length) tag("long-running", "Waits for a long-running tool");
    if (event.interrupted) tag("interrupted", "The user interrupted");
    if (Object.keys(actions.requestedAuthConfigs ?? {}).length) tag("asks for credentials", "Requests credentials");
    if (Object.keys(actions.requestedToolConfirmations ?? {}).length) tag("asks to confirm", "Requests a confirmation");
    const tokens = tokenWords(tokensOf(event));
    if (tokens) tag(tokens, event.modelVersion ? `Tokens of ${event.modelVersion}` : "Tokens");
    if (event.finishReason && event.finishReason !== "STOP") tag(String(event.finishReason), "Why the model stopped");
    return tags;
  }

  body(change, event, at, turn) {
    const made = [];
    if (event.errorCode || event.errorMessage) {
      made.push(make("div", "", make("span", "tag bad", String(event.errorCode ?? "error"))));
      if (event.errorMessage) made.push(...text(String(event.errorMessage), "text"));
    }
    const batch = { seconds: 0 };
    for (const part of [...(event.content?.parts ?? []), ...(summaryOf(event).parts ?? [])]) made.push(...this.part(part, event, at, turn, batch));
    const chips = make("div", "chips");
    for (const [name, value] of Object.entries(change.state_delta ?? {})) {
      if (name === METADATA) continue;
      const chip = button("", `Set ${name}: show it in the state`, () => this.onShow(change.revision, name));
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

  part(part, event, at, turn, batch) {
    if (typeof part.text === "string") {
      return part.text ? text(part.text, part.thought ? "text thought" : "text") : [];
    }
    if (part.functionCall) {
      const call = new Call(part.functionCall, event, at, turn, batch);
      if (part.functionCall.id) this.calls.set(part.functionCall.id, call);
      return [call.card];
    }
    if (part.functionResponse) return [this.result(part.functionResponse, event, at, turn)];
    if (part.executableCode) {
      return [make("pre", "", String(part.executableCode.code ?? ""))];
    }
    if (part.codeExecutionResult) {
      return [make("pre", "", String(part.codeExecutionResult.output ?? part.codeExecutionResult.outcome ?? ""))];
    }
    if (part.inlineData) {
      return [make("div", "chips", inlined(part.inlineData))];
    }
    if (part.fileData) {
      return [make("div", "chips", make("span", "tag", part.fileData.fileUri ?? "a file"))];
    }
    const kind = Object.keys(part)[0];
    return kind ? [folded("part", kind, part[kind])] : [];
  }

  /** A tool's result: it goes to its call, and a link to that stays here. */
  result({ id, name, response }, event, at, turn) {
    const call = this.calls.get(id);
    if (!call) {
      if (hasFailed(response)) turn.sums.add("errors", 1);
      return folded("result", name ?? "", response ?? {});
    }
    call.answer(response ?? {}, at, event.author === "user");
    const link = button(`↑ result of ${call.name}`, "Show the call and its result", () => call.show());
    link.className = "more";
    return link;
  }

  note(words, className = "note") {
    const note = make("div", className, words);
    (this.turns.at(-1)?.box ?? this.list).append(note);
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

  filter(text, kind) {
    this.wanted = wordsOf(text);
    this.kind = kind;
    this.matching = 0;
    for (const turn of this.turns) turn.shown = 0;
    for (const item of this.events) this.apply(item);
    this.summarise();
    this.keepUp();
  }

  apply(item) {
    const isWanted = (!this.kind || item.kinds.has(this.kind)) && (this.wanted ?? []).every((word) => item.seen.includes(word));
    item.card.hidden = !isWanted;
    if (isWanted) this.matching += 1;
    if (isWanted) item.turn.shown += 1;
    item.turn.box.hidden = item.turn.shown === 0;
  }

  highlight() {
    const shown = this.wanted?.length ? this.events.filter((item) => !item.card.hidden) : [];
    highlight("event", shown.map((item) => item.card.lastChild), this.wanted ?? []);
  }

  summarise() {
    const all = this.events.length;
    const isFiltered = Boolean(this.wanted?.length || this.kind);
    this.highlight();
    $("event-count").textContent = isFiltered ? `${counted.format(this.matching)} of ${counted.format(all)}` : counted.format(all);
    for (const turn of this.turns) turn.draw();
    const sums = this.sums.draw();
    $("sums").hidden = sums.length === 0;
    const turns = this.numbers.size ? [make("b", "", plural(this.numbers.size, "turn"))] : [];
    $("sums").replaceChildren(...turns, ...sums);
    this.drawPill();
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
    const cards = this.events.filter((item) => !item.card.hidden && !item.turn.isShut).map((item) => item.card);
    if (!cards.length) return;
    const at = cards.indexOf(this.current());
    const next = at < 0 ? (step > 0 ? 0 : cards.length - 1) : Math.min(cards.length - 1, Math.max(0, at + step));
    this.select(cards[at < 0 && this.isFollowing ? cards.length - 1 : next]);
  }

  select(card) {
    this.isFollowing = false;
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
