// Turns: the events of one invocation under a heading, and what they sum up to.

import { counted, make, plural } from "./elements.js";
import { lasted } from "./times.js";

const amount = (value) => (Number(value) > 0 ? Number(value) : 0);

/** Tokens of an event by their kind; empty if the model reports none. */
export function tokensOf(event) {
  const used = event.usageMetadata ?? {};
  const kinds = {
    in: amount(used.promptTokenCount) + amount(used.toolUsePromptTokenCount),
    out: amount(used.candidatesTokenCount),
    cached: amount(used.cachedContentTokenCount),
    thoughts: amount(used.thoughtsTokenCount),
  };
  return Object.fromEntries(Object.entries(kinds).filter(([, count]) => count));
}

export const tokenWords = (tokens) =>
  Object.entries(tokens).map(([kind, count], place) => `${counted.format(count)}${place ? "" : " tokens"} ${kind}`).join(" · ");

/** Whether an event closes what a turn has left open. */
export const isClosing = (event) => event.errorCode === "INVOCATION_ABORTED";

/** Whether an event ends what a user has stopped, in ADK's own words. */
export const isStop = (event) => isClosing(event) && event.errorMessage === "Invocation was aborted by client.";

export const isError = (event) => Boolean(event.errorCode || event.errorMessage) && !isStop(event);

/** Whether a tool failed: ADK puts an "error" in its response, but also where it is stopped or asks to confirm. */
export const hasFailed = (answer, event) => Boolean(answer?.response?.error) && !isStop(event) && !(answer.id in (event.actions?.requestedToolConfirmations ?? {}));

/** What events sum up to, of a turn or of the session. */
export class Sums {
  constructor(whole = null) {
    this.whole = whole;
    this.tokens = {};
    this.models = new Set();
    this.seconds = 0;
    this.calls = 0;
    this.toolSeconds = 0;
    this.errors = 0;
  }

  add(name, count) {
    this[name] += count;
    this.whole?.add(name, count);
  }

  used(tokens, model) {
    for (const [kind, count] of Object.entries(tokens)) this.tokens[kind] = (this.tokens[kind] ?? 0) + count;
    if (model) this.models.add(model);
    this.whole?.used(tokens, model);
  }

  /** The numbers as elements. */
  draw() {
    const numbers = [];
    const number = (text, title, className = "sum") => {
      const element = make("span", className, text);
      element.title = title;
      numbers.push(element);
    };
    if (this.models.size) number([...this.models].join(", "), "Model", "sum model");
    const order = { in: this.tokens.in, out: this.tokens.out, cached: this.tokens.cached, thoughts: this.tokens.thoughts };
    const tokens = Object.fromEntries(Object.entries(order).filter(([, count]) => count));
    if (Object.keys(tokens).length) number(tokenWords(tokens), "Tokens of the prompts, of the answers, of the prompts from the model's cache, and of thoughts");
    if (this.seconds > 0) number(lasted(this.seconds), "From the first event to the last, without the time that a user took");
    if (this.calls) {
      const time = this.toolSeconds > 0 ? `, ${lasted(this.toolSeconds)}` : "";
      number(`${plural(this.calls, "tool call")}${time}`, "Tool calls, and the time until their results; calls at once count once");
    }
    if (this.errors) number(plural(this.errors, "error"), "Errors of the model, and of tools", "sum bad");
    return numbers;
  }
}

/** Successive events of one invocation. */
export class Turn {
  constructor(invocation, timeline) {
    Object.assign(this, { invocation, timeline });
    this.title = "Turn"; // its number is known once the first turn is
    this.sums = new Sums(timeline.sums);
    this.items = []; // its events
    this.first = null; // event or note
    this.matching = 0;
    this.isShut = false;
  }

  /** The event that the next words which were cut off are shown before: it closes the turn, and is stored first. */
  closing() {
    const others = this.items.findLastIndex((item) => !item.isClosing && !item.isCutOff);
    return this.items.slice(others + 1).find((item) => item.isClosing) ?? null;
  }

  /** The words, of those at the beginning, that are shown before what closes the turn. */
  cutOff() {
    const others = this.items.findIndex((item) => !item.isClosing && !item.isCutOff);
    return this.items.slice(0, others < 0 ? undefined : others).findLast((item) => item.isCutOff) ?? null;
  }

  /** The heading, which folds the events; it is made when it is first seen. */
  get head() {
    if (this.headElement) return this.headElement;
    this.numbers = make("span", "sums", ...this.sums.draw());
    const fold = this.fold = make("button", "fold", this.title);
    fold.type = "button";
    fold.title = `Fold or unfold the turn. Invocation ${this.invocation}`;
    fold.setAttribute("aria-expanded", String(!this.isShut));
    fold.addEventListener("click", () => {
      this.isShut = !this.isShut;
      fold.setAttribute("aria-expanded", String(!this.isShut));
      this.timeline.refresh(this);
    });
    this.headElement = make("div", "turn-head", fold, this.numbers);
    this.timeline.byElement.set(this.headElement, this.headItem);
    return this.headElement;
  }

  name(title) {
    this.title = title;
    if (this.fold) this.fold.textContent = title;
  }

  /** A box for some of its events. */
  group() {
    const box = make("div", "turn");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", this.invocation ? this.title : "Events of no invocation");
    return box;
  }

  count(event) {
    this.sums.used(tokensOf(event), event.modelVersion);
    if (isError(event)) this.sums.add("errors", 1);
    this.timeline.altered.add(this);
  }

  /** Note the time from an event to the next one, but for a user's. */
  time(item, before) {
    if (item.author === "user") return;
    item.since = item.at.seconds - before.at.seconds;
    if (item.since > 0) this.sums.add("seconds", item.since);
  }

  draw() {
    this.numbers?.replaceChildren(...this.sums.draw());
  }
}
