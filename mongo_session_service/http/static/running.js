// Running turn: its answer before that is stored, its status, and its Stop button.

import { ask, named, pathOf } from "./address.js";
import { $, make, toast } from "./elements.js";
import { soon } from "./frames.js";
import { endOfPart, markdown } from "./markdown.js";
import { hueOf } from "./timeline.js";
import { inClock } from "./times.js";

const STATES = { running: "A turn has been running", stopping: "The turn is being stopped", stopped: "The turn was stopped", failed: "The turn failed", abandoned: "Last turn: cut off" };

/** One kind of text, answer or thought, that grows. Only its end is read again. */
class GrowingText {
  constructor(className) {
    this.rest = "";
    this.settled = make("div", "");
    this.tail = make("div", "");
    this.element = make("div", className, this.settled, this.tail);
    this.element.dir = "auto";
  }

  append(text) {
    this.rest += text;
    soon(this.draw);
  }

  draw = () => {
    const end = endOfPart(this.rest, 0);
    if (end < this.rest.length) {
      this.settled.append(markdown(this.rest.slice(0, end)));
      this.rest = this.rest.slice(end);
      this.tail.replaceChildren();
      soon(this.draw);
    } else {
      this.tail.replaceChildren(markdown(this.rest));
    }
  };
}

/** An event that is not whole yet. */
class Draft {
  constructor({ author }) {
    this.texts = new Map(); // by whether they are thoughts
    const name = make("span", "author", author || "nobody");
    name.style.setProperty("--hue", hueOf(author ?? ""));
    this.body = make("div", "", make("div", "head", name));
    this.element = make("article", "draft", make("div", "nth", "…"), this.body);
    this.element.setAttribute("aria-label", `Being said by ${author}`);
  }

  appendPart({ text, thought }) {
    const isThought = Boolean(thought);
    if (!this.texts.has(isThought)) {
      const growing = new GrowingText(isThought ? "text thought" : "text");
      this.texts.set(isThought, growing);
      if (isThought) this.body.children[0].after(growing.element);
      else this.body.append(growing.element);
    }
    this.texts.get(isThought).append(text);
  }
}

export class RunningTurn {
  constructor(timeline) {
    new ResizeObserver(() => timeline.keepUp()).observe($("drafts"));
    $("stop").addEventListener("click", () => this.stop());
    this.mayStop = false;
    this.reset();
  }

  reset() {
    this.turn = null;
    this.clear();
    this.draw();
  }

  clear() {
    this.drafts = new Map(); // by the ids of their events
    $("drafts").replaceChildren();
  }

  permit(mayStop) {
    this.mayStop = mayStop;
    this.draw();
  }

  /** Show what has arrived since the last time. */
  addPartial({ turn, event }) {
    this.stands(turn);
    if (!this.drafts.has(event.id)) {
      const draft = new Draft(event);
      this.drafts.set(event.id, draft);
      $("drafts").append(draft.element);
    }
    for (const part of event.content?.parts ?? []) if (part.text) this.drafts.get(event.id).appendPart(part);
  }

  /** An event is stored: its draft goes. */
  stored(id) {
    this.drafts.get(id)?.element.remove();
    this.drafts.delete(id);
  }

  /** Show how the turn stands. */
  stands(turn) {
    const isOther = Number(turn.epoch) !== Number(this.turn?.epoch);
    if (isOther || !["running", "stopping"].includes(turn.status)) this.clear();
    this.turn = turn;
    this.draw();
  }

  draw() {
    const { status, reason, error_type, since } = this.turn ?? {};
    const why = reason ?? error_type;
    const words = status === "running" ? ` since ${inClock(Date.parse(since) / 1000)}.` : why ? `: ${why}` : ".";
    $("running").hidden = !Object.hasOwn(STATES, status ?? "");
    $("running").dataset.is = status ?? "";
    const isRepaired = status === "failed" && !error_type; // after its process has died
    $("running-words").textContent = `${STATES[isRepaired ? "abandoned" : status]}${words}`;
    $("stop").hidden = status !== "running" || !this.mayStop;
  }

  async stop() {
    $("stop").disabled = true;
    const body = JSON.stringify({ reason: "stopped on the live page" });
    try {
      await ask(pathOf(named, "turn"), {}, { method: "DELETE", headers: { "Content-Type": "application/json" }, body });
    } catch (error) {
      toast(`It was not stopped. ${error.message}`);
    } finally {
      $("stop").disabled = false;
    }
  }
}
