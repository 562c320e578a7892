"""Pages of another origin: those that are trusted may use the routes, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException
from support.http_paths import CHANGES, SESSION, USER
from support.http_server import Client, serving
from support.subscriptions import SESSION as KEY

from mongo_session_service import MongoSessionService
from mongo_session_service.http import adk_router, allow_everyone, sessions_router

PAGE = "https://app.example"
OTHERS = ("https://app.example.evil", "http://app.example", "null", "")
ALLOWED = "access-control-allow-origin"


async def refuse_all() -> None:
    raise HTTPException(401, "Log in.")


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Routes that trust a page, ADK's beside them, and behind a login as well."""
    await service.create_session(**KEY)
    given: dict[str, Any] = {"authorize": allow_everyone, "trusted_origins": [PAGE]}
    app = FastAPI()
    app.include_router(sessions_router(service, **given))
    app.include_router(adk_router(service, runners={}, **given), prefix="/adk")
    app.include_router(
        sessions_router(service, **given),
        prefix="/login",
        dependencies=[Depends(refuse_all)],
    )
    app.add_api_route("/apps/mine", lambda: "mine", methods=["DELETE"])
    async with serving(app) as url:
        yield url


async def preflight(url: str, method: str, origin: str = PAGE) -> httpx.Response:
    headers = {"Origin": origin, "Access-Control-Request-Method": method}
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.request("OPTIONS", url, headers=headers)


@pytest.mark.parametrize("prefix", ["", "/login"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{USER}/sessions"),
        ("PATCH", SESSION),
        ("PATCH", f"{USER}/sessions/a%2Fb"),
        ("PUT", f"{SESSION}/shown"),
        ("GET", CHANGES),
    ],
)
async def test_preflights_of_trusted_pages_are_answered(
    url: str, method: str, path: str, prefix: str
) -> None:
    """Before any login, which a browser does not send with them."""
    answer = await preflight(f"{url}{prefix}{path}", method)

    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers[ALLOWED] == PAGE
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    fields = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "last-event-id"} <= {*fields}


async def test_adks_routes_share_as_well(url: str) -> None:
    """Preflights, and answers."""
    for path in ("/run", "/run_sse", "/list-apps", SESSION):
        assert (await preflight(f"{url}/adk{path}", "POST")).headers[ALLOWED] == PAGE
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{url}/adk/list-apps", headers={"Origin": PAGE})
    assert answer.headers[ALLOWED] == PAGE


@pytest.mark.parametrize("origin", OTHERS)
async def test_no_other_page_is_answered(url: str, origin: str) -> None:
    """Neither its preflight nor by a header, whatever its origin resembles."""
    refused = await preflight(f"{url}{SESSION}", "DELETE", origin)
    async with httpx.AsyncClient(trust_env=False) as http:
        read = await http.get(f"{url}{SESSION}", headers={"Origin": origin})
    assert refused.status_code == 405
    assert not any(
        "access-control" in name for name in [*refused.headers, *read.headers]
    )


async def test_other_routes_of_the_app_stay_closed(url: str) -> None:
    """An application's own are answered as it has them."""
    refused = await preflight(f"{url}/apps/mine", "DELETE")
    assert refused.status_code == 405
    assert ALLOWED not in refused.headers


async def test_answers_and_refusals_are_shared(url: str) -> None:
    """Also streams, with the headers that a page is to read."""
    headers = {"Origin": PAGE}
    async with httpx.AsyncClient(trust_env=False, headers=headers) as http:
        found = await http.get(f"{url}{SESSION}")
        missing = await http.get(f"{url}{USER}/sessions/none")
        invalid = await http.patch(f"{url}{SESSION}", json={"tilte": "T"})
    async with Client(f"{url}{CHANGES}", headers) as stream:
        answers = [found, missing, invalid, stream.response]
    assert [each.status_code for each in answers] == [200, 404, 422, 200]
    for each in answers:
        assert each.headers[ALLOWED] == PAGE
        assert each.headers["vary"] == "Origin"
        shown = each.headers["access-control-expose-headers"]
        assert shown == "Permitted-Actions, Retry-After"
