import {
  AssistantRuntimeProvider,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadListItemPrimitive,
  ThreadListPrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import {
  createAdkSessionAdapter,
  createAdkStream,
  useAdkRuntime,
} from "@assistant-ui/react-google-adk";
import { useEffect } from "react";
import { createRoot } from "react-dom/client";

const api = location.origin;
const app = { appName: "chat", userId: "ada" };
const stream = createAdkStream({ api, ...app });
const { adapter, load } = createAdkSessionAdapter({ apiUrl: api, ...app });

const [opened] = /^[\w-]+$/.exec(location.hash.slice(1)) ?? [];
const note = (id) => id && history.replaceState(null, "", `#${id}`);

const Message = ({ role }) => (
  <MessagePrimitive.Root className="message">
    {role}: <MessagePrimitive.Parts />
  </MessagePrimitive.Root>
);
const components = {
  UserMessage: () => <Message role="user" />,
  AssistantMessage: () => <Message role="assistant" />,
};
const Item = () => (
  <ThreadListItemPrimitive.Root className="session">
    <ThreadListItemPrimitive.Trigger>
      <ThreadListItemPrimitive.Title fallback="A chat" />
    </ThreadListItemPrimitive.Trigger>
    <ThreadListItemPrimitive.Delete>Delete</ThreadListItemPrimitive.Delete>
  </ThreadListItemPrimitive.Root>
);

function Chat() {
  const runtime = useAdkRuntime({
    stream,
    load,
    sessionAdapter: adapter,
    onThreadIdChange: note,
  });
  const { threads } = runtime;
  useEffect(() => {
    if (opened) threads.switchToThread(opened);
    // When a turn has ended, whoever began it, its session is loaded again.
    const changes = new EventSource("/live/apps/chat/users/ada/changes?partials=true");
    changes.addEventListener("turn", ({ data }) => {
      if (JSON.parse(data).turn.status !== "running") threads.reloadMainThread();
    });
    return () => changes.close();
  }, [threads]);
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadListPrimitive.Root>
        <ThreadListPrimitive.New>New chat</ThreadListPrimitive.New>
        <ThreadListPrimitive.Items components={{ ThreadListItem: Item }} />
      </ThreadListPrimitive.Root>
      <ThreadPrimitive.Messages components={components} />
      <ComposerPrimitive.Root>
        <ComposerPrimitive.Input aria-label="Message" />
      </ComposerPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

createRoot(document.body.appendChild(document.createElement("main"))).render(<Chat />);
