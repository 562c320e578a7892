"""The README is short, and leads somewhere: in a checkout and on a package index.

Its code blocks run with those of the site, in test_docs_pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MOST_LINES = 190

_LINK = re.compile(r"\]\(([^)]+)\)")


def headings(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


def test_the_readme_is_short() -> None:
    """Details are on the site."""
    assert len(README.splitlines()) <= MOST_LINES


def test_links_of_the_readme_exist() -> None:
    """Each relative link is to a file of the checkout, and to a heading that it has."""
    for link in _LINK.findall(README):
        path, _, anchor = link.partition("#")
        if not path.startswith("https:"):
            assert (ROOT / path).is_file(), link
            assert not anchor or anchor in headings(ROOT / path), link


def test_a_package_index_shows_absolute_links() -> None:
    """There, the links to pages begin with the site's address, set in one place."""
    project = ProjectMetadata(str(ROOT), PluginManager()).core
    base = project.urls["Documentation"]

    shown = _LINK.findall(project.readme)

    assert len(shown) == len(_LINK.findall(README))
    assert [link for link in shown if not link.startswith("https://")] == []
    assert {f"{base}getting-started/", f"{base}reference/"} <= {*shown}
    assert f"{base}live.png" in shown
