"""What an application's OpenAPI document has for requests that FastAPI refuses."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from mongo_session_service import MongoSessionService
from mongo_session_service.http import (
    add_error_handlers,
    allow_everyone,
    sessions_router,
)


class Order(BaseModel):
    """A body of the application's own."""

    count: int


class Mistake(BaseModel):
    """What the application itself answers an invalid request with."""

    why: str


@pytest.mark.parametrize("has_sessions", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
async def test_a_route_declares_the_problem_that_is_sent(
    service: MongoSessionService, *, has_sessions: bool, is_early: bool
) -> None:
    """Whenever the handlers are added; what it declares by itself stays."""
    app = FastAPI()
    if is_early:
        add_error_handlers(app)
    if has_sessions:
        app.include_router(sessions_router(service, authorize=allow_everyone))

    @app.post("/orders/{number}")
    async def order(number: int, body: Order) -> int:
        return number + body.count

    @app.post("/own", responses={422: {"model": Mistake}})
    async def own(body: Order) -> int:
        return body.count

    if not is_early:
        add_error_handlers(app)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        sent = await http.post("/orders/1", json={})
        document = (await http.get("/openapi.json")).json()

    declared = document["paths"]["/orders/{number}"]["post"]["responses"]["422"]
    (kind, content), *others = declared["content"].items()
    assert (kind, others) == (sent.headers["content-type"], [])
    assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
    problem = document["components"]["schemas"]["Problem"]
    assert {*problem["required"]} <= {*sent.json()} == {*problem["properties"]}
    kept = document["paths"]["/own"]["post"]["responses"]["422"]["content"]
    assert [*kept] == ["application/json"]
    assert "Mistake" in str(kept)
    assert document == app.openapi()


def test_an_application_without_routes_has_a_document() -> None:
    """There is nothing to declare then."""
    app = FastAPI()
    add_error_handlers(app)
    assert app.openapi()["paths"] == {}
