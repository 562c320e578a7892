"""Pages with front ends from npm, bundled and shown in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from playwright.async_api import Page, Route

from support import npm

HTML = """<!doctype html>
<link rel="icon" href="data:,">
<body><script type="module" src="/page.js"></script>
"""


def bundle(program: Path, packages: tuple[str, ...], folder: Path) -> str:
    """A page's program and all that it imports, as one script."""
    npm.install(folder, "react", "react-dom", "esbuild", *packages)
    shutil.copy(program, folder)
    script = folder / "bundle.js"
    # Minified, it is React's build for production.
    options = ["--bundle", "--minify", "--format=esm", "--jsx=automatic"]
    options += ["--loader:.css=empty", f"--outfile={script}"]
    esbuild = folder / "node_modules/.bin/esbuild"
    subprocess.run(
        [esbuild, program.name, *options], cwd=folder, check=True, capture_output=True
    )
    return script.read_text()


async def serve_page(page: Page, script: str) -> None:
    """Answer requests for a page at any server, as if files were beside its routes."""

    async def answer(route: Route) -> None:
        if route.request.method != "GET":
            return await route.fallback()
        return await route.fulfill(content_type="text/html", body=HTML)

    async def answer_script(route: Route) -> None:
        await route.fulfill(content_type="text/javascript", body=script)

    await page.route(re.compile(r"^http://[^/]+/(\?.*)?$"), answer)
    await page.route("**/page.js", answer_script)
