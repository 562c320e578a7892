"""What the live page is served with, and the list of sessions it offers."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from google.adk.sessions import Session
from support.http_paths import CHANGES, EVENTS, app_of
from support.http_paths import SESSION as PATH
from support.http_server import may_read, serving
from support.subscriptions import SESSION, new_event

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import live_app

PARTS = {
    each.name: each.read_text("utf-8")
    for each in files("mongo_session_service.http").joinpath("static").iterdir()
    if each.is_file()  # its folder of foreign code is not
}


async def answer(app: Any, path: str, **headers: str) -> httpx.Response:
    async with serving(app) as url, httpx.AsyncClient(trust_env=False) as http:
        return await http.get(f"{url}{path}", headers=headers)


async def session(service: MongoSessionService, session_id: str) -> Session:
    return await service.create_session(**{**SESSION, "session_id": session_id})


@pytest.mark.parametrize("name", PARTS)
def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup(name: str) -> None:
    """The page loads nothing, and never reads text as markup or as a program."""
    text = PARTS[name]

    elsewhere = r"(?:src|href)=.https?:|@import|url\(|import\((?!\"\./)"
    assert not re.findall(elsewhere, text)
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(|"
        r"DOMParser|setHTML|srcdoc| on\w+=",
        text,
    )


async def test_the_pages_policy_allows_its_own_scripts_only(
    service: MongoSessionService,
) -> None:
    """Scripts, styles and connections are of its own server."""
    for path in ("/", "/static/live.js"):
        response = await answer(live_app(service, authorize=may_read), path)

        policy = response.headers["content-security-policy"]
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self';"
            " connect-src 'self'; img-src data:;"
        )
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


async def test_a_script_and_a_style_are_served_as_such(
    service: MongoSessionService,
) -> None:
    """Each part has its type, also below a path; nothing else can be had by that."""
    app = FastAPI()
    app.mount("/some/prefix", live_app(service, authorize=may_read))

    page = await answer(app, "/some/prefix/")
    script = await answer(app, "/some/prefix/static/live.js")
    style = await answer(app, "/some/prefix/static/live.css")
    foreign = await answer(app, "/some/prefix/static/vendor/markdown-it-15.0.3.js")

    assert page.text == PARTS["live.html"]
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert script.text == PARTS["live.js"]
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert "@license MIT" in foreign.text
    assert foreign.headers["content-type"] == "text/javascript; charset=utf-8"
    for name in (
        "",
        "none.js",
        "../live.py",
        "..%2Flive.py",
        "%2Fetc%2Fpasswd",
        "vendor/",
    ):
        response = await answer(app, f"/some/prefix/static/{name}")
        assert response.status_code == 404
    refs = re.findall(r'(?:src|href)="([^"#?]+)"', page.text)
    assert [each for each in refs if not each.startswith("static/")] == ["data:,"]


async def test_the_list_has_permitted_sessions(service: MongoSessionService) -> None:
    """Those created last come first."""
    first = await session(service, "first")
    for session_id in ("hidden", "second"):
        await session(service, session_id)
    await service.append_event(first, new_event(hidden=1))
    app = live_app(
        service, authorize=lambda _, *, session_id, **__: session_id != "hidden"
    )

    response = await answer(app, "/apps/app/sessions")

    shown = response.json()["sessions"]
    assert [each["session_id"] for each in shown] == ["second", "first"]
    assert shown[1]["revision"] == 1
    assert shown[1]["last_update_time"] == first.last_update_time
    assert response.headers["cache-control"] == "no-store"


async def test_the_local_app_answers_to_no_foreign_name(
    service: MongoSessionService,
) -> None:
    """A page elsewhere cannot read along by having a name of its own point here."""
    app = live_app(service, authorize=may_read)

    for path in ("/", "/apps", "/changes", PATH):
        response = await answer(app, path, Host="attacker.example")

        assert response.status_code == 400, path


@pytest.mark.parametrize("within", [{"app_name": "other"}, {"user_id": "other"}])
@pytest.mark.parametrize("path", [PATH, CHANGES, EVENTS])
async def test_a_session_of_somebody_else_is_not_shown(
    service: MongoSessionService, within: dict[str, str], path: str
) -> None:
    """Whatever authorize permits: the app is of one app or user alone."""
    await session(service, "s")
    app = live_app(service, authorize=may_read, **within)

    response = await answer(app, path)

    assert response.status_code == 403


TOKEN = "s3cr3t-token_"  # noqa: S105  of these tests
GUARDED = [*("/apps", "/changes", "/apps/app/sessions", PATH, CHANGES)]


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize("query", ["", "token=", "token=s3cr3t", "token=%ff%00"])
async def test_a_request_without_the_token_gets_no_data(
    service: MongoSessionService, path: str, query: str
) -> None:
    """Whatever exists, and whatever else shows that it is known."""
    await session(service, "s")
    app = live_app(service, authorize=may_read, token=TOKEN)

    refused = await answer(
        app, f"{path}?{query}", Cookie=f"token={TOKEN}", Authorization="Bearer s3cr3t"
    )

    assert refused.status_code == 401
    assert refused.headers["cache-control"] == "no-store"
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "token" in refused.json()["detail"]
    assert TOKEN not in refused.text


@pytest.mark.parametrize("path", GUARDED)
async def test_the_token_is_in_the_address_or_in_a_header(
    service: MongoSessionService, path: str
) -> None:
    """No cookie has it: that would go to each port of the host."""
    await session(service, "s")
    app = live_app(service, authorize=may_read, token=TOKEN)

    async with serving(app) as url, httpx.AsyncClient(trust_env=False) as http:
        for query, headers in (
            (f"?token={TOKEN}", {}),
            ("", {"Authorization": f"Bearer {TOKEN}"}),
        ):
            target = f"{url}{path}{query}"
            async with http.stream("GET", target, headers=headers) as response:
                assert response.status_code == 200
                assert "set-cookie" not in response.headers


@pytest.mark.parametrize("token", ["", " ", "\t\n"])
def test_a_blank_token_is_refused(service: MongoSessionService, token: str) -> None:
    """A variable that is not set opens the page to nobody."""
    with pytest.raises(ConfigurationError, match="token of live_app is empty"):
        live_app(service, authorize=may_read, token=token)


async def test_the_routes_of_the_page_are_those_of_the_router(
    service: MongoSessionService,
) -> None:
    """What the page reads of a session is what any application serves."""
    await session(service, "s")
    app = live_app(service, authorize=may_read)

    for path in (PATH, EVENTS, "/apps/app/users/user/sessions"):
        assert (await answer(app, path)).json() == (
            await answer(app_of(service), path)
        ).json()
