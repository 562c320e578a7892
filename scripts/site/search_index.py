"""Rewrites site/search.json, so that the search answers questions.

The search knows sections, and finds one that has all the words. A question's words may
be in several: so the entry of a page has the text of all its sections, and the words of
``search_words.toml``, which are what people call its subject.

Titles count most. Those of attributes and decisions would come before the how-to that
one looks for: an entry of the reference has those of its attributes as text, and a page
of decisions those of its sections.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_INDEX = _ROOT / "site" / "search.json"
_WORDS = tomllib.loads(Path(__file__).with_name("search_words.toml").read_text())
_DEEPEST = {"decisions/": 1, "reference/": 3}
"""The level of headings below which these folders have no entries of their own."""


def _rewritten(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for item in items:
        page = item["location"].partition("#")[0]
        deepest = next((n for it, n in _DEEPEST.items() if page.startswith(it)), 6)
        if item["level"] == 1:
            whole = item
            whole["text"] += f" <p>{_WORDS.get(page.rstrip('/'), '')}</p>"
        else:
            text = f" <p>{item['title']}</p> {item['text']}"
            whole["text"] += text
            if item["level"] > deepest:
                if kept[-1] is not whole:
                    kept[-1]["text"] += text
                continue
        kept.append(item)
    return kept


if __name__ == "__main__":
    index = json.loads(_INDEX.read_text())
    index["items"] = _rewritten(index["items"])
    _INDEX.write_text(json.dumps(index, ensure_ascii=False))
