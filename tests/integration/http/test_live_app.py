"""What the live page is served with, and the list of sessions it offers."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from google.adk.sessions import Session
from starlette.applications import Starlette
from starlette.routing import Mount
from support.http_server import may_read, serving
from support.subscriptions import SESSION, new_event

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import live_app, live_page_route

PARTS = {
    each.name: each.read_text("utf-8")
    for each in files("mongo_session_service.http").joinpath("static").iterdir()
}

CHANGES = f"/changes?{urlencode(SESSION)}"


async def answer(app: Any, path: str, **headers: str) -> httpx.Response:
    async with serving(app) as url, httpx.AsyncClient(trust_env=False) as http:
        return await http.get(f"{url}{path}", headers=headers)


async def session(service: MongoSessionService, session_id: str) -> Session:
    return await service.create_session(**{**SESSION, "session_id": session_id})


@pytest.mark.parametrize("name", PARTS)
def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup(name: str) -> None:
    """The page loads nothing, and never reads text as markup or as a program."""
    text = PARTS[name]

    assert not re.findall(r"(?:src|href)=.https?:|@import|url\(|import\(", text)
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(|"
        r"DOMParser|setHTML|srcdoc| on\w+=",
        text,
    )


@pytest.mark.parametrize(
    ("path", "changes", "shown"),
    [
        ("/live", "/changes", "./changes"),
        ("/", "/changes", "./changes"),
        ("/debug/live", "/changes", "./../changes"),
        ("/live/", "/api/changes", "./../api/changes"),
    ],
)
async def test_the_page_finds_its_changes_behind_any_prefix(
    path: str, changes: str, shown: str
) -> None:
    """Where the changes are is told from where the page is."""
    route = live_page_route(path, changes=changes)
    app = Starlette(routes=[Mount("/some/prefix", routes=[route])])

    response = await answer(app, f"/some/prefix{path}")

    assert f'<meta name="changes-url" content="{shown}">' in response.text
    assert '<meta name="sessions-url" content="">' in response.text


async def test_the_browser_is_told_to_run_nothing_else() -> None:
    """The page's policy allows its own scripts and styles, and its own server."""
    app = Starlette(routes=[live_page_route()])
    nonces = set()

    for response in (await answer(app, "/live"), await answer(app, "/live")):
        policy = response.headers["content-security-policy"]
        (nonce,) = set(re.findall(r"'nonce-([\w-]{40,})'", policy))
        nonces.add(nonce)
        assert policy.startswith(
            f"default-src 'none'; script-src 'nonce-{nonce}' 'self';"
            f" style-src 'nonce-{nonce}' 'self'; connect-src 'self'; img-src data:;"
        )
        assert "unsafe" not in policy
        assert response.text.count(f'nonce="{nonce}"') == 3
        assert response.headers["x-content-type-options"] == "nosniff"

    assert len(nonces) == 2, "a nonce that can be known beforehand protects nothing"


async def test_a_script_and_a_style_are_served_as_such() -> None:
    """Each part has its type; nothing else can be had by that way."""
    app = Starlette(routes=[Mount("/prefix", routes=[live_page_route("/x/live")])])

    page = await answer(app, "/prefix/x/live")
    script = await answer(app, "/prefix/x/live?file=live.js")
    style = await answer(app, "/prefix/x/live?file=live.css")

    assert 'src="./live?file=live.js"' in page.text
    assert '"./values.js": "./live?file=values.js"' in page.text
    assert script.text == PARTS["live.js"]
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert script.headers["x-content-type-options"] == "nosniff"
    for name in ("live.html", "", "../live_page.py", "none.js"):
        response = await answer(app, f"/prefix/x/live?file={name}")
        assert response.status_code == 404


async def test_the_list_has_what_may_be_read_and_says_where_it_is(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Those created last come first, of what authorize allows, with the database."""
    first = await session(service, "first")
    for session_id in ("hidden", "second"):
        await session(service, session_id)
    await service.append_event(first, new_event(hidden=1))
    app = live_app(
        service, authorize=lambda _, *, session_id, **__: session_id != "hidden"
    )

    response = await answer(app, "/sessions")

    place, shown = response.json()["database"], response.json()["sessions"]
    assert place["name"] == database
    assert place["server"] in mongodb_uri
    assert [each["key"]["session_id"] for each in shown] == ["second", "first"]
    assert shown[1]["revision"] == 1
    assert shown[1]["last_update_time"] == first.last_update_time
    assert response.headers["cache-control"] == "no-store"


async def test_the_local_app_answers_to_no_foreign_name(
    service: MongoSessionService,
) -> None:
    """A page elsewhere cannot read along by having a name of its own point here."""
    app = live_app(service, authorize=may_read)

    for path in ("/", "/sessions", "/changes"):
        response = await answer(app, path, Host="attacker.example")

        assert response.status_code == 400, path


@pytest.mark.parametrize("within", [{"app_name": "other"}, {"user_id": "other"}])
@pytest.mark.parametrize("ask", ["", "&at_revision=0", "&list=events"])
async def test_a_session_of_somebody_else_is_not_shown(
    service: MongoSessionService, within: dict[str, str], ask: str
) -> None:
    """Whatever authorize permits: the app is of one app or user alone."""
    await session(service, "s")
    app = live_app(service, authorize=may_read, **within)

    response = await answer(app, f"{CHANGES}{ask}")

    assert response.status_code == 403


async def test_the_local_app_needs_authorize_too(service: MongoSessionService) -> None:
    """Forgetting who may read is refused here as well."""
    with pytest.raises(ConfigurationError, match="authorize"):
        live_app(service, authorize=None)


TOKEN = "s3cr3t-token_"  # noqa: S105  of these tests


@pytest.mark.parametrize("path", ["/sessions", CHANGES, "/elsewhere"])
@pytest.mark.parametrize("query", ["", "token=", "token=s3cr3t", "token=%ff%00"])
async def test_without_its_token_nothing_is_answered(
    service: MongoSessionService, path: str, query: str
) -> None:
    """Neither the page nor data, whatever exists."""
    await session(service, "s")
    app = live_app(service, authorize=may_read, token=TOKEN)

    target = f"{path}{'&' if '?' in path else '?'}{query}"
    refused = await answer(app, target, Cookie="live-80=s3cr3t")

    assert refused.status_code == 401
    assert refused.headers["cache-control"] == "no-store"
    assert "set-cookie" not in refused.headers
    assert "token" in refused.json()["detail"]
    assert TOKEN not in refused.text


@pytest.mark.parametrize("path", ["/", "/sessions", CHANGES])
async def test_the_token_is_taken_once_and_then_from_a_cookie(
    service: MongoSessionService, path: str
) -> None:
    """The cookie is for this port alone, for no other site, and for no script."""
    await session(service, "s")
    app = live_app(service, authorize=may_read, token=TOKEN)

    async with serving(app) as url, httpx.AsyncClient(trust_env=False) as http:
        joint = "&" if "?" in path else "?"
        statuses = []
        for target in (f"{path}{joint}token={TOKEN}", path):
            async with http.stream("GET", f"{url}{target}") as response:
                statuses.append(response.status_code)
                cookie = response.headers.get("set-cookie", "")
                assert ("set-cookie" in response.headers) == (target != path)
                if cookie:
                    name, _, attributes = cookie.partition("=")
                    assert name == f"live-{httpx.URL(url).port}"
                    assert attributes == f"{TOKEN}; HttpOnly; Path=/; SameSite=Strict"

    assert statuses == [200, 200]
