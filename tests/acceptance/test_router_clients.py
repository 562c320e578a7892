"""The session routes as others meet them: another site's page, a generated client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fastapi import FastAPI
from support import npm

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
