"""A client in TypeScript, whose types come from the OpenAPI document in docs/."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import npm

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/reference/openapi.json"
OWN = {
    *("BranchList", "EventList", "ForkRequest", "Problem", "SessionChange"),
    *("SessionList", "SessionSummary", "SessionUpdate", "TurnBegun", "TurnFields"),
    *("TurnRequest", "TurnStop"),
}
STRICT = ("--strict", "--noEmit", "--target", "es2022", "--lib", "es2022,dom")


def made() -> dict[str, Any]:
    """The document that the script makes."""
    path = str(ROOT / "scripts/openapi")
    loader = importlib.machinery.SourceFileLoader("openapi", path)
    spec = importlib.util.spec_from_loader("openapi", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    document: dict[str, Any] = module.document()
    return document


def test_the_document_is_up_to_date() -> None:
    """What ``scripts/openapi`` writes, but for models that are ADK's own."""
    stored, now = json.loads(DOCUMENT.read_text()), json.loads(json.dumps(made()))
    assert stored["paths"] == now["paths"]
    for each in OWN:
        assert (
            stored["components"]["schemas"][each]
            == (now["components"]["schemas"][each])
        )


def test_the_document_says_what_is_so() -> None:
    """Short ids, one named problem, the statuses and headers; all that it names is."""
    document = made()
    schemas = document["components"]["schemas"]
    operations = {
        it["operationId"]: it
        for path in document["paths"].values()
        for it in path.values()
    }
    assert {"list_sessions", "get_session", "start_turn"} < operations.keys()
    assert "required" not in schemas["TurnRequest"]
    assert "errors" not in schemas["Problem"]["required"]
    for name in ("streaming", "interrupt"):
        assert "default" not in schemas["TurnRequest"]["properties"][name]
    responses = operations["start_turn"]["responses"]
    assert {"202", "403", "404", "409", "413", "415", "422", "503"} == {*responses}
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for status in responses.keys() - {"202"}:
        assert responses[status]["content"] == {"application/problem+json": problem}
    assert "Retry-After" in responses["503"]["headers"]
    stream = operations["stream_session"]["responses"]["200"]
    assert "Permitted-Actions" in stream["headers"]
    item = stream["content"]["text/event-stream"]["itemSchema"]["properties"]["data"]
    assert item["contentSchema"] == {"$ref": "#/components/schemas/SessionChange"}
    text = json.dumps(document)
    named = {it.partition('"')[0] for it in text.split("#/components/schemas/")[1:]}
    assert named <= schemas.keys()


@pytest.mark.release
def test_a_typed_client_compiles(tmp_path: Path) -> None:
    """The example, strictly; one that takes a refusal's mistakes for given does not."""
    modules = npm.install(tmp_path, "openapi-typescript@7", "typescript@5")
    types = [modules / ".bin/openapi-typescript", DOCUMENT, "-o", "api.d.ts"]
    subprocess.run(types, cwd=tmp_path, check=True, capture_output=True)

    def compiled(program: str) -> subprocess.CompletedProcess[bytes]:
        (tmp_path / "client.ts").write_text(program)
        compiler = [modules / ".bin/tsc", *STRICT, "client.ts"]
        return subprocess.run(compiler, cwd=tmp_path, check=False, capture_output=True)

    program = (ROOT / "examples/client.ts").read_text()
    done = compiled(program)
    assert done.returncode == 0, done.stdout
    wrong = compiled(program + "export const first = (it: Problem) => it.errors[0];\n")
    assert b"TS2532" in wrong.stdout or b"TS18048" in wrong.stdout, wrong.stdout
