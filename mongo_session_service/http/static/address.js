// Address: what the page's URL names, and asking the server for it.

const NAMES = ["app_name", "user_id", "session_id"];
const TOKEN = "token";
const ANSWERED = 250; // ms: how long other tabs are asked for the token

const query = new URLSearchParams(location.search);
if (query.has(TOKEN)) {
  // It is for this tab alone: a copied address should not have it, and no cookie takes it
  // to the other ports of this host.
  sessionStorage.setItem(TOKEN, query.get(TOKEN));
  query.delete(TOKEN);
  history.replaceState(null, "", `?${query}${location.hash}`);
}

/** What the address names: an app, or a user of it, or a session of that user. */
export const named = {};
for (const name of NAMES) {
  if (!query.get(name)) break;
  named[name] = query.get(name);
}
export const [appName, userId, sessionId] = NAMES.map((name) => named[name] ?? "");

/** The parameter of lists and their streams that has them show ADK's evaluations as well. */
export const evaluations = query.get("include_eval") === "true" ? { include_eval: "true" } : {};

/** The address of this page for a session, a user or an app. */
export const pageOf = (names, more = evaluations) => `?${new URLSearchParams({ ...names, ...more })}`;

/** The path of an app, a user or a session, or of something that they have. */
export function pathOf({ app_name, user_id, session_id }, more = "") {
  const parts = [["apps", app_name], ["users", user_id], ["sessions", session_id]].filter(([, name]) => name);
  return parts.flatMap(([kind, name]) => [kind, encodeURIComponent(name)]).concat(more || []).join("/");
}

const tabs = new BroadcastChannel("token");
tabs.addEventListener("message", ({ data }) => {
  const known = sessionStorage.getItem(TOKEN);
  if (data && !known) sessionStorage.setItem(TOKEN, data);
  else if (!data && known) tabs.postMessage(known);
});

/** The token; a tab that a link has opened asks the others for it, which may have none. */
async function tokenOfOthers() {
  await new Promise((resolve) => {
    tabs.addEventListener("message", ({ data }) => { if (data) resolve(); });
    setTimeout(resolve, ANSWERED);
    tabs.postMessage("");
  });
  return sessionStorage.getItem(TOKEN);
}

/** Ask the server, which is where the page is. */
export async function request(path, parameters = {}, options = {}) {
  const url = new URL(path, document.baseURI);
  url.search = new URLSearchParams(parameters);
  const send = (token) => fetch(url, { cache: "no-store", ...options, headers: { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) } });
  const known = sessionStorage.getItem(TOKEN);
  const response = await send(known);
  if (response.status !== 401 || known) return response;
  const token = await tokenOfOthers();
  return token ? send(token) : response;
}

/** The server's own words for a refusal. */
export async function refusalOf(response) {
  try {
    return String((await response.json()).detail ?? "");
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** The text of an answer; a refusal is an error, with its status. */
export async function ask(path, parameters, options) {
  const response = await request(path, parameters, options);
  if (response.ok) return response.text();
  throw Object.assign(new Error(await refusalOf(response)), { status: response.status });
}
