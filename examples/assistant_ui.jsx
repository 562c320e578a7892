import {
  ActionBarPrimitive,
  AssistantRuntimeProvider,
  BranchPickerPrimitive,
  ComposerPrimitive,
  ExportedMessageRepository,
  MessagePrimitive,
  ThreadPrimitive,
  useExternalStoreRuntime,
} from "@assistant-ui/react";
import { createRoot } from "react-dom/client";

async function call(method, path, body) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(path, { method, headers, body: JSON.stringify(body) });
  const answer = response.status === 204 ? null : await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

const mine = await call("GET", "/mine");
let [opened] = /^[\w-]+$/.exec(location.hash.slice(1)) ?? []; // any version of the conversation
if (!opened) location.hash = opened = await call("POST", "/sessions");
const pathOf = (id) => `${mine}/${encodeURIComponent(id)}`;

let branches, shown, logs, isRunning;

async function open() {
  const family = await call("GET", `${pathOf(opened)}/branches`);
  const read = {};
  for (const { session_id, version_of, revision } of family.branches) {
    const common = (read[version_of] ?? []).filter((row) => row.revision <= revision);
    read[session_id] = await readOn(session_id, common);
  }
  [branches, logs, isRunning] = [family.branches, read, false];
  shown = branches.find((branch) => branch.is_shown).session_id;
  draw();
  follow(logs[shown].at(-1)?.revision ?? 0);
}

async function readOn(id, log) {
  const query = `limit=200&after_revision=${log.at(-1)?.revision ?? 0}`;
  const { events, has_more } = await call("GET", `${pathOf(id)}/events?${query}`);
  return has_more ? readOn(id, [...log, ...events]) : [...log, ...events];
}

function follow(revision) {
  const query = `partials=true&after_revision=${revision}`;
  const changes = new EventSource(`${pathOf(shown)}/changes?${query}`);
  const on = (kind, apply) =>
    changes.addEventListener(kind, ({ data }) => {
      apply(JSON.parse(data));
      draw();
    });
  on("appended", put);
  on("partial", ({ event }) => {
    const said = [eventOf(event.id), event];
    const parts = said.flatMap((it) => it?.content?.parts ?? []);
    put({ event: { ...event, content: { parts } } });
  });
  on("turn", ({ turn }) => {
    isRunning = turn.status === "running";
    const isStored = (row) => row.revision; // else a server that died has said it
    if (isRunning) logs[shown] = logs[shown].filter(isStored);
  });
  on("updated", ({ is_shown }) => {
    if (is_shown !== false) return;
    changes.close(); // another version is shown from now on
    open();
  });
}

function put(row) {
  const others = logs[shown].filter(({ event }) => event.id !== row.event.id);
  logs[shown] = [...others, row];
}

function draw() {
  const messages = new Map();
  let headId = null;
  for (const { session_id } of branches) {
    let parentId = null;
    for (const { event } of logs[session_id]) {
      const parts = event.content?.parts ?? [];
      const content = parts.map((it) => (it.thought ? "" : it.text)).join("");
      if (!content) continue;
      const { id } = event;
      const role = event.author === "user" ? "user" : "assistant";
      const message = { id, role, content };
      if (!messages.has(id)) messages.set(id, { message, parentId });
      parentId = id;
    }
    if (session_id === shown) headId = parentId;
  }
  const all = [...messages.values()];
  const tree = ExportedMessageRepository.fromBranchableArray(all, { headId });
  root.render(<Chat tree={tree} />);
}

const eventOf = (id, session = shown) =>
  logs[session].find(({ event }) => event.id === id)?.event;

const ask = (content, editedId) =>
  call("POST", `${pathOf(shown)}/turns`, {
    newMessage: content && { role: "user", parts: content.map(({ text }) => ({ text })) },
    insteadOf: editedId && eventOf(editedId).invocationId,
    interrupt: true,
  });

function flip({ visibleMessageIds }) {
  const turnedTo = visibleMessageIds.find((id) => !eventOf(id));
  const [latest] = branches
    .filter((branch) => eventOf(turnedTo, branch.session_id))
    .sort((one, other) => other.last_update_time - one.last_update_time);
  return call("PUT", `${pathOf(latest.session_id)}/shown`);
}

const Message = ({ role, children }) => (
  <MessagePrimitive.Root>
    <div className="message">
      {role}: <MessagePrimitive.Parts />
    </div>
    {children}
  </MessagePrimitive.Root>
);
const components = {
  UserMessage: () => (
    <Message role="user">
      <BranchPickerPrimitive.Root hideWhenSingleBranch>
        <BranchPickerPrimitive.Previous aria-label="Previous">‹</BranchPickerPrimitive.Previous>
        <span className="version">
          <BranchPickerPrimitive.Number />/<BranchPickerPrimitive.Count />
        </span>
        <BranchPickerPrimitive.Next aria-label="Next">›</BranchPickerPrimitive.Next>
      </BranchPickerPrimitive.Root>
      <ActionBarPrimitive.Edit>Edit</ActionBarPrimitive.Edit>
    </Message>
  ),
  UserEditComposer: () => (
    <ComposerPrimitive.Root>
      <ComposerPrimitive.Input aria-label="Edited message" />
    </ComposerPrimitive.Root>
  ),
  AssistantMessage: () => (
    <Message role="assistant">
      <ActionBarPrimitive.Reload>Ask again</ActionBarPrimitive.Reload>
    </Message>
  ),
};

function Chat({ tree }) {
  const runtime = useExternalStoreRuntime({
    messageRepository: tree,
    isRunning,
    setMessages: () => {}, // without it, there is no branch picker
    unstable_onBranchChange: flip,
    onNew: ({ content }) => ask(content),
    onEdit: ({ content, sourceId }) => ask(content, sourceId),
    onReload: (parentId) => ask(undefined, parentId),
    onCancel: () => call("DELETE", `${pathOf(shown)}/turn`),
  });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadPrimitive.Messages components={components} />
      <ComposerPrimitive.Root>
        <ComposerPrimitive.Input aria-label="Message" />
        <ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
      </ComposerPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

const root = createRoot(document.body.appendChild(document.createElement("main")));
open();
