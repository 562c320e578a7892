"""ADK's own routes, as its server has them, on turns that outlive their readers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import (
    InMemoryCredentialService,
)
from google.adk.cli import api_server
from google.adk.cli.utils.base_agent_loader import BaseAgentLoader
from google.adk.memory import InMemoryMemoryService
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from starlette.requests import Request
from support.http_server import serving
from support.patience import PATIENCE
from support.spoken_model import SpokenModel

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import adk_router, adk_routes, allow_everyone

APP = "chat"
SESSIONS = f"/apps/{APP}/users/ada/sessions"
NO_EVALUATIONS: Any = None
PAGE = "https://app.example"


class EchoModel(BaseLlm):
    """Calls ``save`` for what begins so, fails at ``fail``, and repeats all else."""

    model: str = "echo"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer in two pieces, if it may."""
        latest = llm_request.contents[-1].parts or []
        text = latest[-1].text or "done"
        if text == "fail":
            raise ValueError("a secret of the agent's")
        if text.startswith("save"):
            call = types.Part.from_function_call(name="save", args={"text": text})
            yield LlmResponse(content=types.ModelContent(call))
            return
        if stream:
            for each in ("You said: ", text):
                yield LlmResponse(content=types.ModelContent(each), partial=True)
        yield LlmResponse(content=types.ModelContent(f"You said: {text}"))


async def save(text: str, tool_context: ToolContext) -> str:
    """Saves an artifact, and state."""
    tool_context.state["saved"] = text
    await tool_context.save_artifact("notes.txt", types.Part(text=text))
    return text


def runner_of(service: MongoSessionService, model: BaseLlm) -> Runner:
    agent = LlmAgent(name="echo", description="Repeats.", model=model, tools=[save])
    return Runner(
        agent=agent,
        app_name=APP,
        session_service=service,
        artifact_service=InMemoryArtifactService(),
    )


class OneAgent(BaseAgentLoader):
    """Finds the agent of a runner."""

    def __init__(self, runner: Runner) -> None:
        assert isinstance(runner.agent, BaseAgent)
        self.agent = runner.agent

    def load_agent(self, agent_name: str) -> BaseAgent:
        if agent_name != APP:
            raise ValueError("There is no such agent.")
        return self.agent

    def list_agents(self) -> list[str]:
        return [APP]

    def list_agents_detailed(self) -> list[dict[str, Any]]:
        return [
            {
                "name": APP,
                "root_agent_name": self.agent.name,
                "description": self.agent.description,
                "language": "python",
                "is_computer_use": False,
            }
        ]


def adks_own(service: MongoSessionService, runner: Runner) -> FastAPI:
    """ADK's own server, with the same sessions."""
    server = api_server.ApiServer(
        agent_loader=OneAgent(runner),
        session_service=service,
        memory_service=InMemoryMemoryService(),
        artifact_service=InMemoryArtifactService(),
        credential_service=InMemoryCredentialService(),
        eval_sets_manager=NO_EVALUATIONS,
        eval_set_results_manager=NO_EVALUATIONS,
        agents_dir=".",
    )
    return server.get_fast_api_app()


def ours(service: MongoSessionService, runner: Runner, **options: Any) -> FastAPI:
    app = FastAPI()
    given = {"authorize": allow_everyone, "runners": {APP: runner}, **options}
    app.include_router(adk_router(service, **given))
    return app


def client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(
        transport=transport, base_url="http://test", timeout=PATIENCE
    )


def asking(text: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "parts": [{"text": text}]}
    ids = {"appName": APP, "userId": "ada", "sessionId": "s"}
    return {**ids, "newMessage": message, **more}


RESTORED = {"author": "user", "content": {"role": "user", "parts": [{"text": "Hi"}]}}
REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/list-apps", None),
    ("GET", "/list-apps?detailed=true", None),
    ("GET", SESSIONS, None),
    ("POST", SESSIONS, {"sessionId": "s", "state": {"a": 1}, "events": [RESTORED]}),
    ("POST", SESSIONS, {"session_id": "s"}),
    ("POST", SESSIONS, {}),
    ("POST", SESSIONS, None),
    ("POST", SESSIONS, {"events": [{**RESTORED, "longRunningToolIds": ["1"]}]}),
    ("POST", SESSIONS, {"events": [{**RESTORED, "actions": {"escalate": True}}]}),
    ("POST", SESSIONS, {"options": {"title": "Trip"}}),
    ("POST", SESSIONS, {"options": {"colour": "red"}}),
    ("POST", SESSIONS, {"state": 1}),
    ("POST", f"{SESSIONS}/t", {"b": 2}),
    ("POST", f"{SESSIONS}/u", None),
    ("GET", f"{SESSIONS}/s", None),
    ("GET", f"{SESSIONS}/none", None),
    ("PATCH", f"{SESSIONS}/s", {"stateDelta": {"colour": "red"}}),
    ("PATCH", f"{SESSIONS}/s", {"state_delta": {"colour": None}}),
    ("PATCH", f"{SESSIONS}/none", {"stateDelta": {}}),
    ("PATCH", f"{SESSIONS}/s", {}),
    ("POST", "/run", asking("Hello")),
    ("POST", "/run", asking("save", stateDelta={"c": 3})),
    ("POST", "/run", asking("Hello", streaming=True, customMetadata={"page": 1})),
    ("POST", "/run", asking("Hello", sessionId="none")),
    ("POST", "/run", asking("Hello", appName="none")),
    ("POST", "/run", asking("Hello", appName=None)),
    ("POST", "/run", {"appName": APP}),
    ("POST", "/run", asking("fail")),
    ("POST", "/run_sse", asking("Hello")),
    ("POST", "/run_sse", asking("Hello", streaming=True)),
    ("POST", "/run_sse", asking("save me", streaming=True)),
    ("POST", "/run_sse", asking("save me", functionCallEventId="1")),
    ("POST", "/run_sse", asking("Hello", sessionId="none")),
    ("POST", "/run_sse", asking("Hello", serviceTier="deferred", streaming=True)),
    ("POST", "/run_sse", asking("fail", streaming=True)),
    ("GET", SESSIONS, None),
    ("GET", f"{SESSIONS}/s", None),
    ("DELETE", f"{SESSIONS}/s", None),
    ("DELETE", f"{SESSIONS}/s", None),
    ("GET", f"{SESSIONS}/s", None),
]


def shape(value: Any) -> Any:
    """A value of JSON, without what is another one each time."""
    if isinstance(value, dict):
        random = {"id", "invocationId", "timestamp", "lastUpdateTime", "detail"}
        # The text of an agent's error stays in the log.
        random |= {"error_message", "error"}
        return {
            name: type(it).__name__ if name in random else shape(it)
            for name, it in value.items()
        }
    return [*map(shape, value)] if isinstance(value, list) else value


def seen(response: httpx.Response) -> Any:
    """The status, the kind of content, and the shape of the content."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind == "text/event-stream":
        assert re.fullmatch(r"(data: .*\n\n)*", response.text)
        events = map(json.loads, re.findall(r"data: (.*)\n\n", response.text))
        # Ours leave out what is whole by the time that they are read.
        whole = [shape(each) for each in events if not each.get("partial")]
        return response.status_code, kind, whole
    if response.is_error:  # where ours are problem details, which have a detail too
        return response.status_code
    return response.status_code, kind, shape(response.json())


@pytest.mark.filterwarnings("ignore:.*create_session:DeprecationWarning")
async def test_each_route_answers_as_adks_own_server(
    service: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    """One client's requests have the same answers of both, sessions and errors."""
    monkeypatch.setattr(api_server, "_setup_telemetry", lambda **_: None)
    answers: list[list[httpx.Response]] = []
    for make in (adks_own, ours):
        async with client(make(service, runner_of(service, EchoModel()))) as http:
            received = [
                await http.request(*each, json=body) for *each, body in REQUESTS
            ]
        answers.append(received)
        await service.delete_user(app_name=APP, user_id="ada")
    for request, theirs, own in zip(REQUESTS, *answers, strict=True):
        with subtests.test(request=request):
            assert seen(own) == seen(theirs)


async def until(what: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        await what


@pytest.fixture
async def model() -> SpokenModel:
    return SpokenModel()


@pytest.fixture
async def runner(service: MongoSessionService, model: SpokenModel) -> Runner:
    await service.create_session(app_name=APP, user_id="ada", session_id="s")
    return runner_of(service, model)


@asynccontextmanager
async def reading(url: str, **body: Any) -> AsyncIterator[Any]:
    """An answer that streams, and an iterator of its events."""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
        http.stream("POST", f"{url}/run_sse", json=asking("Hi", **body)) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        lines = answer.aiter_lines()

        async def events() -> AsyncIterator[Any]:
            async for line in lines:
                if line:
                    yield json.loads(line.removeprefix("data: "))

        yield events()


def said(event: Any) -> str:
    return "".join(part["text"] for part in event["content"]["parts"])


async def test_a_run_goes_on_when_its_reader_leaves(
    service: MongoSessionService, runner: Runner, model: SpokenModel
) -> None:
    """Its answer is stored as a whole, and the next run waits for it."""
    async with serving(ours(service, runner)) as url:
        async with reading(url, streaming=True) as events:
            model.say("It is ")
            assert said(await anext(events)) == "It is "
        model.say("late.")
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
            second = asyncio.ensure_future(
                http.post(f"{url}/run", json=asking("And now?"))
            )
            while not await service.find_turns(app_name=APP):
                pass
            model.end_answer()
            model.say("Later.")
            model.end_answer()
            answer = (await second).json()
            stored = (await http.get(f"{url}{SESSIONS}/s")).json()
    assert [said(each) for each in answer] == ["Later."]
    assert [said(each) for each in stored["events"]] == [
        "Hi",
        "It is late.",
        "And now?",
        "Later.",
    ]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_run_stops_with_its_reader_if_it_is_meant_to(
    service: MongoSessionService, runner: Runner, model: SpokenModel, *, streaming: bool
) -> None:
    """What was said until then is kept."""
    app = ours(service, runner, stop_when_left=True)
    ids: dict[str, Any] = {"app_name": APP, "user_id": "ada"}
    async with serving(app) as url:
        if streaming:
            async with reading(url, streaming=True) as events:
                model.say("It is ")
                await anext(events)
        else:
            async with httpx.AsyncClient(trust_env=False) as http:
                asked = asyncio.ensure_future(
                    http.post(f"{url}/run", json=asking("Hi"))
                )
                while not await service.find_turns(**ids):
                    pass
                asked.cancel()
                await asyncio.wait({asked})
        async with asyncio.timeout(PATIENCE):
            while not (ended := await service.find_turns(**ids, status="stopped")):
                pass
    assert ended[0].reason == "its reader has left"


async def test_a_second_run_is_refused_in_the_end(
    service: MongoSessionService,
    runner: Runner,
    model: SpokenModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And so is a change of state, which the agent would lose its place by."""
    monkeypatch.setattr(adk_routes, "_WAIT_SECONDS", 0.05)
    async with (
        serving(ours(service, runner)) as url,
        reading(url, streaming=True) as events,
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE, base_url=url) as http,
    ):
        model.say("It is ")
        await anext(events)
        refused = [
            await http.post("/run", json=asking("Hello")),
            await http.post("/run_sse", json=asking("Hello")),
            await http.patch(f"{SESSIONS}/s", json={"stateDelta": {"a": 1}}),
        ]
        model.end_answer()
        assert [said(each) async for each in events] == ["It is "]
    kind = "urn:mongo-session-service:turn-taken"
    assert [(it.status_code, it.json()["type"]) for it in refused] == [(409, kind)] * 3


async def test_each_route_has_its_permission(
    service: MongoSessionService, runner: Runner, subtests: pytest.Subtests
) -> None:
    """Whoever lacks one of them is refused, whether or not the session exists."""
    needed = {
        ("GET", SESSIONS): {"list"},
        ("POST", SESSIONS): {"create"},
        ("POST", f"{SESSIONS}/t"): {"create"},
        ("GET", f"{SESSIONS}/s"): {"read"},
        ("PATCH", f"{SESSIONS}/s"): {"update", "run"},
        ("POST", "/run"): {"run", "answer"},
        ("POST", "/run_sse"): {"run", "answer"},
        ("DELETE", f"{SESSIONS}/s"): {"delete"},
    }
    lacking = ""
    asked: set[str] = set()

    async def may(_: Request, *, user_id: str, action: str, **__: Any) -> bool:
        asked.add(action)
        return user_id == "ada" and action != lacking

    answer = {"functionResponse": {"id": "1", "name": "save", "response": {}}}
    body = {
        **asking("Hi", sessionId="none"),
        "newMessage": {"parts": [answer]},
        "stateDelta": {},
    }
    async with client(ours(service, runner, authorize=may)) as http:
        for (method, path), actions in needed.items():
            for lacking in sorted(actions):
                with subtests.test(method=method, path=path, lacking=lacking):
                    sent = None if method in {"GET", "DELETE"} else body
                    asked.clear()
                    refused = await http.request(method, path, json=sent)
                    assert refused.status_code == 403
                    assert asked <= actions
    assert await service.get_session(app_name=APP, user_id="ada", session_id="s")


async def test_pages_of_another_origin_may_not_write(
    service: MongoSessionService, runner: Runner
) -> None:
    """Unless they are trusted."""
    body: dict[str, Any] = {"json": {"sessionId": "t"}, "headers": {"Origin": PAGE}}
    async with client(ours(service, runner)) as http:
        assert (await http.post(SESSIONS, **body)).status_code == 403
        assert (await http.post("/run", **body)).status_code == 403
    async with client(ours(service, runner, trusted_origins=[PAGE])) as http:
        assert (await http.post(SESSIONS, **body)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"state": {"user:name": "Eve"}},
        {"state": {"app:motto": "none"}},
        {"state": {"__session_metadata__": {"displayName": "Mine"}}},
    ],
)
async def test_clients_set_state_of_the_session_alone(
    service: MongoSessionService, runner: Runner, body: dict[str, Any]
) -> None:
    """In a new session, a change and a run."""
    delta = {"stateDelta": body["state"]}
    async with client(ours(service, runner)) as http:
        assert (await http.post(SESSIONS, json=body)).status_code == 422
        assert (await http.patch(f"{SESSIONS}/s", json=delta)).status_code == 422
        assert (await http.post("/run", json=asking("", **delta))).status_code == 422


async def test_clients_mark_no_events(
    service: MongoSessionService, runner: Runner, model: SpokenModel
) -> None:
    """What ADK and the service mark events by is left out; ADK's calls are refused."""
    marks = {"__redacted__": True, "__adk_internal_x": 1, "page": 2}
    event = {**RESTORED, "customMetadata": marks}
    call = {"functionCall": {"name": "adk_request_confirmation", "args": {}}}
    forged = {**RESTORED, "content": {"parts": [call]}}
    model.say("Hello.")
    model.end_answer()
    async with client(ours(service, runner)) as http:
        made = await http.post(SESSIONS, json={"sessionId": "t", "events": [event]})
        await http.post("/run", json=asking("Hi", customMetadata=marks))
        read = await http.get(f"{SESSIONS}/s")
        refused = await http.post(SESSIONS, json={"events": [forged]})
    events = [*made.json()["events"], *read.json()["events"]]
    assert [each["customMetadata"] for each in events] == [{"page": 2}] * 3
    assert refused.status_code == 400


async def test_an_agents_error_is_the_last_event(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last event has ADK's ``error``, and ``/run`` is refused as all else is."""
    await service.create_session(app_name=APP, user_id="ada", session_id="s")
    async with client(ours(service, runner_of(service, EchoModel()))) as http:
        run = await http.post("/run", json=asking("fail"))
        streamed = await http.post("/run_sse", json=asking("fail"))
    assert run.json()["type"] == "urn:mongo-session-service:failed"
    assert '"error": "ValueError: The agent has failed; see' in streamed.text
    assert "secret" not in run.text + streamed.text.split("data: ")[-1]
    assert "a secret of the agent's" in caplog.text


async def test_a_runner_is_of_its_app(
    service: MongoSessionService, runner: Runner
) -> None:
    """Otherwise a run would be of another session than the one asked for."""
    with pytest.raises(ConfigurationError, match="'other' is of the app 'chat'"):
        adk_router(service, authorize=allow_everyone, runners={"other": runner})
