"""Hatch metadata hook: the README of a package, whose links lead to the site.

In a checkout the links of README.md are relative. A package index has no files beside
it, so there they begin with the site's address, ``urls.Documentation``, or, for what is
no page of the site, with ``urls.Source``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?!https?:)(?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")


class PackageReadme(MetadataHookInterface):
    """Sets the project's description from README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the ``readme`` of the project's metadata."""
        text = (Path(self.root) / "README.md").read_text()
        urls = metadata["urls"]

        def absolute(link: re.Match[str]) -> str:
            path, anchor = link["path"], link["anchor"] or ""
            if not path.startswith("docs/"):
                return f"]({urls['Source'].rstrip('/')}/{path})"
            page = path.removeprefix("docs/")
            if page.endswith(".md"):
                page = f"{page.removesuffix('.md')}/".removesuffix("index/")
            return f"]({urls['Documentation']}{page}{anchor})"

        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _RELATIVE.sub(absolute, text),
        }
