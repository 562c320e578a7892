"""Pages of the documentation: those that the package's texts name, and their tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "mongo_session_service"

_PAGE = re.compile(r"docs/[\w/-]+(?:\.md)?(?:#[\w-]+)?")
_VAGUE = re.compile(r"(?i)in the documentation|see the (?:docs|guide|decisions)")


def texts() -> Iterator[tuple[str, str]]:
    """Yield every message, help text and docstring, and where it stands."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = " ".join(node.value.split())
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


def test_every_page_that_is_named_exists() -> None:
    """A text names a page by its file, and a heading that the page has."""
    named = {(where, page) for where, text in texts() for page in _PAGE.findall(text)}

    assert len({page for _, page in named}) >= 3
    for where, page in named:
        path, _, anchor = page.partition("#")
        assert (ROOT / path).is_file(), f"{where} names {path}"
        assert not anchor or anchor in anchors(ROOT / path), f"{where} names #{anchor}"


def test_no_text_names_a_page_vaguely() -> None:
    """A text that refers to the documentation names the page."""
    assert [where for where, text in texts() if _VAGUE.search(text)] == []


def test_no_table_is_torn() -> None:
    """A page's table has no blank line: the rows below one would be shown as text."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    torn = re.compile(
        r"^ *\|.*\n\n+ *\|.*\n(?! *\|[ :|-]+\n)|^\n+ *\|[ :|-]+\n", re.MULTILINE
    )

    assert [page.name for page in pages if torn.search(page.read_text())] == []
