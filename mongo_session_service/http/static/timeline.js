// Timeline: the events of a session, from the first to the latest.

import { Blocks } from "./blocks.js";
import { $, arrange, button, copy, counted, make, plural } from "./elements.js";
import { soon } from "./frames.js";
import { highlight } from "./highlight.js";
import { endOfPart, markdown } from "./markdown.js";
import { METADATA } from "./state.js";
import { inCalendar, inClock, lasted, timeOf } from "./times.js";
import { hasFailed, isClosing, isError, isStop, Sums, tokensOf, tokenWords, Turn } from "./turns.js";
import { children, find, isTree, literal, matches, parse, pretty, sizeOf, sketch, words, wordsOf } from "./values.js";

export function hueOf(author) {
  if (author === "user") return 255;
  let sum = 7;
  for (const letter of author) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return [160, 300, 60, 345, 200, 110, 25][sum % 7];
}

const AT_ONCE = 100_000; // characters that a click shows

/** A text in its box, folded if it is long; what does not fit into that is set later. */
function text(content, className) {
  let end = endOfPart(content, 0);
  const box = make("div", className, markdown(content.slice(0, end)));
  box.dir = "auto";
  const lines = end < content.length ? Infinity : content.split("\n").length;
  if (lines <= 12 && content.length <= 1200) return [box];
  box.classList.add("folded");
  const size = 12 < lines && lines < Infinity ? plural(lines, "line") : plural(content.length, "character");
  const label = () => {
    const left = content.length - end;
    if (box.classList.contains("folded")) return `Show all ${size}`;
    return left ? `Show ${counted.format(Math.min(left, AT_ONCE))} more` : "Show less";
  };
  const more = button(label(), "", () => {
    const isFolded = box.classList.contains("folded");
    if (isFolded || end === content.length) box.classList.toggle("folded");
    if (!box.classList.contains("folded")) grow(Math.min(content.length, end + AT_ONCE));
    more.textContent = label();
  });
  const grow = (to) => {
    if (end >= to) return;
    const from = end;
    end = endOfPart(content, from);
    box.append(markdown(content.slice(from, end)));
    more.textContent = label();
    soon(() => grow(to));
  };
  more.className = "more";
  return [box, more];
}

function whole(value, name) {
  if (!isTree(value) || !sizeOf(value)) return make("div", "whole", isTree(value) ? "nothing" : String(literal(value)));
  return children(value, [name], new Set(), value);
}

const SEARCHED = 400;
const KEYS = "State keys";
const MOST = 100; // state keys of an event that are shown, and that one can choose from

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

/** A tool call and its result, as one card. */
class Call {
  constructor(part, at, turn, batch) {
    this.name = part.name ?? "";
    this.args = part.args ?? {};
    Object.assign(this, { at, turn, batch });
    this.words = "no result yet";
    turn.sums.add("calls", 1);
  }

  get card() {
    if (this.element) return this.element;
    this.tail = make("span", "what");
    this.result = make("span", "sketch result");
    const summary = make("summary", "mono", make("span", "what", "tool"), make("span", "fn", this.name),
      make("span", "sketch", sketch(this.args, 140)), this.result, this.tail);
    this.element = folding(summary, () => this.inside());
    this.draw();
    return this.element;
  }

  draw() {
    this.tail.textContent = this.words;
    if (!this.response) return;
    this.result.textContent = `→ ${sketch(this.response, 90)}`;
    this.element.classList.toggle("bad", this.failed);
    if (!this.element.open) return;
    const [title, args] = this.element.lastChild.children; // which may have the focus
    arrange(this.element.lastChild, [title, args, ...this.results()]);
  }

  inside() {
    return [...section("Arguments", this.args, "args"), ...this.results()];
  }

  results() {
    return this.response ? section("Result", this.response, "response") : [];
  }

  /** Take the result; a user's answer took a user's time, which is not the tool's. */
  answer({ response, failed, item }) {
    const isByUser = item.author === "user";
    Object.assign(this, { response, failed });
    const seconds = item.at.seconds - this.at;
    this.words = isByUser ? "answered by the user" : lasted(seconds);
    if (!isByUser && seconds > this.batch.seconds) {
      this.turn.sums.add("toolSeconds", seconds - this.batch.seconds);
      this.batch.seconds = seconds;
    }
    this.turn.timeline.altered.add(this.turn);
    if (this.element) this.draw();
  }
}

/** What an element of a card is in another card of the same event. */
function likeOf(element, before, card) {
  if (element === before) return card;
  const nameOf = ({ ariaLabel, title, className }) => ariaLabel || title || className;
  const likesIn = (place) => [...place.querySelectorAll(element.localName)].filter((each) => nameOf(each) === nameOf(element));
  return likesIn(card)[likesIn(before).indexOf(element)];
}

/** What the agent remembers of earlier events: ADK's compaction. */
const summaryOf = (event) => event.actions?.compaction?.compactedContent ?? {};

/** What was spoken, by a user or an agent. */
const spokenOf = (event) => [event.inputTranscription, event.outputTranscription].flatMap((it) => it?.text || []);

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
      if (item && !this.isRefocusing) this.onSelect(item.revision);
    });
    $("pill").addEventListener("click", () => this.follow());
    this.blocks = new Blocks(this.list, this, 66);
    this.reset();
  }

  reset() {
    this.events = [];
    this.byElement = new WeakMap();
    this.calls = new Map(); // the latest of each id
    this.answers = new Map(); // to calls that are still to arrive
    this.earlier = []; // events that were prepended, the latest first
    this.floating = []; // what belongs to the turn of an event that is still to arrive
    this.turns = [];
    this.earlierTurns = []; // which began with these
    this.isWhole = false;
    this.whole = new Promise((resolve) => { this.complete = resolve; });
    this.altered = new Set(); // turns whose sums have changed
    this.offered = new Set();
    this.choices = new Map(); // by their group
    this.kind = "";
    $("filter-by").replaceChildren($("filter-by").firstElementChild);
    this.numbers = new Map(); // of invocations
    this.sums = new Sums();
    this.missed = 0;
    this.matching = 0;
    this.blocks.clear();
    this.isFollowing = true;
  }

  /** Take an event in, after the others. It is drawn when it comes near the window. */
  add(change, raw, isNew) {
    const turn = this.turnOf(change.event);
    const item = this.make(change, raw, turn, isNew);
    item.calls = this.callsOf(change.event, item, false);
    if (turn.items.length) turn.time(item, turn.items.at(-1));
    const closing = item.isCutOff ? turn.closing() : null;
    turn.items.push(item);
    turn.first = turn.first === closing || !turn.first ? item : turn.first;
    this.events.push(item);
    this.blocks.insert(item, closing);
    if (turn.matching) this.showHead(turn);
    if (!this.isFollowing) this.missed += 1;
    return item;
  }

  /** Take an event in before the others; gives those that have got their place by it. */
  prepend(change, raw) {
    this.floating.push([change, raw]);
    const { event } = change;
    // A summary belongs to the turn before it, and so does what cannot be read.
    return event && !event.actions?.compaction ? this.settle(event.invocationId ?? "") : [];
  }

  /** Have those that were prepended among the events: many at once, as each time all move. */
  joinEarlier() {
    this.events.unshift(...this.earlier.splice(0).reverse());
    this.turns.unshift(...this.earlierTurns.splice(0).reverse());
  }

  /** The whole history is there; `trimmed` is how many events are not. */
  end(trimmed) {
    const invocation = this.floating.map(([{ event }]) => event?.invocationId).findLast(Boolean) ?? "";
    if (this.floating.length) this.settle(invocation);
    this.joinEarlier();
    const words = trimmed === 1 ? "event was" : `${counted.format(trimmed)} events were`;
    if (trimmed > 0) this.blocks.insert({ turn: new Turn("", this), note: make("div", "note", `The first ${words} trimmed.`), isShown: true }, this.blocks.first());
    this.isWhole = true;
    this.answers.clear();
    this.numbers.clear();
    for (const turn of this.turns) this.number(turn);
    this.complete();
  }

  /** Put what floats into a turn, which is the first one; gives its events. */
  settle(invocation) {
    let turn = this.earlierTurns.at(-1) ?? this.turns[0];
    const isNew = turn?.invocation !== invocation;
    if (isNew) this.earlierTurns.push(turn = this.begin(invocation));
    const items = [];
    for (const [change, raw] of this.floating.splice(0)) {
      const item = change.event ? this.make(change, raw, turn, false) : this.unreadable(change, turn);
      const words = item.isClosing ? turn.cutOff() : null;
      this.blocks.insert(item, words ? this.blocks.after(words) : turn.first ?? this.blocks.first());
      if (!words) turn.first = item;
      if (!change.event) continue;
      item.calls = this.callsOf(change.event, item, true);
      const [next] = turn.items;
      turn.items.unshift(item);
      items.push(item);
      if (!next) continue;
      turn.time(next, item);
      this.redraw(next);
    }
    if (isNew && turn.headItem) this.blocks.insert(turn.headItem, turn.first);
    if (turn.matching) this.showHead(turn);
    this.earlier.push(...items);
    return items;
  }

  make(change, raw, turn, isNew) {
    const { event } = change;
    const revision = Number(change.revision);
    const at = timeOf(change.time);
    const delta = change.state_delta ?? {};
    const item = { raw, isNew, turn, revision, delta, at: { revision, seconds: at, get words() { return inCalendar(at); } }, since: null, author: event.author, isClosing: isClosing(event), isCutOff: Boolean(event.interrupted), kinds: this.kindsOf(event, delta), seen: words([event.author, `#${revision}`, event.content ?? {}, summaryOf(event), change.state_delta, event.errorMessage ?? "", event.errorCode ?? "", event.output ?? "", ...spokenOf(event)], []).join("\n").toLowerCase() };
    turn.count(event);
    this.apply(item);
    return item;
  }

  /** The call of each part of an event that is one, or answers one. */
  callsOf(event, item, isEarlier) {
    const batch = { seconds: 0 };
    return (event.content?.parts ?? []).map(({ functionCall, functionResponse }, place) => {
      if (functionCall) {
        const call = new Call(functionCall, item.at.seconds, item.turn, batch);
        const { id } = functionCall;
        if (id && !(isEarlier && this.calls.has(id))) this.calls.set(id, call);
        if (id && isEarlier) this.link(id, call);
        return call;
      }
      if (!functionResponse) return null;
      const { id, response = {} } = functionResponse;
      const failed = hasFailed(functionResponse, event);
      if (failed) item.turn.sums.add("errors", 1);
      const answer = { response, failed, item, place };
      const call = isEarlier ? null : this.calls.get(id) ?? null;
      if (call) call.answer(answer);
      else if (id && !this.isWhole) this.answers.set(id, [...(this.answers.get(id) ?? []), answer]);
      return call;
    });
  }

  /** Answer a call by what has arrived before it. */
  link(id, call) {
    const answers = this.answers.get(id) ?? [];
    for (const answer of answers.sort((one, other) => one.item.revision - other.item.revision)) {
      answer.item.calls[answer.place] = call;
      call.answer(answer);
      this.redraw(answer.item);
    }
    this.answers.delete(id);
  }

  /** Draw the events of some revisions anew. */
  redrawAt(revisions) {
    for (const item of this.events) if (revisions.has(item.revision)) this.redraw(item);
  }

  redraw(item) {
    if (!item.card) return;
    item.card = null;
    this.blocks.changed(item.block);
  }

  /** Draw what a block has: the events of each turn in a box, under its heading. */
  fill(box, items) {
    const focused = document.activeElement;
    const holder = this.byElement.get(focused.closest(".event, .turn-head"));
    const groups = new Map([...box.children].map((group) => [group.turn, group]));
    const drawn = new Map();
    for (const item of items) {
      if (!drawn.has(item.turn)) drawn.set(item.turn, []);
      drawn.get(item.turn).push(item.raw ? this.cardOf(item) : item.note ?? item.turn.head);
    }
    for (const [turn, elements] of drawn) {
      if (!groups.has(turn)) groups.set(turn, Object.assign(turn.group(), { turn }));
      arrange(groups.get(turn), elements);
    }
    arrange(box, [...drawn.keys()].map((turn) => groups.get(turn)));
    if (this.wanted?.length) this.highlight();
    if (holder?.isShown && document.activeElement !== focused) this.refocus(holder, focused);
  }

  /** Give the focus back to an element that was moved, or to its like in a card that was drawn anew. */
  refocus(item, element) {
    if (!element.isConnected && !item.card?.isConnected) this.blocks.show(item);
    const next = element.isConnected ? element : likeOf(element, element.closest(".event"), item.card);
    this.isRefocusing = true; // which selects nothing
    // Some buttons are there only while their card has the focus.
    for (const each of [item.card, next]) each?.focus({ preventScroll: true });
    this.isRefocusing = false;
  }

  cardOf(item) {
    if (item.card) return item.card;
    const { event, state_delta } = parse(item.raw);
    const card = item.card = make("article", "event");
    card.tabIndex = -1;
    card.dataset.revision = item.revision;
    card.setAttribute("aria-posinset", item.revision);
    card.setAttribute("aria-setsize", -1);
    card.setAttribute("aria-label", `Event ${item.revision} from ${event.author}`);
    if (item.isNew) card.classList.add("new");
    if (item === this.marked) card.setAttribute("aria-current", "true");
    card.append(make("div", "nth", String(item.revision)), make("div", "", this.head(event, item), ...this.body(event, state_delta ?? {}, item)));
    this.byElement.set(card, item);
    return card;
  }

  /** The revisions of the first event and of the last; 1 and 0 if there is none. */
  first() { return this.events[0]?.revision ?? 1; }

  last() { return this.events.at(-1)?.revision ?? 0; }

  /** Mark the event of a revision, and show it. */
  mark(revision) {
    this.marked?.card?.removeAttribute("aria-current");
    this.marked = revision === null ? null : this.events.find((item) => item.revision === revision);
    if (!this.marked?.isShown) return;
    this.isFollowing = false;
    this.blocks.show(this.marked);
    this.marked.card.setAttribute("aria-current", "true");
    this.marked.card.scrollIntoView({ block: "nearest" });
  }

  /** What an event can be filtered by; the choice of them grows with each new one. */
  kindsOf(event, delta) {
    const kinds = [["Authors", event.author ?? ""]];
    if (isError(event)) kinds.push(["Others", "errors"]);
    for (const { functionCall: call, functionResponse: answer } of event.content?.parts ?? []) {
      if (call || answer) kinds.push(["Tools", (call ?? answer).name ?? ""]);
      if (hasFailed(answer, event)) kinds.push(["Others", "errors"]);
    }
    for (const name of Object.keys(delta)) {
      if (this.choices.get(KEYS)?.childElementCount >= MOST) break;
      if (name !== METADATA) this.offer(KEYS, name, `${KEYS}: ${name}`);
    }
    const ids = new Set();
    for (const [group, name] of kinds) {
      const id = `${group}: ${name}`;
      ids.add(id);
      this.offer(group, name, id);
    }
    return ids;
  }

  offer(group, name, id) {
    let box = this.choices.get(group);
    if (!box) {
      this.choices.set(group, box = make("optgroup", ""));
      box.label = group;
      $("filter-by").append(box);
    }
    if (box.childElementCount >= MOST || this.offered.has(id)) return;
    this.offered.add(id);
    const option = make("option", "", name);
    option.value = id;
    box.append(option);
  }

  /** The turn that an event belongs to: the last one, as a summary does, or a new one. */
  turnOf(event) {
    const invocation = event.invocationId ?? "";
    let turn = this.turns.at(-1);
    if (turn && (turn.invocation === invocation || event.actions?.compaction)) return turn;
    this.turns.push(turn = this.begin(invocation));
    if (turn.headItem) this.blocks.add([turn.headItem]);
    return turn;
  }

  begin(invocation) {
    const turn = new Turn(invocation, this);
    if (invocation) turn.headItem = { turn, isShown: false };
    this.number(turn);
    return turn;
  }

  /** Number a turn among the others, once the first of them is known. */
  number(turn) {
    const { invocation } = turn;
    if (!invocation) return;
    const isKnown = this.numbers.has(invocation);
    if (!isKnown) this.numbers.set(invocation, this.numbers.size + 1);
    if (this.isWhole) turn.name(`Turn ${this.numbers.get(invocation)}${isKnown ? ", continued" : ""}`);
  }

  head(event, item) {
    const { since, revision, card, raw, at: { seconds, words: when } } = item;
    const author = make("span", "author", event.author || "nobody");
    author.style.setProperty("--hue", hueOf(event.author));
    const took = since === null ? "" : lasted(since);
    const time = make("span", "when", took ? make("i", "", `+${took}`) : null, inClock(seconds));
    time.title = when;
    const tools = make("span", "tools",
      button("{ }", "Show this event's JSON", () => this.toggleRaw(item)),
      button("copy", "Copy this event's JSON (c)", () => copy(pretty(parse(raw)), `Event ${revision}`)));
    return make("div", "head", author, this.versionsAt(revision), ...this.tags(event), tools, time);
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

  body(event, delta, item) {
    const made = [];
    if (isStop(event)) {
      const { stop_reason: reason } = event.customMetadata ?? {};
      made.push(make("div", "", make("span", "tag", `stopped by the user${reason ? `: ${reason}` : ""}`)));
    } else if (isError(event)) {
      made.push(make("div", "", make("span", "tag bad", String(event.errorCode ?? "error"))));
      if (event.errorMessage) made.push(...text(String(event.errorMessage), "text"));
    }
    (event.content?.parts ?? []).forEach((part, place) => made.push(...this.part(part, item.calls[place])));
    for (const part of summaryOf(event).parts ?? []) made.push(...this.part(part, null));
    for (const spoken of spokenOf(event)) made.push(make("div", "", make("span", "tag", "spoken")), ...text(spoken, "text"));
    if (event.output != null) made.push(make("pre", "", sketch(event.output, 500)));
    const chips = make("div", "chips");
    const chip = (name, value) => {
      const element = button("", `Set ${name}: show it in the state`, () => this.onShow(item.revision, name));
      element.className = "chip";
      element.append(make("b", "", name), ` = ${sketch(value, 60)}`);
      return element;
    };
    const set = Object.entries(delta).filter(([name]) => name !== METADATA);
    chips.append(...set.slice(0, MOST).map(([name, value]) => chip(name, value)));
    if (set.length > MOST) {
      const more = button(`${counted.format(set.length - MOST)} more`, "Show more of what was set", () => more.replaceWith(...set.slice(MOST, 10 * MOST).map(([name, value]) => chip(name, value))));
      more.className = "more";
      chips.append(more);
    }
    for (const [name, version] of Object.entries(event.actions?.artifactDelta ?? {})) {
      const saved = make("span", "chip artifact", `${name} (version ${literal(version)})`);
      saved.title = "Saved an artifact";
      chips.append(saved);
    }
    if (chips.childElementCount) made.push(chips);
    return made;
  }

  part(part, call) {
    if (typeof part.text === "string") {
      return part.text ? text(part.text, part.thought ? "text thought" : "text") : [];
    }
    if (part.functionCall) return [call.card];
    if (part.functionResponse) return [this.result(part.functionResponse, call)];
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

  /** A tool's result: its call has it, and a link to that stays here. */
  result({ name, response }, call) {
    if (!call) return folded("result", name ?? "", response ?? {});
    const link = button(`↑ result of ${call.name}`, "Show the call and its result", () => this.showCall(call));
    link.className = "more";
    return link;
  }

  showCall(call) {
    this.blocks.show(call.turn.items.find((item) => item.calls.includes(call)));
    call.card.open = true;
    call.card.scrollIntoView({ block: "center" });
  }

  note(words) {
    const turn = this.turns.at(-1) ?? new Turn("", this);
    this.blocks.add([{ turn, note: make("div", "note bad", words), isShown: true }]);
  }

  unreadable({ revision }, turn) {
    return { turn, note: make("div", "note bad", `Event ${literal(revision)} cannot be read.`), isShown: true };
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
    if (this.missed === this.shownMissed) return;
    this.shownMissed = this.missed;
    $("pill").hidden = this.missed === 0;
    $("pill").textContent = `↓ ${counted.format(this.missed)} new`;
  }

  filter(text, kind) {
    this.wanted = wordsOf(text);
    this.kind = kind;
    this.matching = 0;
    for (const turn of this.turns) turn.matching = 0;
    for (const item of this.events) this.apply(item);
    for (const { headItem, matching } of this.turns) if (headItem) headItem.isShown = matching > 0;
    this.blocks.refresh();
    this.summarise();
    this.highlight();
    this.keepUp();
  }

  isOfKind({ kinds, delta }) {
    return !this.kind || kinds.has(this.kind) || (this.kind.startsWith(KEYS) && Object.hasOwn(delta, this.kind.slice(KEYS.length + 2)));
  }

  apply(item) {
    const isWanted = this.isOfKind(item) && (this.wanted ?? []).every((word) => item.seen.includes(word));
    item.isShown = isWanted && !item.turn.isShut;
    if (isWanted) this.matching += 1;
    if (isWanted) item.turn.matching += 1;
  }

  showHead(turn) {
    if (turn.headItem?.isShown !== false) return;
    turn.headItem.isShown = true;
    this.blocks.changed(turn.headItem.block);
  }

  /** A turn was folded or unfolded. */
  refresh(turn) {
    this.matching -= turn.matching;
    turn.matching = 0;
    for (const item of turn.items) this.apply(item);
    for (const block of new Set(turn.items.map((item) => item.block))) this.blocks.changed(block);
  }

  highlight() {
    const cards = this.wanted?.length ? [...this.list.querySelectorAll(".event")] : [];
    highlight("event", cards.map((card) => card.lastChild), this.wanted ?? []);
  }

  summarise() {
    const all = this.events.length;
    const isFiltered = Boolean(this.wanted?.length || this.kind);
    $("event-count").textContent = isFiltered ? `${counted.format(this.matching)} of ${counted.format(all)}` : counted.format(all);
    for (const turn of this.altered) turn.draw();
    this.altered.clear();
    const sums = this.sums.draw();
    $("sums").hidden = sums.length === 0;
    const turns = this.numbers.size ? [make("b", "", plural(this.numbers.size, "turn"))] : [];
    $("sums").replaceChildren(...turns, ...sums);
    this.drawPill();
    $("events-empty").hidden = all > 0;
    $("events-unmatched").hidden = !(isFiltered && all > 0 && this.matching === 0);
  }

  toggleRaw({ card, raw }) {
    const body = card.lastChild;
    const shown = body.querySelector(":scope > pre.raw");
    if (shown) shown.remove();
    else body.append(make("pre", "raw", pretty(parse(raw).event)));
  }

  /** The event that has the focus. */
  current() { return this.byElement.get(document.activeElement) ?? null; }

  move(step) {
    const items = this.events.filter((item) => item.isShown);
    if (!items.length) return;
    const at = items.indexOf(this.current());
    const next = at < 0 ? (step > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, at + step));
    this.select(items[at < 0 && this.isFollowing ? items.length - 1 : next]);
  }

  moveToFirst() {
    const first = this.events.find((item) => item.isShown);
    if (first) this.select(first);
  }

  select(item) {
    this.isFollowing = false;
    this.blocks.show(item);
    item.card.focus({ preventScroll: true });
    item.card.scrollIntoView({ block: "nearest" });
  }

  unfold(item) {
    const parts = [...item.card.querySelectorAll("details.call")];
    const more = item.card.querySelectorAll(".more");
    if (parts.length) {
      const isOpen = parts.some((part) => part.open);
      for (const part of parts) part.open = !isOpen;
    } else if (more.length) {
      more.forEach((each) => each.click());
    } else {
      this.toggleRaw(item);
    }
  }

  toJSON() { return this.events.map((item) => parse(item.raw).event); }
}
