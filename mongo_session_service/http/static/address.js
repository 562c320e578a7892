// Address: what the page's URL and its meta elements name.

export const setting = (name) => document.querySelector(`meta[name="${name}"]`).content;
const query = new URLSearchParams(location.search);
if (query.has("token")) { // a cookie has it now, and a copied address should not
  query.delete("token");
  history.replaceState(null, "", `?${query}${location.hash}`);
}
export const key = ["app_name", "user_id", "session_id"].map((name) => query.get(name) ?? "");
export const keyOf = ([app_name, user_id, session_id]) => ({ app_name, user_id, session_id });
export const [appName, userId, sessionId] = key;

/** What the address names, without what it does not. */
export const named = Object.fromEntries(Object.entries(keyOf(key)).filter(([, name]) => name));

/** The URL of the changes of what the address names, with more parameters. */
export function changesUrl(parameters) {
  const url = new URL(setting("changes-url") || "changes", document.baseURI);
  url.search = new URLSearchParams({ ...named, ...parameters });
  return url;
}
