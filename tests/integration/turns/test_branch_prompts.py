"""A branch is to its agent what a conversation is that was typed that way."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.sessions import Session
from google.adk.sessions.state import State
from google.adk.tools import ToolContext
from google.genai import types
from pydantic import Field
from support.conversations import OWNER, ROOT, ask, family, runner_of, shown
from typing_extensions import override

from mongo_session_service import InvalidInputError, MongoSessionService

_OF_OTHERS = (State.APP_PREFIX, State.USER_PREFIX)
_INITIAL = {"count": 0, "place": "Turin"}


def count_up(tool_context: ToolContext) -> int:
    """Count, in the session's state and in the user's."""
    state = tool_context.state
    state["count"] = (state.get("count") or 0) + 1
    state["user:count"] = state.get("user:count", 0) + 1
    return int(state["count"])


class CountingModel(BaseLlm):
    """Calls the tool if it is asked to count, and repeats what it was told last."""

    model: str = "counting"
    requests: list[LlmRequest] = Field(default_factory=list)

    @override
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the call, or the answer."""
        self.requests.append(llm_request)
        last = (llm_request.contents[-1].parts or [])[-1]
        if last.text and "count" in last.text:
            part = types.Part.from_function_call(name="count_up", args={})
        else:
            counted = last.function_response and last.function_response.response
            part = types.Part(text=f"to {counted or last.text}")
        yield LlmResponse(content=types.ModelContent([part]))


@dataclass(frozen=True, eq=False)
class Step:
    """What was done to a session: a message, a rewind, or a trim."""

    text: str = ""
    delta: dict[str, Any] = field(default_factory=dict)
    rewinds: Step | None = None
    """The message that is rewound, with all that follow."""
    cut: int = 0
    """After a trim, the revision after which the log begins."""
    first: tuple[str, int] = ("", 0)
    """Of a message: the session with its first version, and the revision before it."""


@dataclass
class Version:
    """A session as it should be: the steps by which it would be typed."""

    id: str
    parent: str | None = None
    steps: list[Step] = field(default_factory=list)
    invocations: dict[Step, str] = field(default_factory=dict)
    """Those of its messages."""
    begins: dict[Step, int] = field(default_factory=dict)
    """The revisions before them."""

    @property
    def cut(self) -> int:
        return max((each.cut for each in self.steps), default=0)

    @property
    def messages(self) -> list[Step]:
        return [each for each in self.steps if each.text]

    @property
    def whole(self) -> list[Step]:
        """The messages that were not cut off."""
        return [each for each in self.messages if self.begins[each] >= self.cut]

    def add(self, step: Step, invocation: str, begin: int) -> None:
        self.steps.append(step)
        self.invocations[step] = invocation
        self.begins[step] = begin


class Tree:
    """A family of sessions, and what users have done to it."""

    def __init__(self, service: MongoSessionService, seed: int) -> None:
        self.service = service
        self.model = CountingModel()
        self.runner = runner_of(
            service,
            self.model,
            tools=[count_up],
            instruction="Mood {mood?}, count {count?}, place {place?}.",
        )
        self.versions = {ROOT: Version(ROOT)}
        self.shown = ROOT
        self._chance = random.Random(seed)  # noqa: S311  no secret
        self._numbers = count(1)

    async def grow(self, steps: int) -> None:
        await self.service.create_session(**OWNER, session_id=ROOT, state=_INITIAL)
        for _ in range(3):
            await self._say(self.versions[ROOT])
        actions = [self._say, self._edit, self._edit, self._ask_again, self._ask_again]
        actions += [self._rewind, self._flip, self._trim, self._delete]
        for _ in range(steps):
            await self._chance.choice(actions)(
                self._chance.choice([*self.versions.values()])
            )

    def _new_message(self) -> Step:
        number, delta = next(self._numbers), dict[str, Any]()
        if self._chance.random() < 0.4:
            delta = {"mood": f"mood {number}", "user:last": number}
        if self._chance.random() < 0.1:
            delta["count"] = 100 * number
        counts = ": count" if self._chance.random() < 0.4 else ""
        return Step(f"message {number}{counts}", delta)

    async def _say(self, version: Version) -> None:
        begin = version.cut + len((await self.stored(version.id)).events)
        step = replace(self._new_message(), first=(version.id, begin))
        _, invocation = await self.ask(version.id, step)
        version.add(step, invocation, begin)

    async def _edit(self, version: Version) -> None:
        old = self._chance.choice(version.messages)
        step = self._new_message()
        await self._branch_off(version, old, step, step)

    async def _ask_again(self, version: Version) -> None:
        old = self._chance.choice(version.messages)
        own = {k: it for k, it in old.delta.items() if not k.startswith(_OF_OTHERS)}
        await self._branch_off(version, old, replace(old, delta=own), Step())

    async def _branch_off(
        self, version: Version, old: Step, step: Step, asked: Step
    ) -> None:
        editing = self.ask(version.id, asked, instead_of=version.invocations[old])
        if old not in version.whole:
            with pytest.raises(InvalidInputError, match="trimmed"):
                await editing
            return
        self.shown, invocation = await editing
        place = version.steps.index(old)
        trims = [each for each in version.steps[place:] if each.cut]
        branch = Version(self.shown, version.id, version.steps[:place] + trims)
        branch.invocations |= version.invocations
        branch.begins |= version.begins
        branch.add(replace(step, first=old.first), invocation, version.begins[old])
        self.versions[branch.id] = branch

    async def _rewind(self, version: Version) -> None:
        if version.whole:
            step = self._chance.choice(version.whole)
            await self.rewind(version.id, version.invocations[step])
            version.steps.append(Step(rewinds=step))

    async def _flip(self, version: Version) -> None:
        await self.service.show_branch(**OWNER, session_id=version.id)
        self.shown = version.id

    async def _trim(self, version: Version) -> None:
        left = len((await self.stored(version.id)).events)
        removed = await self.service.trim_session(
            **OWNER, session_id=version.id, keep_last=self._chance.randint(1, left)
        )
        if removed:
            version.steps.append(Step(cut=version.cut + removed))

    async def _delete(self, version: Version) -> None:
        if len(self.versions) < 3:
            return
        await self.service.delete_session(**OWNER, session_id=version.id)
        del self.versions[version.id]
        if self.shown == version.id:
            parent = version.parent
            self.shown = parent if parent in self.versions else [*self.versions][-1]

    async def ask(self, session_id: str, step: Step, **how: Any) -> tuple[str, str]:
        if step.delta:
            how["state_delta"] = step.delta
        return await ask(
            *(self.service, step.text or None),
            session_id=session_id,
            runner=self.runner,
            **how,
        )

    async def rewind(self, session_id: str, invocation: str) -> None:
        await self.runner.rewind_async(
            user_id=OWNER["user_id"],
            session_id=session_id,
            rewind_before_invocation_id=invocation,
        )

    async def stored(self, session_id: str) -> Session:
        found = await self.service.get_session(**OWNER, session_id=session_id)
        assert found is not None
        return found

    async def type(self, version: Version) -> str:
        """Make a session of its own, to which a version's steps are typed."""
        session = await self.service.create_session(**OWNER, state=_INITIAL)
        invocations: dict[Step, str] = {}
        for step in version.steps:
            if step.text:
                _, invocations[step] = await self.ask(session.id, step)
            elif step.rewinds:
                await self.rewind(session.id, invocations[step.rewinds])
            else:
                await self.service.trim_session(
                    **OWNER, session_id=session.id, before_revision=step.cut + 1
                )
        return session.id

    async def content(self, session_id: str) -> tuple[Any, ...]:
        """Its state and its events, and what its agent receives of it next."""
        found = await self.stored(session_id)
        own = {k: it for k, it in found.state.items() if not k.startswith(_OF_OTHERS)}
        numbers: dict[str, int] = {}
        log = [_outline(each, numbers) for each in found.events]
        await self.ask(session_id, Step("What next?"))
        request = self.model.requests[-1]
        prompt = [each.model_dump(exclude_none=True) for each in request.contents]
        return own, log, request.config.system_instruction, prompt


def _outline(event: Event, numbers: dict[str, int]) -> dict[str, Any]:
    """An event without times and ids; with numbers instead of invocations."""
    outline = event.model_dump(exclude={"id", "timestamp"}, exclude_none=True)
    of = (outline.pop("invocation_id"), event.actions.rewind_before_invocation_id)
    outline["of"] = [each and numbers.setdefault(each, len(numbers)) for each in of]
    outline["actions"].pop("rewind_before_invocation_id", None)
    outline["actions"]["state_delta"].pop("user:count", None)
    for part in outline.get("content", {}).get("parts", ()):
        for kind in ("function_call", "function_response"):
            part.get(kind, {}).pop("id", None)
    return outline


async def check(tree: Tree) -> None:
    """Compare the family, and each version with one that is typed."""
    found = await family(tree.service, tree.shown)
    assert [each.session_id for each in found] == [*tree.versions]
    assert [it.session_id for it in found if it.is_shown] == [tree.shown]
    assert await shown(tree.service) == [(tree.shown, len(found))]
    for each in found:
        version = tree.versions[each.session_id]
        assert each.parent_id == version.parent
        if version.parent is not None:
            edited = next(
                it for it in version.messages if version.begins[it] == each.revision
            )
            assert (each.version_of, each.revision) == edited.first
    for version in tree.versions.values():
        typed = await tree.type(version)
        assert await tree.content(version.id) == await tree.content(typed)


@pytest.mark.limits(fork_step=3)
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.release) for seed in range(1, 7))],
)
async def test_branches_equal_what_is_typed(
    service: MongoSessionService, seed: int
) -> None:
    """Whatever was edited, rewound, trimmed or deleted around it, in any order."""
    tree = Tree(service, seed)
    await tree.grow(40 if seed else 16)
    await check(tree)
