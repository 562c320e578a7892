// A client whose types openapi-typescript has made: see docs/reference/http.md.
import type { components, operations } from "./api";

export type Problem = components["schemas"]["Problem"];
export type Change = components["schemas"]["SessionChange"];
type Asked = operations["start_turn"]["requestBody"]["content"]["application/json"];
type Begun = components["schemas"]["TurnBegun"];

export async function ask(session: string, text: string): Promise<Begun> {
  const asked: Asked = { newMessage: { role: "user", parts: [{ text }] } };
  const response = await fetch(`/apps/chat/users/ada/sessions/${session}/turns`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(asked),
  });
  if (response.ok) return response.json();
  const problem: Problem = await response.json();
  if (problem.type === "urn:mongo-session-service:turn-taken") return ask(session, text);
  throw new Error(problem.errors?.[0] ? "invalid" : problem.detail);
}

export function follow(session: string, on: (change: Change) => void): EventSource {
  const changes = new EventSource(`/apps/chat/users/ada/sessions/${session}/changes`);
  changes.addEventListener("appended", (e) => on(JSON.parse(e.data)));
  return changes;
}
