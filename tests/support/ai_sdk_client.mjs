// A page with the AI SDK: asks one server, leaves, and resumes the answer at another.
import { DefaultChatTransport, readUIMessageStream } from "ai";

const [first, second] = process.argv.slice(2).map((api) => new DefaultChatTransport({ api }));
const chat = { chatId: "chat" };
const question = { id: "q", role: "user", parts: [{ type: "text", text: "Count to 30" }] };
const text = (message) => message.parts.map((part) => part.text ?? "").join("");

const leaving = new AbortController();
const stream = await first.sendMessages({
  ...chat,
  trigger: "submit-message",
  messages: [question],
  abortSignal: leaving.signal,
});
let seen = "";
for await (const message of readUIMessageStream({ stream })) {
  seen = text(message);
  if (seen.includes("5")) break;
}
leaving.abort();

let resumed = "";
const rest = await second.reconnectToStream(chat);
for await (const message of readUIMessageStream({ stream: rest })) resumed = text(message);
const over = await second.reconnectToStream(chat);
console.log(JSON.stringify({ seen, resumed, over }));
