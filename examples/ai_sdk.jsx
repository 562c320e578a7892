import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { createRoot } from "react-dom/client";

const id = new URLSearchParams(location.search).get("session") ?? "first";
const path = `/api/chat/${encodeURIComponent(id)}`;
const stored = await (await fetch(path)).json();
const transport = new DefaultChatTransport({
  prepareReconnectToStreamRequest: () => ({
    api: `${path}/stream?after=${stored.at(-1).metadata.revision}`,
  }),
});

function Chat() {
  const { messages, sendMessage, status } = useChat({
    id,
    transport,
    messages: stored,
    resume: stored.length > 0,
  });
  const send = (form) => sendMessage({ text: form.get("text") });
  return (
    <>
      {messages.map(({ id, role, parts }) => (
        <p key={id} className="message">
          {role}: {parts.map((part) => part.text)}
        </p>
      ))}
      <form action={send}>
        <input name="text" aria-label="Message" disabled={status !== "ready"} />
      </form>
    </>
  );
}

createRoot(document.body.appendChild(document.createElement("main"))).render(<Chat />);
