"""Programs and files from npm, which releases are checked with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def install(folder: Path, *packages: str) -> Path:
    """Install packages into a folder, and return where they are."""
    npm = shutil.which("npm")
    assert npm, f"{' and '.join(packages)} come from npm: install Node.js."
    subprocess.run([npm, "install", "--silent", *packages], cwd=folder, check=True)
    return folder / "node_modules"
