"""Pictures in messages: as they are sent, or as artifacts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.artifacts import FileArtifactService
from google.adk.plugins.save_files_as_artifacts_plugin import SaveFilesAsArtifactsPlugin
from google.adk.runners import Runner
from support.http_paths import SESSION as PATH
from support.http_paths import app_of
from support.http_server import serving
from support.spoken_model import SpokenModel
from support.subscriptions import SESSION

from mongo_session_service import MongoSessionService
from mongo_session_service.http import adk_router, allow_everyone

PICTURE = bytes(range(256)) * 400
ENCODED = base64.b64encode(PICTURE).decode()
MESSAGE = {
    "role": "user",
    "parts": [
        {"text": "What is this?"},
        {
            "inlineData": {
                "mimeType": "image/png",
                "data": ENCODED,
                "displayName": "cat.png",
            }
        },
    ],
}


@pytest.fixture
async def runner(service: MongoSessionService) -> Runner:
    """That of an agent which has answered as soon as it is asked."""
    await service.create_session(**SESSION)
    model = SpokenModel()
    model.end_answer()
    agent = LlmAgent(name="agent", model=model)
    return Runner(agent=agent, app_name=SESSION["app_name"], session_service=service)


async def post(app: FastAPI, path: str, body: Any) -> httpx.Response:
    async with (
        serving(app) as url,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        return await http.post(f"{url}{path}", json=body)


@pytest.mark.parametrize("is_adks", [False, True])
async def test_a_picture_is_stored_with_its_message(
    service: MongoSessionService, runner: Runner, *, is_adks: bool
) -> None:
    """If the application allows such bodies, by whichever router; else 413 is sent."""
    path, more = f"{PATH}/turns", {}
    if is_adks:
        names = ("appName", "userId", "sessionId")
        path, more = "/run", dict(zip(names, SESSION.values(), strict=True))
    answers = []
    for options in ({}, {"max_body_bytes": 200_000}):
        if is_adks:
            app = FastAPI()
            of = {"runners": {runner.app_name: runner}, **options}
            app.include_router(adk_router(service, authorize=allow_everyone, **of))
        else:
            app = app_of(service, runner=runner, **options)
        body = {"newMessage": MESSAGE, **more}
        answers.append((await post(app, path, body)).status_code)
    assert answers == [413, 200 if is_adks else 202]
    async with service.turn(**SESSION) as session:  # once the answer is stored
        pass
    sent = session.events[0].content
    assert sent is not None
    assert sent.parts is not None
    blob = sent.parts[1].inline_data
    assert blob is not None
    assert (blob.mime_type, blob.data) == ("image/png", PICTURE)


async def test_a_picture_becomes_an_artifact(
    service: MongoSessionService, runner: Runner, tmp_path: Path
) -> None:
    """By ADK's plugin, before anything is stored: the session holds its name alone."""
    store = FileArtifactService(tmp_path)
    saving = Runner(
        app=App(
            name=runner.app_name,
            root_agent=runner.agent,
            plugins=[SaveFilesAsArtifactsPlugin()],
        ),
        session_service=service,
        artifact_service=store,
    )
    app = app_of(service, runner=saving, max_body_bytes=200_000)
    answer = await post(app, f"{PATH}/turns", {"newMessage": MESSAGE})
    assert answer.status_code == 202
    async with service.turn(**SESSION) as session:
        pass
    assert session.events[0].content is not None
    assert [each.text for each in session.events[0].content.parts or []] == [
        "What is this?",
        '[Uploaded Artifact: "cat.png"]',
    ]
    kept = await store.load_artifact(**SESSION, filename="cat.png")
    assert kept is not None
    assert kept.inline_data is not None
    assert kept.inline_data.data == PICTURE
