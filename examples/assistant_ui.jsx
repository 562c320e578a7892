import { useChat } from "@ai-sdk/react";
import {
  AssistantRuntimeProvider,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import { useAISDKRuntime } from "@assistant-ui/react-ai-sdk";
import { DefaultChatTransport } from "ai";
import { createRoot } from "react-dom/client";

const id = new URLSearchParams(location.search).get("session") ?? "first";
const stored = await (await fetch(`/api/chat/${id}`)).json();
const transport = new DefaultChatTransport({
  prepareReconnectToStreamRequest: () => ({
    api: `/api/chat/${id}/stream?after=${stored.at(-1).metadata.revision}`,
  }),
});

const Message = ({ role }) => (
  <MessagePrimitive.Root className="message">
    {role}: <MessagePrimitive.Parts />
  </MessagePrimitive.Root>
);
const components = {
  UserMessage: () => <Message role="user" />,
  AssistantMessage: () => <Message role="assistant" />,
};

function Chat() {
  const resume = stored.length > 0;
  const chat = useChat({ id, transport, messages: stored, resume });
  return (
    <AssistantRuntimeProvider runtime={useAISDKRuntime(chat)}>
      <ThreadPrimitive.Messages components={components} />
      <ComposerPrimitive.Root>
        <ComposerPrimitive.Input aria-label="Message" />
      </ComposerPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

createRoot(document.body.appendChild(document.createElement("main"))).render(<Chat />);
