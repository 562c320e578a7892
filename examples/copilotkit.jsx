import { HttpAgent } from "@ag-ui/client";
import { CopilotKitProvider, useAgent, useCopilotKit } from "@copilotkit/react-core/v2";
import { createRoot } from "react-dom/client";

const user = { appName: "my_app", userId: "ada" };
const threadId = new URLSearchParams(location.search).get("session") ?? "first";
const stored = await fetch("/agents/state", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ threadId, ...user }),
});
const agent = new HttpAgent({
  url: "/",
  threadId,
  initialMessages: (await stored.json()).messages,
  initialState: { user_id: user.userId },
});

function Chat() {
  const { agent } = useAgent();
  const { copilotkit } = useCopilotKit();
  const send = (form) => {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content: form.get("text") });
    return copilotkit.runAgent({ agent });
  };
  return (
    <>
      {agent.messages.map(({ id, role, content }) => (
        <p key={id} className="message">
          {role}: {content}
        </p>
      ))}
      <form action={send}>
        <input name="text" aria-label="Message" disabled={agent.isRunning} />
      </form>
    </>
  );
}

createRoot(document.body.appendChild(document.createElement("main"))).render(
  <CopilotKitProvider selfManagedAgents={{ default: agent }}>
    <Chat />
  </CopilotKitProvider>,
);
