"""Markdown extension: the question that a page answers stands under its title.

It is the ``description`` of the page's front matter, which only search engines and
language models would see otherwise, and not who reads the page or searches the site.
"""

from __future__ import annotations

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from zensical.extensions.context import ContextPreprocessor


class _Question(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        context = ContextPreprocessor.from_markdown(self.md)
        question = context and context.page.meta.get("description")
        title = next((line for line in lines if line.strip()), "")
        if not question or not title.startswith("# "):
            return lines  # a docstring
        at = lines.index(title) + 1
        return [*lines[:at], "", question, "{: .question }", *lines[at:]]


class PageQuestion(Extension):
    """Shows the question of each page."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  Markdown's own name
        """Before anything else changes the lines."""
        md.preprocessors.register(_Question(md), "page_question", 160)


def makeExtension(**_: object) -> PageQuestion:  # noqa: N802  Markdown's own name
    """Make the extension; Markdown calls this function of a module."""
    return PageQuestion()
