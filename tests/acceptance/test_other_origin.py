"""A page of another origin, in a browser, which logs in by a bearer token."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.adk.events import Event
from google.auth import jwt
from google.auth.crypt import RSASigner
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from support.adk_tools import with_database
from support.doc_blocks import blocks_of
from support.http_server import serving

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded.mongod import HOST, free_ports

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide/other-origin.md"
FILES = {block.title: block.text for block in blocks_of(GUIDE)}
FILES["stream.js"] = (ROOT / "examples/stream.js").read_text()
HTML = """<!doctype html><link rel="icon" href="data:,"><p></p><script type="module">
import { follow } from "/stream.js";
const [api, token] = decodeURIComponent(location.hash.slice(1)).split(" ");
const add = (text) => document.querySelector("p").append(text + " ");
window.send = async (method, path, body) => {
  const headers = { authorization: `Bearer ${token}` };
  headers["content-type"] = "application/json";
  const given = { method, headers, body: JSON.stringify(body) };
  return (await fetch(api + path, given)).status;
};
const url = `${api}/apps/chat/users/ada/sessions/s/changes`;
add((await follow(url, () => token, (kind, { title }) => add(title ?? kind))).detail);
</script>"""


class Login:
    """What signs tokens, and the key that checks them."""

    def __init__(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        self.signer = RSASigner.from_string(private)
        self.public = (
            key.public_key()
            .public_bytes(
                serialization.Encoding.PEM,
                serialization.PublicFormat.SubjectPublicKeyInfo,
            )
            .decode()
        )

    def token(self, user: str) -> str:
        now = int(time.time())
        claims = {"sub": user, "aud": "chat", "iat": now, "exp": now + 600}
        return jwt.encode(self.signer, claims).decode()


async def test_a_page_of_another_origin_reads_and_writes_by_a_token(
    service: MongoSessionService,
    page: Page,
    mongodb_uri: str,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guide's server and script: a stream, a write, a refusal, a deletion."""
    login, (first, second) = Login(), free_ports(2)
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    monkeypatch.setenv("KEY", login.public)
    monkeypatch.setenv("PAGE", f"http://{HOST}:{second}")
    program = tmp_path / "api.py"
    program.write_text(FILES["api.py"])
    spec = importlib.util.spec_from_file_location("api", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    html, script = (
        HTMLResponse(HTML),
        Response(FILES["stream.js"], 200, None, "text/javascript"),
    )
    front = Starlette(
        routes=[
            Route("/", lambda _: html),
            Route("/stream.js", lambda _: script),
        ]
    )
    ids = {"app_name": "chat", "user_id": "ada", "session_id": "s"}
    session = await service.create_session(**ids)
    one = "/apps/chat/users/ada/sessions/s"
    async with (
        module.service,
        serving(module.app, first) as api,
        serving(front, second) as pages,
    ):
        shown = page.locator("p")
        await page.goto(f"{pages}#{api} {login.token('ada')}")
        await expect(shown).to_have_text("snapshot ")
        await service.append_event(session, Event(author="agent"))
        await expect(shown).to_have_text("snapshot appended ")
        send = "([method, path, body]) => send(method, path, body)"
        assert await page.evaluate(send, ["PATCH", one, {"title": "Trip"}]) == 200
        await expect(shown).to_have_text("snapshot appended Trip ")
        others = one.replace("ada", "eve")
        assert await page.evaluate(send, ["PATCH", others, {"title": "Mine"}]) == 403
        assert await page.evaluate(send, ["DELETE", one, None]) == 200
        await expect(shown).to_have_text(
            "snapshot appended Trip deleted There is no such session. "
        )
        await page.goto("about:blank")
        await page.goto(f"{pages}#{api} nobody's")
        await expect(shown).to_have_text("Log in. ")
