// List: the sessions to choose from.

import { key, setting } from "./address.js";
import { show } from "./connection.js";
import { $, make, plural } from "./elements.js";

function ago(seconds) {
  if (!(seconds >= 5)) return "now";
  const [unit, name] = seconds < 60 ? [1, "second"] : seconds < 3600 ? [60, "minute"] : seconds < 86400 ? [3600, "hour"] : [86400, "day"];
  return `${plural(Math.floor(seconds / unit), name)} ago`;
}

class Picker {
  constructor(url) {
    this.url = url;
    this.rows = new Map();
    $("picker-bar").hidden = false;
    $("picker-filter").addEventListener("input", () => this.filter());
    $("picker-filter").addEventListener("keydown", (press) => {
      if (press.key === "Enter") $("sessions").querySelector("li:not([hidden]) a")?.click();
    });
    $("picker-filter").focus();
  }

  async run() {
    for (;;) {
      const began = performance.now();
      if (document.visibilityState === "visible") await this.look();
      // It never takes more than a tenth of the server's time.
      const pause = Math.max(1500, 9 * (performance.now() - began));
      await new Promise((resolve) => { setTimeout(resolve, pause); });
    }
  }

  async look() {
    let sessions, place;
    try {
      const response = await fetch(new URL(this.url, document.baseURI), { cache: "no-store" });
      const answer = await response.json();
      if (!response.ok) throw new Error(String(answer.detail));
      sessions = answer.sessions;
      place = `in database ${answer.database.name} on ${answer.database.server}`;
    } catch (error) {
      show("waiting", "Trying again", error instanceof TypeError ? "The server does not answer." : error.message);
      return;
    }
    show("live", "Live");
    $("picker-text").textContent = sessions.length
      ? `These are ${place}. Choose one to watch it live. The latest come first.`
      : `There are none yet ${place}. They appear here as they are created.`;
    const list = $("sessions");
    list.hidden = sessions.length === 0;
    const rows = new Map();
    for (const session of sessions) {
      const id = JSON.stringify(session.key);
      const row = this.rows.get(id) ?? this.make(session.key);
      if (row.revision !== session.revision && this.rows.size) {
        row.element.classList.remove("flash");
        void row.element.offsetWidth;
        row.element.classList.add("flash");
      }
      row.revision = session.revision;
      const age = Date.now() / 1000 - session.update_time;
      row.element.classList.toggle("fresh", age < 30);
      row.count.textContent = plural(session.revision, "event");
      row.ago.textContent = ago(age);
      rows.set(id, row);
    }
    const order = [...rows.values()].map((row) => row.element);
    if (order.some((element, place) => list.children[place] !== element) || list.childElementCount !== order.length) {
      const focused = document.activeElement;
      list.replaceChildren(...order);
      if (list.contains(focused)) focused.focus({ preventScroll: true });
    }
    this.rows = rows;
    this.filter();
  }

  make({ app_name, user_id, session_id }) {
    const count = make("div", "");
    const age = make("div", "ago");
    const link = make("a", "", make("span", "dot"),
      make("div", "", make("span", "name", session_id), make("div", "of", `${app_name} › ${user_id}`)),
      make("div", "side", count, age));
    link.href = `?${new URLSearchParams({ app_name, user_id, session_id })}`;
    const seen = [app_name, user_id, session_id].join("\n").toLowerCase();
    return { element: make("li", "", link), count, ago: age, seen, revision: null };
  }

  filter() {
    const wanted = $("picker-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of this.rows.values()) {
      row.element.hidden = !wanted.every((word) => row.seen.includes(word));
    }
  }
}

export function pick() {
  $("picker").hidden = false;
  $("where").append(make("span", "of", "mongo-session-service"), make("span", "gap", "›"), make("span", "name", "live"));
  [...$("open").elements].forEach((field, place) => { if (key[place]) field.value = key[place]; });
  if (setting("sessions-url")) {
    new Picker(setting("sessions-url")).run();
  } else {
    $("status").hidden = true;
    $("open").elements[0].focus();
  }
}
