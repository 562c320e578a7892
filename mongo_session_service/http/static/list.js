// List: the apps, or the sessions of one, found by the server and kept up to date by
// the changes that it sends.

import { appName, ask, evaluations, named, pageOf, pathOf, userId } from "./address.js";
import { Connection, show } from "./connection.js";
import { $, arrange, make, plural } from "./elements.js";
import { nameOf, Row, Rows, shortened } from "./rows.js";

const MOST_WANTED = 50;
const KINDS = { title: "title", session_id: "ID", user_id: "user", label: "label" };

class ListPage {
  constructor() {
    this.app = appName || null;
    this.rows = new Rows($("sessions"), $("more"), (page) => this.load(page));
    this.rows.follow();
    this.groups = [];
    this.turns = new Map(); // how turns stand, as far as the stream has brought it
    this.wanted = new Set();
    this.searched = 0;
    setInterval(() => [this.rows, ...this.groups].forEach((rows) => rows.age()), 5000);
    let typing = 0;
    $("picker-filter").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.search(), 300);
    });
    $("search").addEventListener("submit", (submit) => {
      submit.preventDefault();
      clearTimeout(typing);
      this.search();
    });
  }

  /** A page of sessions; what it holds of the database is shown. */
  async load(parameters, isSearch = false) {
    const { user_id = userId, ...rest } = parameters;
    const order = userId && !isSearch ? { order_by: "update_time" } : {}; // no index has it for an app
    const answer = await this.ask(pathOf({ app_name: this.app, user_id }, "sessions"), { families: "true", ...order, ...rest });
    if (!isSearch) this.isByActivity = order.order_by === "update_time";
    for (const session of answer.sessions) session.turn = this.turns.get(nameOf(session)) ?? session.turn?.status;
    return answer;
  }

  async ask(path, parameters = {}) {
    const answer = JSON.parse(await ask(path, { ...evaluations, ...parameters }));
    this.within = answer.within ?? this.within;
    if (answer.database) this.place = ` in database ${answer.database.name} on ${answer.database.server}`;
    return answer;
  }

  // What a connection asks of a page.

  address() {
    return [pathOf(named, "changes"), { ...evaluations, partials: "true" }];
  }

  opened() {
    this.reload();
  }

  ends() {
    return false;
  }

  refused() {
    $("picker-text").hidden = true;
  }

  take(kind, raw) {
    const change = JSON.parse(raw);
    if (this.apps) {
      if (kind === "created" || kind === "deleted") this.reloadSoon();
      else this.apps.get(change.app_name)?.age(change.time);
    } else if (change.app_name !== this.app) {
      if (kind === "created") this.reloadSoon();
    } else if (change.session_id) {
      this.update(kind, change);
    }
  }

  update(kind, change) {
    const name = nameOf(change);
    if (kind === "deleted" || kind === "created") this.turns.delete(name);
    if (kind === "deleted") {
      this.wanted.delete(name);
      for (const rows of [this.rows, ...this.groups]) rows.remove(name);
      this.renderHeading();
      return;
    }
    if (kind === "turn") {
      this.turns.set(name, change.turn.status);
      for (const rows of [this.rows, ...this.groups]) rows.get(name)?.draw({ turn: change.turn.status });
      return;
    }
    if (kind !== "appended") {
      this.want(name);
      return;
    }
    const { app_name, user_id, session_id, revision, time, waiting } = change;
    const news = { app_name, user_id, session_id, revision, last_update_time: time, ...(waiting && { waiting, waiting_more: 0 }) };
    for (const rows of this.groups) rows.get(name)?.draw(news);
    if (this.rows.get(name)) this.rows.lift(news);
    else this.want(name);
  }

  /** Ask for a session that is not shown yet, one after another. */
  async want(name) {
    this.wanted.add(name);
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      while (this.wanted.size) {
        if (this.wanted.size > MOST_WANTED) {
          await this.reload();
          break;
        }
        const [next] = this.wanted;
        this.wanted.delete(next);
        const [, , session_id] = JSON.parse(next);
        const { sessions } = await this.load({ session_id }, true);
        for (const session of sessions.filter((each) => nameOf(each) === next)) {
          for (const rows of this.groups) rows.get(next)?.draw(session);
          const row = this.rows.ofFamily(session);
          if (row) row.draw(session); // renamed, or another version is shown: that is no activity
          else this.rows.lift(session);
        }
        this.renderHeading();
      }
    } catch (error) {
      this.failed(error);
    } finally {
      this.isAsking = false;
    }
  }

  reloadSoon() {
    this.reloading ??= setTimeout(() => this.reload(), 500);
  }

  async reload() {
    clearTimeout(this.reloading);
    this.reloading = undefined;
    this.wanted.clear();
    try {
      if (appName) {
        await this.begin();
      } else {
        const { apps } = await this.ask("apps");
        // Those of one app alone are shown at once.
        this.app = apps.length === 1 ? apps[0].app_name : null;
        this.showApps(this.app ? null : apps);
        if (this.app) await this.begin();
      }
      this.renderHeading();
    } catch (error) {
      this.failed(error);
    }
  }

  async begin() {
    this.turns = new Map();
    await this.rows.begin();
  }

  failed(error) {
    show("waiting", "Trying again", error instanceof TypeError ? "The server does not answer." : error.message);
    this.reloading ??= setTimeout(() => this.reload(), 5000);
  }

  showApps(apps) {
    this.apps = null;
    if (!apps) return;
    this.apps = new Map(apps.map((app) => {
      const row = new Row(pageOf({ app_name: app.app_name }));
      row.name.textContent = app.app_name;
      row.of.textContent = `latest: ${app.latest.title ?? shortened(app.latest.session_id)}`;
      row.count.textContent = app.has_more ? `${app.sessions}+ sessions` : plural(app.sessions, "session");
      row.age(app.latest.last_update_time);
      return [app.app_name, row];
    }));
    this.rows.token = null;
    $("more").hidden = true;
    $("sessions").replaceChildren(...[...this.apps.values()].map((row) => row.element));
    $("sessions").hidden = !this.apps.size;
  }

  /** Render the title, and what is shown; or how to begin. */
  renderHeading() {
    show("live", "Live");
    const isEmpty = this.apps ? !this.apps.size : !this.rows.size && this.rows.token === null;
    const whose = `${userId ? ` of ${userId}` : ""}${this.app ? ` in app ${this.app}` : ""}`;
    const title = this.apps && !isEmpty ? "Apps" : `Sessions${whose}`;
    $("picker-title").textContent = title;
    document.title = title;
    $("search").hidden = Boolean(this.apps);
    $("begin").hidden = !isEmpty;
    const place = this.place ?? "";
    if (isEmpty) {
      $("picker-text").textContent = `There are none yet${place}.`;
      $("begin-code").textContent = `await service.create_session(app_name=${JSON.stringify(this.app ?? "my_app")}, user_id=${JSON.stringify(userId || "ada")})`;
    } else if (this.apps) {
      $("picker-text").textContent = `These have sessions${place}. Choose one.`;
    } else {
      const order = this.isByActivity ? "Last changed first." : "Newest first; one that changes moves to the top.";
      $("picker-text").textContent = `${place && `These are${place}. `}${order}`;
    }
    $("home").hidden = !appName || Boolean(this.within?.[userId ? "user_id" : "app_name"]);
    const isShowing = Boolean(evaluations.include_eval);
    $("evaluations").textContent = isShowing ? "Hide sessions of evaluations" : "Show sessions of evaluations";
    $("evaluations").href = pageOf(named, isShowing ? {} : { include_eval: "true" });
  }

  async search() {
    const words = $("picker-filter").value.trim();
    const turn = this.searched += 1;
    $("listing").hidden = Boolean(words);
    $("found").hidden = !words;
    if (!words) {
      this.groups = [];
      $("groups").replaceChildren();
      return;
    }
    const kinds = Object.keys(KINDS).filter((kind) => (kind !== "label" || words.indexOf("=") > 0) && !(kind === "user_id" && userId));
    const groups = [];
    this.found(kinds, groups);
    await Promise.all(kinds.map(async (kind, place) => {
      const group = await this.group(kind, words);
      if (turn !== this.searched) return; // something else has been searched for since
      groups[place] = group;
      this.found(kinds, groups);
    }));
  }

  /** Show what has been found so far. */
  found(kinds, groups) {
    const all = groups.filter(Boolean);
    const found = all.filter(({ rows }) => rows.size);
    this.groups = found.map(({ rows }) => rows);
    arrange($("groups"), found.map(({ element }) => element));
    const summaries = found.map(({ kind, rows }) => `${plural(rows.size, "session").replace(" ", rows.token ? "+ " : " ")} by ${KINDS[kind]}`);
    const failed = all.find(({ error }) => error)?.error;
    if (failed) $("found").textContent = failed.message;
    else if (all.length < kinds.length) $("found").textContent = "Searching.";
    else if (summaries.length) $("found").textContent = `Found ${summaries.join(", ")}.`;
    else $("found").textContent = `No session has exactly this as its ${kinds.map((kind) => KINDS[kind]).join(", ").replace(/, ([^,]*)$/, " or $1")}. A label is found as name=value.`;
  }

  /** What one kind of search finds. */
  async group(kind, words) {
    const list = make("ul", "sessions");
    const more = make("button", "", "Show more");
    const heading = make("h2", "", `By ${KINDS[kind]}`);
    const rows = new Rows(list, more, (page) => this.load({ families: String(kind !== "session_id"), [kind]: words, ...page }, true));
    const group = { kind, rows, element: make("div", "group", heading, list, more) };
    list.setAttribute("aria-label", `Sessions by ${KINDS[kind]}`);
    try {
      await rows.begin();
    } catch (error) {
      if (error.status !== 422 && error.status !== 403) group.error = error; // such a name, nothing can have
    }
    return group;
  }
}

export function pick() {
  $("picker").hidden = false;
  const part = (className, text) => make("span", className, text);
  const names = Object.values(named);
  $("where").append(part("of", "mongo-session-service"), ...(names.length ? names : ["live"]).flatMap((name) => [part("gap", "›"), part("name", name)]));
  $("home").textContent = userId ? "‹ All users" : "‹ All apps";
  $("picker-text").textContent = "Nothing is loaded yet.";
  $("home").href = pageOf(userId ? { app_name: appName } : {});
  show("waiting", "Connecting");
  new Connection(new ListPage()).run();
}
