"""Import from, and verification against, whatever service a function returns."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from google.adk.integrations.redis import RedisSessionService
from google.adk.sessions import (
    BaseSessionService,
    DatabaseSessionService,
    InMemorySessionService,
)
from google.adk.sessions.base_session_service import ListSessionsResponse
from support.cli_runner import call
from support.sample_data import APPS, fill

Made = BaseSessionService | Awaitable[BaseSessionService]
OF_APPS = [word for app in APPS for word in ("--app", app)]


def sql(folder: Path) -> Callable[[], Made]:
    """ADK's SQL service, which a plain function returns."""
    return lambda: DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/old.db")


def redis(_: Path) -> Callable[[], Made]:
    """ADK's Redis service, which a coroutine function returns."""
    server = FakeServer()

    async def make() -> BaseSessionService:
        client = FakeAsyncRedis(server=server, decode_responses=True)
        return RedisSessionService(redis_client=client)

    return make


@pytest.mark.parametrize("store", [sql, redis])
async def test_any_service_is_imported_and_verified(
    store: Callable[[Path], Callable[[], Made]],
    mongodb_uri: str,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All events and state arrive; a second import finds nothing to do."""
    make = store(tmp_path)
    made = make()
    service = made if isinstance(made, BaseSessionService) else await made
    await fill(service)
    if isinstance(service, DatabaseSessionService):
        await service.close()
    monkeypatch.setitem(sys.modules, "my_app", SimpleNamespace(make=make))
    where = ["service", "my_app:make", mongodb_uri, "--database", database, *OF_APPS]

    imported, again = call("import", *where), call("import", *where)
    verified = call("verify", *where, "--exact")

    assert (imported.returncode, imported.stderr) == (0, "")
    assert "Moved 24 events from sessions of " in imported.stdout
    assert ": 5 new, 5 shared states.\n" in imported.stdout
    assert "Moved 0 events" in again.stdout
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "Compared 5 sessions with 24 events and 5 shared states" in verified.stdout


async def test_a_service_that_lists_one_user_only_is_imported_by_its_users(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of adk-extra-services and google-adk-extras do: name the users."""
    made = ListedByUser()
    await fill(made)
    monkeypatch.setitem(sys.modules, "my_app", SimpleNamespace(make=lambda: made))
    where = ["service", "my_app:make", mongodb_uri, "--database", database, *OF_APPS]
    users = ["--user", "ada", "--user", "bob/x", "--user", "carl"]

    refused = call("import", *where)
    imported = call("import", *where, *users)
    verified = call("verify", *where, *users, "--exact")

    assert refused.returncode == 1
    assert "name the users" in refused.stderr
    assert ": 5 new, 5 shared states.\n" in imported.stdout
    assert (verified.returncode, verified.stderr) == (0, "")


class ListedByUser(InMemorySessionService):
    """A service whose lists need a user."""

    async def list_sessions(  # type: ignore[override]
        self, *, app_name: str, user_id: str
    ) -> ListSessionsResponse:
        return await super().list_sessions(app_name=app_name, user_id=user_id)


async def test_the_service_is_closed(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the function has opened is closed again, once, when all is read."""
    closed: list[str] = []

    class Service(InMemorySessionService):
        async def close(self) -> None:
            closed.append("now")

    monkeypatch.setitem(sys.modules, "my_app", SimpleNamespace(Service=Service))

    call(
        *("import", "service", "my_app:Service", mongodb_uri),
        *("--database", database, *OF_APPS),
    )

    assert closed == ["now"]


def broken() -> BaseSessionService:
    raise ConnectionError("s3cr3t@db")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["my_app:memory"], 2, "Name the apps with --app"),
        (["my_app:memroy", "--app", "a"], 2, "Did you mean 'memory'?"),
        (["my_app", "--app", "a"], 2, "'my_app' is not MODULE:FUNCTION"),
        (["my_app:text", "--app", "a"], 2, "is not a function"),
        (["my_app:wrong", "--app", "a"], 1, "returned a dict, which is not a BaseSess"),
        (["my_app:broken", "--app", "a"], 1, "broken() failed with ConnectionError."),
        (["json:loads", "--app", "a"], 1, "called without arguments, and must return"),
        (["json:loads", "--app", "a"], 1, "a BaseSessionService. --debug shows where"),
        (["json:loads", "--app", "a", "--debug"], 1, "missing 1 required positional"),
        (["failing:make", "--app", "a"], 1, ": No such city. --debug shows where"),
        (["failing:make", "--app", "a", "--debug"], 1, "failing.py"),
        (["my_app:memory", "--app", "a"], 3, "The source has no matching session."),
    ],
)
def test_an_error_of_a_factory_names_the_remedy(
    mongodb_uri: str,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    """It quotes nothing of the factory's own error."""
    names = {"memory": InMemorySessionService, "broken": broken, "wrong": dict}
    monkeypatch.setitem(sys.modules, "my_app", SimpleNamespace(**names, text="x"))
    (tmp_path / "failing.py").write_text("raise OSError('No such city.')")
    monkeypatch.syspath_prepend(tmp_path)

    done = call(
        *("import", "service", arguments[0], mongodb_uri),
        *("--database", database, *arguments[1:]),
    )

    assert done.returncode == code
    assert says in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr
