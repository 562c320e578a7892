"""What the pages of the site show works as shown, from the first block to the last."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.doc_blocks import Block, Reader, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): blocks
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if (blocks := blocks_of(page))
}
RUNNABLE = {"python", "console"}
MARKS = {"", "Fragment", "Not run", "Output"}

pytestmark = pytest.mark.xdist_group("docs")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_twice(
    page: str, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Its blocks run in order, and then once more on what the first time has left."""
    uri = mongodb_uri.replace("/?", f"/{database}?")
    with Reader(uri, tmp_path) as reader:
        for time in ("first", "second"):
            for block in PAGES[page]:
                try:
                    reader.follow(block)
                except AssertionError as error:
                    pytest.fail(f"{page}:{block.line}, {time} time: {error}")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    """A title is a file's name, or a mark that this test knows."""
    odd = [block for block in PAGES[page] if not _is_known(block)]

    assert [f"{page}:{block.line} {block.title}" for block in odd] == []


def _is_known(block: Block) -> bool:
    return block.is_file or block.title in MARKS
