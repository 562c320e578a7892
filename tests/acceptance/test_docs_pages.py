"""What the README and the site show works as shown, from first block to last."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from pymongo import MongoClient
from support.databases import drop
from support.doc_blocks import OUTPUTS, Reader, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): blocks
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if (blocks := blocks_of(page))
}
FIRST: Final = dict.fromkeys(
    (
        "README.md",
        "docs/getting-started.md",
        "docs/guide/fastapi.md",
        "docs/guide/live-turns.md",
    ),
    pytest.mark.daily(2),
)
"""The pages that newcomers read; the others run before a release."""

MARKS = {"", "Fragment", "Example", *OUTPUTS}

pytestmark = pytest.mark.xdist_group("docs")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=FIRST.get(page, pytest.mark.release))
        for page in PAGES
        if any(block.language in {"python", "console"} for block in PAGES[page])
    ],
)
def test_a_page_works_twice(
    page: str, mongodb_uri: str, database: str, tmp_path: Path, admin: MongoClient
) -> None:
    """Its blocks run in order, and then once more on what the first time has left."""
    uri = mongodb_uri.replace("/?", f"/{database}?")
    with Reader(uri, tmp_path) as reader:
        for time in ("first", "second"):
            reader.is_first_time = time == "first"
            for block in PAGES[page]:
                try:
                    reader.follow(block)
                except AssertionError as error:
                    pytest.fail(f"{page}:{block.line}, {time} time: {error}")
    for name in admin.list_database_names():
        if name.startswith(f"{database}_"):  # of a page that names one of its own
            drop(admin, name)


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("README.md", "quickstart.py"),
        ("docs/getting-started.md", "quickstart.py"),
        ("docs/guide/front-ends.md", "ai_sdk.jsx"),
    ],
)
def test_a_recipe_is_an_example(page: str, name: str) -> None:
    """The program that its page shows is the one in examples/, which its tests run."""
    (shown,) = [block.text for block in PAGES[page] if block.title == name]

    assert shown == (ROOT / "examples" / name).read_text()


@pytest.mark.parametrize("name", ["search", "usage", "memory"])
def test_an_excerpt_is_of_its_example(name: str) -> None:
    """The handler that a recipe shows is in the program in examples/, which is run."""
    shown = [
        block.text
        for block in PAGES[f"docs/guide/{name}.md"]
        if (block.language, block.title) == ("python", "Example")
    ]

    program = (ROOT / "examples" / f"{name}.py").read_text()
    assert [text for text in shown if text not in program] == []
    assert shown


def test_every_code_block_has_a_title_or_a_mark() -> None:
    """A title is a file's name, or a mark that these tests know."""
    odd = [
        f"{page}:{block.line} {block.title}"
        for page, blocks in PAGES.items()
        for block in blocks
        if not block.is_file and block.title not in MARKS
    ]

    assert odd == []
