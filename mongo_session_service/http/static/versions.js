// Versions: the sessions of a family, and the arrows at a message where they part.

import { ask, named, pageOf, pathOf, sessionId } from "./address.js";
import { show } from "./connection.js";
import { button, make, toast } from "./elements.js";

const ARRIVAL = "arrival";

/** What a session has where versions of a message part from the first one: that one, or an edit of it. */
function versionIn(branch, byId, { version_of: first, revision }) {
  for (let it = branch; it; it = byId.get(it.version_of)) {
    if (it.session_id === first) return first;
    if (it.version_of !== first) continue;
    return it.revision > revision ? first : it.revision === revision ? it.session_id : null;
  }
  return null;
}

/** The messages of a session that have versions, by their revisions: which one it has, and the session to show for each. */
export function findVersions(branches, session_id) {
  const byId = new Map(branches.map((branch) => [branch.session_id, branch]));
  const found = new Map();
  for (const edit of branches.filter((branch) => branch.version_of)) {
    const versions = Map.groupBy(branches, (branch) => versionIn(branch, byId, edit));
    versions.delete(null);
    const sessions = [...versions.values()];
    const at = sessions.findIndex((each) => each.some((branch) => branch.session_id === session_id));
    const newest = (each) => each.toSorted((one, other) => other.last_update_time - one.last_update_time)[0];
    if (at >= 0 && sessions.length > 1) found.set(edit.revision + 1, { at, ids: sessions.map((each) => newest(each).session_id) });
  }
  return found;
}

/** Which version of its conversation the page shows. */
export class Versions {
  /** `isHeld()` is whether the reader looks at something that should stay. */
  constructor(timeline, isHeld) {
    Object.assign(this, { timeline, isHeld });
    this.mayUpdate = false;
    this.found = new Map();
    this.arrival = JSON.parse(sessionStorage.getItem(ARRIVAL)) ?? {};
    sessionStorage.removeItem(ARRIVAL);
    timeline.versionsAt = (revision) => this.arrows(revision);
  }

  /** The stream is open: what happened before is not in it. */
  opened(mayUpdate) {
    this.mayUpdate = mayUpdate;
    const { from } = this.arrival;
    if (from) {
      this.arrival = {};
      const back = () => this.leave(from);
      show("live", "Live", "Another version of this conversation is shown now, and this page has followed.", ["Go back", back]);
    }
    this.read();
  }

  /** Ask for the family, and follow whoever has shown another member of it since the last time. */
  async read() {
    const reading = this.reading = {};
    let branches;
    try {
      ({ branches } = JSON.parse(await ask(pathOf(named, "branches"))));
    } catch {
      return; // it is asked for again with the next connection
    }
    if (reading !== this.reading || this.isLeaving) return;
    // The one that is shown may be one that this reader may not read.
    const shown = branches.find((branch) => branch.is_shown)?.session_id ?? sessionId;
    const isNew = shown !== (this.shown ?? shown);
    this.shown = shown;
    if (isNew && shown !== sessionId) {
      const go = () => this.leave(shown, { from: sessionId });
      if (!this.isHeld()) return go();
      show("live", "Live", "Another version of this conversation is shown now.", ["Show it", go]);
    }
    const before = this.found;
    this.found = findVersions(branches, sessionId);
    // A card that is drawn again is folded again.
    const isNewAt = (revision) => JSON.stringify(before.get(revision)) !== JSON.stringify(this.found.get(revision));
    this.timeline.redrawAt(new Set([...before.keys(), ...this.found.keys()].filter(isNewAt)));
    this.arrive();
  }

  arrows(revision) {
    const { at, ids } = this.found.get(revision) ?? {};
    if (!ids) return null;
    const arrow = (label, title, by) => {
      const made = button(label, title, () => this.flip(ids.at((at + by) % ids.length), { revision, by }));
      made.setAttribute("aria-label", title);
      return made;
    };
    const box = make("span", "versions", arrow("‹", "Previous version", -1), `${at + 1}/${ids.length}`, arrow("›", "Next version", 1));
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", `Version ${at + 1} of ${ids.length}`);
    return box;
  }

  /** Show another version, for everybody if that is permitted. */
  async flip(session_id, arrival) {
    this.isLeaving = true;
    try {
      if (this.mayUpdate) await ask(pathOf({ ...named, session_id }, "shown"), {}, { method: "PUT" });
      this.leave(session_id, arrival);
    } catch (error) {
      this.isLeaving = false;
      toast(`It was not shown. ${error.message}`);
    }
  }

  leave(session_id, arrival = {}) {
    this.isLeaving = true;
    sessionStorage.setItem(ARRIVAL, JSON.stringify(arrival));
    location.replace(pageOf({ ...named, session_id }));
  }

  /** The arrow that was pressed on the page before has the focus, once it is there. */
  arrive() {
    const { revision, by } = this.arrival;
    const item = this.found.has(revision) && this.timeline.events.find((each) => each.revision === revision);
    if (!item?.isShown) return;
    this.arrival = {};
    this.timeline.blocks.show(item);
    item.card.querySelector(`.versions button:${by > 0 ? "last" : "first"}-child`).focus();
    this.timeline.scrolled();
  }
}
