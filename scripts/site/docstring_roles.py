"""Griffe extension: roles and literal blocks of docstrings, as the site shows them.

Docstrings mark code as reStructuredText does, which ``help()`` and editors know; the
site reads Markdown.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data):`~?([^`]+)`")
_LITERAL_BLOCK = re.compile(r"^::\n\n((?: {4}.*\n|\n)+)", re.MULTILINE)


class DocstringRoles(griffe.Extension):
    """Shows ``:class:`Change``` as code, and what follows ``::`` as Python."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is None:
            return
        text = _ROLE.sub(r"`\1`", obj.docstring.value + "\n")
        obj.docstring.value = _LITERAL_BLOCK.sub(_fenced, text).rstrip()


def _fenced(block: re.Match[str]) -> str:
    lines = [line.removeprefix("    ") for line in block[1].strip("\n").splitlines()]
    return "\n".join(["```python", *lines, "```", "", ""])
