"""Writes site/llms.txt, an index of the site for language models.

It leads to the Markdown of the pages, which is beside them, but for those of the
reference that are made of docstrings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[2]


def _settings() -> dict[str, Any]:
    return tomllib.loads((_ROOT / ".zensical.toml").read_text())["project"]


def _index(settings: dict[str, Any]) -> Iterator[str]:
    yield f"# {settings['site_name']}"
    yield f"\n> {settings['site_description']}\n"
    yield from _entries(settings["nav"], settings["site_url"])


def _entries(nav: list[Any], base: str) -> Iterator[str]:
    for entry in nav:
        [(title, target)] = entry.items() if isinstance(entry, dict) else [("", entry)]
        if isinstance(target, list):
            yield f"\n## {title}\n"
            yield from _entries(target, base)
        else:
            yield _line(target, base)


def _line(page: str, base: str) -> str:
    whole = (_ROOT / "docs" / page).read_text()
    _, matter, text = whole.split("---\n", 2)
    heading = next(line for line in text.splitlines() if line.startswith("# "))
    address = base + page
    if "\n::: " in text:
        address = base + f"{page.removesuffix('.md')}/".removesuffix("index/")
    (_ROOT / "site" / page).write_text(whole)
    return f"- [{heading[2:]}]({address}): {yaml.safe_load(matter)['description']}"


if __name__ == "__main__":
    lines = "\n".join(_index(_settings()))
    (_ROOT / "site" / "llms.txt").write_text(f"{lines}\n")
