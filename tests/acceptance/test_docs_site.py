"""The site builds strictly, and leaves nothing public out."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongo_session_service
from mongo_session_service import adk, admin, embedded, http, transfer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLIC = [mongo_session_service, adk, admin, embedded, http, transfer]


def nav_pages(entries: list[Any]) -> Iterator[str]:
    """The pages of a navigation, or of a part of it."""
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from nav_pages(target) if isinstance(target, list) else [target]


def settings() -> dict[str, Any]:
    """What the site is configured to be."""
    project: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text())
    return project["project"]


@pytest.mark.long
def test_the_site_builds() -> None:
    """No link, anchor or reference is broken; each page is there, and in llms.txt."""
    subprocess.run([ROOT / "scripts" / "docs"], check=True, capture_output=True)
    published = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    index = (ROOT / "site" / "llms.txt").read_text()
    for page in nav_pages(settings()["nav"]):
        address = page.removesuffix(".md").removesuffix("index").rstrip("/")
        assert (ROOT / "site" / address / "index.html").is_file(), page
        assert f"{published['urls']['Documentation']}{address}" in index


def test_every_page_is_in_the_navigation() -> None:
    """A page that nothing leads to is not read."""
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}

    assert pages == set(nav_pages(settings()["nav"]))


def test_every_picture_is_there() -> None:
    """The build does not look for pictures: each that a page shows is a file."""
    missing = [
        f"{page.relative_to(DOCS)}: {picture}"
        for page in DOCS.rglob("*.md")
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
        if not (page.parent / picture).is_file()
    ]

    assert missing == []


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module: Any) -> None:
    """Each name that a public module exports has its entry."""
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))

    exported = {f"{module.__name__}.{name}" for name in module.__all__}

    assert exported - shown <= {"mongo_session_service.__version__"}
