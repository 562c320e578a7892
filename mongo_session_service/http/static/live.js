// Start: the session that the address names, or a list to choose one from. What takes long
// to be read is imported by itself: all in one task would hold up what is shown first.

import { sessionId } from "./address.js";

await import("./elements.js");
if (sessionId) {
  await import("./markdown.js");
  (await import("./session.js")).watch();
} else {
  (await import("./list.js")).pick();
}
