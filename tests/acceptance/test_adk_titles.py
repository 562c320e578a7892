"""Titles in ADK's web interface, as its users see and change them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Response, expect
from support.adk_tools import APP, adk, sessions_of, with_database, write_agents

from mongo_session_service import MongoSessionService

SESSION = {"app_name": APP, "user_id": "user", "session_id": "s1"}


def _is_rename(response: Response) -> bool:
    return response.request.method == "PATCH" and response.ok


@pytest.mark.release
async def test_a_rename_is_seen_on_the_other_side(
    browser: Browser,
    tmp_path: Path,
    mongodb_uri: str,
    database: str,
    service: MongoSessionService,
) -> None:
    """What is renamed there is found by its title here, and the other way round."""
    agents_dir = tmp_path / "agents"
    write_agents(agents_dir)
    await service.create_session(**SESSION, title="Made here")
    page = await browser.new_page()
    chosen = page.locator("app-session-tab .session-id")
    label = page.locator(".selector-label").nth(1)
    with adk("web", agents_dir, with_database(mongodb_uri, database)) as server:
        address = f"{server.api.base_url}/dev-ui/?app={APP}&userId=user&session=s1"
        await page.goto(address)
        await page.get_by_text("No Thanks").click()
        await expect(label).to_have_text("Made here")
        await label.click()
        await expect(chosen).to_have_text(["Made here"])

        await page.get_by_label("Edit", exact=True).click()
        name = page.locator("app-inline-edit input")
        await name.fill("Renamed there")
        async with page.expect_response(_is_rename):
            await name.press("Enter")
        await expect(label).to_have_text("Renamed there")
        stored = server.api.get(f"{sessions_of('user')}/s1").json()
        found = await service.find_sessions(app_name=APP, title="Renamed there")
        await service.update_session(**SESSION, title="Renamed here")
        await page.reload()
        await expect(label).to_have_text("Renamed here")
        await label.click()
        await expect(chosen).to_have_text(["Renamed here"])

    assert stored["state"] == {"__session_metadata__": {"displayName": "Renamed there"}}
    assert [each.id for each in found.sessions] == ["s1"]
