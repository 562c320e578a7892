// Address: what the page's URL and its meta elements name.

export const setting = (name) => document.querySelector(`meta[name="${name}"]`).content;
const query = new URLSearchParams(location.search);
if (query.has("token")) { // a cookie has it now, and a copied address should not
  query.delete("token");
  history.replaceState(null, "", `?${query}${location.hash}`);
}
export const key = ["app_name", "user_id", "session_id"].map((name) => query.get(name) ?? "");
export const [appName, userId, sessionId] = key;
