"""Turns over HTTP: an agent that is asked by one request and read by others."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from support.http_paths import CHANGES, SESSION, USER_CHANGES, app_of
from support.http_server import Client, ServerEvent, serving
from support.spoken_model import SpokenModel
from support.subscriptions import SESSION as IDS

from mongo_session_service import ConfigurationError, MongoSessionService

QUESTION = {"newMessage": {"role": "user", "parts": [{"text": "What time is it?"}]}}


@pytest.fixture
async def model() -> SpokenModel:
    return SpokenModel()


@pytest.fixture
async def runner(service: MongoSessionService, model: SpokenModel) -> Runner:
    await service.create_session(**IDS)
    agent = LlmAgent(name="agent", model=model)
    return Runner(agent=agent, app_name=IDS["app_name"], session_service=service)


@pytest.fixture
async def url(service: MongoSessionService, runner: Runner) -> AsyncIterator[str]:
    """A server whose agent anybody may ask."""
    async with serving(app_of(service, runner=runner)) as url:
        yield url


async def send(
    url: str, method: str, path: str, body: Any = None, **headers: str
) -> httpx.Response:
    """A request of a program, which has no page."""
    more = {} if body is None else {"json": body}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.request(method, f"{url}{path}", headers=headers, **more)


async def read_until(client: Client, text: str) -> list[ServerEvent]:
    """What a stream sends until its texts, put together, are this one."""
    received: list[ServerEvent] = []
    while spoken(received) != text:
        received.append(await client.next())
    return received


def spoken(received: list[ServerEvent]) -> str:
    return "".join(
        part["text"]
        for each in received
        if each.kind == "partial"
        for part in each.data["event"]["content"]["parts"]
    )


@pytest.mark.parametrize(
    ("path", "query"), [(CHANGES, {}), (USER_CHANGES, {"session_id": "s"})]
)
async def test_an_answer_is_read_by_another_request(
    url: str, model: SpokenModel, path: str, query: dict[str, str]
) -> None:
    """And by one that comes back: it receives the rest, and nothing twice."""
    begun = await send(url, "POST", f"{SESSION}/turns", QUESTION)
    assert (begun.status_code, begun.json()) == (
        202,
        {"session_id": "s", "epoch": 1},
    )

    async with Client(f"{url}{path}", partials=True, **query) as client:
        model.say("It is ")
        first = await read_until(client, "It is ")
    model.say("late")
    back = {"Last-Event-ID": first[-1].id or ""}
    async with Client(f"{url}{path}", back, partials=True, **query) as client:
        rest = await read_until(client, "late")
        model.say(".")
        rest += await read_until(client, ".")
        model.end_answer()
        while rest[-1].kind != "appended":
            rest.append(await client.next())

    assert spoken([*first, *rest]) == "It is late."
    answer = rest[-1].data
    assert answer["event"]["content"]["parts"] == [{"text": "It is late."}]
    assert {each.data["event"]["id"] for each in rest if each.kind == "partial"} == {
        answer["event"]["id"]
    }
    turn = next(each.data["turn"] for each in first if each.kind == "turn")
    assert (turn["epoch"], turn["status"]) == (1, "running")


async def test_a_message_is_edited(
    url: str, model: SpokenModel, service: MongoSessionService
) -> None:
    """On a branch, which all tabs and lists show, as they do the version flipped to."""
    answer = await ask_and_hear(url, model, SESSION, QUESTION)
    root = {**IDS, "session_id": answer["session_id"]}
    session = await service.get_session(**root)
    assert session is not None
    invocation = session.events[0].invocation_id
    edit = {**QUESTION, "insteadOf": invocation}
    again = {"instead_of": invocation, "stateDelta": {"asked": "again"}}
    async with Client(f"{url}{USER_CHANGES}") as client:
        edited = await ask_and_hear(url, model, SESSION, edit)
        path = SESSION.removesuffix("s") + edited["session_id"]
        listed = (await send(url, "GET", f"{SESSION}/branches")).json()["branches"]
        shown = await send(url, "PUT", f"{SESSION}/shown")
        third = await ask_and_hear(url, model, SESSION, again)
        seen = []
        while len(seen) < 5:
            change = await client.next()
            if "is_shown" in change.data:
                fields = ("session_id", "root_id", "is_shown")
                seen.append((change.kind, *(change.data[it] for it in fields)))

    assert [(it["session_id"], it["is_shown"]) for it in listed] == [
        ("s", False),
        (edited["session_id"], True),
    ]
    assert (shown.status_code, shown.content) == (204, b"")
    assert edited["epoch"] == third["epoch"] == 1
    one, two = edited["session_id"], third["session_id"]
    of = seen[0][2]
    assert of not in {None, "s", one}
    assert seen == [
        ("created", one, of, True),
        ("updated", "s", of, False),
        ("updated", "s", of, True),
        ("updated", one, of, False),
        ("created", two, of, True),
    ]
    rows = (
        await send(url, "GET", f"{SESSION.removesuffix('/s')}?families=true")
    ).json()
    assert [
        (it["session_id"], it["root_id"], it["branches"]) for it in rows["sessions"]
    ]
    assert [it["session_id"] for it in rows["sessions"]] == [two]
    hidden = f"{SESSION.removesuffix('/s')}?families=true&session_id=s"
    assert (await send(url, "GET", hidden)).json()["sessions"] == []
    back = {"Last-Event-ID": "1"}
    async with Client(f"{url}{path}/changes", back) as client:
        resumed = [await client.next() for _ in range(2)]
    assert [(it.kind, it.data.get("is_shown")) for it in resumed] == [
        ("appended", None),
        ("updated", False),
    ]
    wrong = await send(url, "POST", f"{SESSION}/turns", {"instead_of": "x"})
    assert wrong.status_code == 422
    gone = f"{SESSION}gone"
    for method, end in (("GET", "branches"), ("PUT", "shown")):
        assert (await send(url, method, f"{gone}/{end}")).status_code == 404


async def test_an_edit_needs_the_permission_to_fork(
    service: MongoSessionService, runner: Runner
) -> None:
    """Who may only run the agent makes no session, and hides none."""

    def may(*_: object, action: str, **__: object) -> bool:
        return action in {"read", "run"}

    async with serving(app_of(service, runner=runner, authorize=may)) as url:
        edit = {**QUESTION, "insteadOf": "x"}
        refused = await send(url, "POST", f"{SESSION}/turns", edit)
        unknown = await send(url, "POST", f"{SESSION}/turns", {"insteadOf": ""})
    assert refused.status_code == 403
    assert unknown.status_code == 422
    assert len(await service.find_branches(**IDS)) == 1


async def test_a_permission_to_one_version_reaches_no_other(
    service: MongoSessionService, runner: Runner, model: SpokenModel
) -> None:
    """None that may not be read is named, and none hidden that may not be changed."""
    ids: list[Any] = ["s"]

    def may(_: object, *, session_id: str, **__: object) -> bool:
        return session_id not in closed

    async def ask(session_id: str, **edit: Any) -> httpx.Response:
        path = f"{SESSION.removesuffix('s')}{session_id}"
        return await send(url, "POST", f"{path}/turns", {**QUESTION, **edit})

    closed = set[str]()
    async with serving(app_of(service, runner=runner, authorize=may)) as url:
        model.end_answer()
        await ask_and_hear(url, model, SESSION, QUESTION)
        session = await service.get_session(**IDS)
        assert session is not None
        first = session.events[0].invocation_id
        for _ in range(2):
            edited = await ask_and_hear(
                url, model, SESSION, {**QUESTION, "insteadOf": first}
            )
            ids.append(edited["session_id"])

        stored = await service.find_branches(**IDS)
        for hidden in ({"s"}, {ids[1]}, {ids[2]}, {"s", ids[1]}):
            closed = hidden
            own = next(it for it in ids if it not in closed)
            path = f"{SESSION.removesuffix('s')}{own}"
            answer = await send(url, "GET", f"{path}/branches")
            listed = answer.json()["branches"]
            assert [it["session_id"] for it in listed] == [
                it for it in ids if it not in closed
            ]
            assert not any(f'"{it}"' in answer.text for it in closed)
            groups = {(it["version_of"], it["revision"]) for it in listed}
            assert len(groups) == len({it["session_id"] == "s" for it in listed})

        closed = {ids[2]}  # which is shown
        refused = [
            await send(url, "PUT", f"{SESSION}/shown"),
            await ask("s", insteadOf=first),
        ]
        assert [it.status_code for it in refused] == [403, 403]
        assert await service.find_branches(**IDS) == stored
        closed = {ids[1]}  # another hidden one
        allowed = await send(url, "PUT", f"{SESSION}/shown")
        assert allowed.status_code == 204


ANSWER = {"functionResponse": {"id": "c1", "name": "f", "response": {"ok": True}}}
SNAKE = {"function_response": {"id": "c1", "name": "f", "response": {"ok": True}}}


@pytest.mark.parametrize("known", [{"run"}, {"run", "fork", "update", "delete"}])
@pytest.mark.parametrize("parts", [[ANSWER], [SNAKE], [{"text": "Yes."}, ANSWER]])
async def test_who_may_talk_may_not_answer_a_waiting_call(
    service: MongoSessionService, runner: Runner, known: set[str], parts: list[Any]
) -> None:
    """A customer does not confirm their own refund, and a colleague may."""
    asked: list[str] = []

    def may(*_: object, action: str, **__: object) -> bool:
        asked.append(action)
        return action in known

    answer = {"newMessage": {"role": "user", "parts": parts}}
    async with serving(app_of(service, runner=runner, authorize=may)) as url:
        refused = await send(url, "POST", f"{SESSION}/turns", answer)
        known = known | {"answer"}
        begun = await send(url, "POST", f"{SESSION}/turns", answer)
    assert (refused.status_code, begun.status_code) == (403, 202)
    assert asked == ["run", "answer"] * 2


@pytest.mark.parametrize("edit", [{}, {"insteadOf": "x"}])
async def test_who_may_not_stop_a_turn_interrupts_none(
    service: MongoSessionService,
    runner: Runner,
    model: SpokenModel,
    edit: dict[str, str],
) -> None:
    """Neither the turn of the session, nor by an edit of one of its messages."""

    def may(*_: object, action: str, **__: object) -> bool:
        return action != "stop"

    async with serving(app_of(service, runner=runner, authorize=may)) as url:
        await send(url, "POST", f"{SESSION}/turns", QUESTION)
        interrupt = {**QUESTION, **edit, "interrupt": True}
        refused = await send(url, "POST", f"{SESSION}/turns", interrupt)
        turn = (await send(url, "GET", f"{SESSION}/turn")).json()
        model.end_answer()
    assert refused.status_code == 403
    assert (turn["epoch"], turn["status"]) == (1, "running")


async def ask_and_hear(
    url: str, model: SpokenModel, path: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Ask, have the model answer, and wait for the answer; return the response."""
    begun: dict[str, Any] = (await send(url, "POST", f"{path}/turns", body)).json()
    where = f"{path.rpartition('/')[0]}/{begun['session_id']}"
    model.say("late")
    model.end_answer()
    async with Client(f"{url}{where}/changes", after_revision=0) as client:
        while (await client.next()).data.get("event", {}).get("author") != "agent":
            pass
    return begun


async def test_a_turn_is_stopped(
    url: str, model: SpokenModel, service: MongoSessionService
) -> None:
    """By whoever may; then there is none to stop, and what was streamed is kept."""
    await send(url, "POST", f"{SESSION}/turns", QUESTION)
    async with Client(f"{url}{CHANGES}", partials=True) as client:
        model.say("It is")
        await read_until(client, "It is")
        stop = {"reason": "enough"}
        answer = await send(url, "DELETE", f"{SESSION}/turn", stop)
        assert answer.status_code == 202
        received = await client.next()
        while received.kind != "turn" or received.data["turn"]["status"] != "stopped":
            received = await client.next()
    assert received.data["turn"]["reason"] == "enough"
    none = await send(url, "DELETE", f"{SESSION}/turn")
    assert (none.status_code, none.json()["title"]) == (404, "Not Found")
    session = await service.get_session(**IDS)
    assert session is not None
    assert session.events[-1].content.parts[0].text == "It is"


async def test_a_list_receives_the_status_of_turns(
    url: str, model: SpokenModel, service: MongoSessionService
) -> None:
    """Of all of a user's sessions, without their content."""
    async with Client(f"{url}{USER_CHANGES}", partials=True) as client:
        await send(url, "POST", f"{SESSION}/turns", QUESTION)
        model.say("It is")
        async with service.watch(*IDS.values(), partials=True) as changes:
            async for change in changes:
                if change.kind == "partial":
                    break
        model.end_answer()
        received = await client.take(4)
    kinds = [each.kind for each in received]
    assert sorted(kinds) == ["appended", "appended", "turn", "turn"]
    turns = [each.data["turn"] for each in received if each.kind == "turn"]
    assert [each["status"] for each in turns] == ["running", "ended"]
    assert all("event" not in each.data for each in received)


async def test_a_second_request_for_a_turn_is_refused(
    url: str, model: SpokenModel
) -> None:
    """Or it stops the turn that runs, if it asks so."""
    await send(url, "POST", f"{SESSION}/turns", QUESTION)
    second = await send(url, "POST", f"{SESSION}/turns", QUESTION)
    assert second.status_code == 409
    why = "Another turn of the session runs. Wait for its end, or stop it."
    assert second.json()["detail"] == why

    third = await send(url, "POST", f"{SESSION}/turns", {**QUESTION, "interrupt": True})
    assert (third.status_code, third.json()) == (
        202,
        {"session_id": "s", "epoch": 2},
    )
    model.end_answer()
    await send(url, "DELETE", f"{SESSION}/turn")


NESTED: Any = functools.reduce(lambda inner, _: [inner], range(300), "s3cret")
BAD_REQUESTS = [
    ("/apps/app/users/user/sessions/missing/turns", QUESTION, 404),
    ("/apps/other/users/user/sessions/s/turns", QUESTION, 404),
    (f"{SESSION}/turns", {**QUESTION, "secret": 1}, 422),
    (f"{SESSION}/turns", {"newMessage": "hello"}, 422),
    (f"{SESSION}/turns", {"newMessage": {"role": "user"}}, 422),
    (f"{SESSION}/turns", {}, 422),
    (f"{SESSION}/turns", {**QUESTION, "stateDelta": {"x" * 4097: 1}}, 422),
    (f"{SESSION}/turns", {**QUESTION, "stateDelta": {"nested": NESTED}}, 422),
]


async def test_a_bad_request_runs_no_turn(
    url: str, service: MongoSessionService, subtests: pytest.Subtests
) -> None:
    """The answer names what is wrong, and nothing that was given."""
    for path, body, status in BAD_REQUESTS:
        with subtests.test(body=str(body)[:100]):
            answer = await send(url, "POST", path, body)
            assert (answer.status_code, answer.json()["status"]) == (status, status)
            assert "s3cret" not in answer.text
    assert await service.find_turns() == []


async def test_a_client_sets_state_of_the_session_alone(
    url: str, service: MongoSessionService, subtests: pytest.Subtests
) -> None:
    """The answer names whose state it would have been, not the value."""
    for key in ("app:prompt", "user:theme", "temp:admin", "__session_metadata__"):
        delta = {"mood": "good", key: {"displayName": "s3cret"}}
        body = {**QUESTION, "stateDelta": delta}
        with subtests.test(key=key):
            answer = await send(url, "POST", f"{SESSION}/turns", body)
            prefix = key[: key.find(":") + 1] or key
            assert answer.status_code == 422
            assert answer.json()["detail"].endswith(f"none of {prefix}")
            assert "s3cret" not in answer.text
    session = await service.get_session(**IDS)
    assert session is not None
    assert session.state == {}
    assert await service.find_turns() == []


async def test_an_application_allows_its_clients_more_state(
    service: MongoSessionService, runner: Runner, model: SpokenModel
) -> None:
    """Key by key, and nothing that only begins like it."""
    model.say("Good")
    model.end_answer()
    app = app_of(service, runner=runner, client_state=["user:theme"])
    async with serving(app) as url:
        for key, status in (("user:theme2", 422), ("user:theme", 202)):
            asked = {**QUESTION, "stateDelta": {key: "dark", "mood": "good"}}
            answer = await send(url, "POST", f"{SESSION}/turns", asked)
            assert answer.status_code == status
        state = await service.wait_for(**IDS, revision=2)

    assert state == {"user:theme": "dark", "mood": "good"}


def test_client_state_is_no_text(service: MongoSessionService) -> None:
    """Its letters would be the names."""
    with pytest.raises(ConfigurationError, match="client_state"):
        app_of(service, client_state="user:theme")


async def test_a_caller_without_permission_gets_no_information(
    service: MongoSessionService, runner: Runner
) -> None:
    """The answer depends neither on what exists nor on what runs."""

    async def only_read(_: Any, *, action: str, **__: object) -> bool:
        return action in {"read", "list"}

    async with serving(app_of(service, runner=runner, authorize=only_read)) as url:
        for method, path in (("POST", "turns"), ("DELETE", "turn")):
            for session in (SESSION, f"{SESSION}-missing"):
                answer = await send(url, method, f"{session}/{path}", {})
                assert answer.status_code == 403
    async with serving(app_of(service, runner=runner)) as url:
        foreign = await send(
            url, "POST", f"{SESSION}/turns", QUESTION, Origin="http://evil.example"
        )
        assert foreign.status_code == 403


async def test_without_a_runner_there_is_no_route_to_run_turns(
    service: MongoSessionService,
) -> None:
    """A turn can be stopped all the same."""
    await service.create_session(**IDS)
    async with serving(app_of(service)) as url:
        asked = await send(url, "POST", f"{SESSION}/turns", QUESTION)
        stopped = await send(url, "DELETE", f"{SESSION}/turn")
    assert asked.status_code == stopped.status_code == 404
