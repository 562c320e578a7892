// Start: the session that the address names, or a list to choose one from.

import { sessionId } from "./address.js";
import { pick } from "./list.js";
import { watch } from "./session.js";

if (sessionId) watch(); else pick();
