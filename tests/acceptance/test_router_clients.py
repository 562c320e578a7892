"""The session routes as others meet them: another site's page, a generated client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.async_api import Browser
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from support import npm
from support.http_paths import SESSION, app_of
from support.http_server import serving
from support.subscriptions import SESSION as IDS

from mongo_session_service import MongoSessionService
from mongo_session_service.http import allow_everyone, sessions_router

pytestmark = pytest.mark.release

USE = """
import type { paths } from "./routes";

type All = "/apps/{app_name}/users/{user_id}/sessions";
type Sessions = paths[All]["get"];
type Answer = Sessions["responses"][200]["content"]["application/json"];
type Turn = paths[`${All}/{session_id}/turns`]["post"];
type Begun = Turn["responses"][202]["content"]["application/json"];

export function title(answer: Answer): string | null {
  return answer.sessions[0].title;
}
export const epoch = (begun: Begun): number => begun.epoch;
// @ts-expect-error: it is a number
export const wrong = (answer: Answer): string => answer.sessions[0].revision;
"""


async def test_a_page_of_another_site_writes_nothing(
    service: MongoSessionService, browser: Browser
) -> None:
    """Neither by a form, nor by a script, though everybody may do everything."""
    await service.create_session(**IDS)
    async with serving(app_of(service)) as url:
        target = f"{url}{SESSION}"
        html = f"""
            <form id="f" method="post" enctype="text/plain" action="{target}/fork">
            </form>"""
        foreign = Starlette(routes=[Route("/", lambda _: HTMLResponse(html))])
        async with serving(foreign) as other:
            page = await browser.new_page()  # whose refusals nobody minds
            await page.goto(other)
            outcomes = await page.evaluate(
                """async (target) => {
                  const outcomes = [];
                  for (const [path, method, headers] of [
                    ["/fork", "POST", {}],
                    ["/fork", "POST", { "Content-Type": "text/plain" }],
                    ["/fork", "POST", { "Content-Type": "application/json" }],
                    ["/turn", "DELETE", {}],
                    ["", "PATCH", { "Content-Type": "application/json" }],
                    ["", "DELETE", {}],
                  ]) {
                    const isSimple = headers["Content-Type"] !== "application/json";
                    const mode = method === "POST" && isSimple ? "no-cors" : "cors";
                    const asked = { method, headers, mode };
                    const done = fetch(target + path, asked);
                    outcomes.push(await done.then((r) => r.type, () => "refused"));
                  }
                  return outcomes;
                }""",
                target,
            )
            async with page.expect_navigation():
                await page.evaluate("document.getElementById('f').submit()")
            answered = json.loads(await page.inner_text("body"))
    assert outcomes == ["opaque", "opaque", *["refused"] * 4]
    assert answered["status"] == 403
    listed = await service.list_sessions(
        app_name=IDS["app_name"], user_id=IDS["user_id"]
    )
    assert [each.id for each in listed.sessions] == [IDS["session_id"]]
    assert (await service.find_sessions(app_name="app")).sessions[0].title is None


def test_a_client_is_generated_from_the_schema(
    service: MongoSessionService, tmp_path: Path
) -> None:
    """Types by npm's openapi-typescript, with which a program compiles."""
    app = FastAPI()
    runner: object = object()
    app.include_router(
        sessions_router(service, authorize=allow_everyone, runner=runner)  # type: ignore[arg-type]
    )
    (tmp_path / "openapi.json").write_text(json.dumps(app.openapi()))
    (tmp_path / "use.ts").write_text(USE)
    packages = ("openapi-typescript@7", "typescript@5")
    binaries = npm.install(tmp_path, *packages) / ".bin"
    for command in (
        [binaries / "openapi-typescript", "openapi.json", "-o", "routes.ts"],
        [binaries / "tsc", "--strict", "--noEmit", "--skipLibCheck", "use.ts"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
