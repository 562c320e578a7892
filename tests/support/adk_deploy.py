"""What ``adk deploy`` sends to a cloud, and the container that it becomes there.

Files and commands are those that the documentation shows.

The programs and the client that would send the folder away are replaced by ones that
keep a copy of it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from google.adk.cli.cli_tools_click import main

from support.adk_tools import AGENT, APP, Server, adk_command, environment, serving
from support.doc_blocks import blocks_of

DOCS = Path(__file__).parents[2] / "docs"
(SERVICES,) = [
    block.text
    for block in blocks_of(DOCS / "guide" / "adk-tools.md")
    if block.title == "agents/services.py"
]
COMMANDS = {
    words[2]: words
    for block in blocks_of(DOCS / "operations" / "deploying.md")
    for command in block.commands
    if (words := shlex.split(command))[:2] == ["adk", "deploy"]
}
"""The command for each target."""

GOOGLES = ("--a2a", "--gemini_enterprise_app_name=", "--memory_service_uri=")
"""What needs packages of Google's, and their credentials, as it starts."""

_KEEPS_FOLDER = """#!/bin/sh
for argument in "$@"; do
    if [ -d "$argument" ]; then cp -r "$argument" '{kept}'; fi
done
"""


class _Runtimes:
    """Agent Engine's client, which keeps the files that it was to send."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def create(self) -> SimpleNamespace:
        name = "projects/p/locations/r/reasoningEngines/1"
        return SimpleNamespace(api_resource=SimpleNamespace(name=name))

    def update(self, *, config: dict[str, Any], **_: object) -> None:
        for source in map(Path, config["source_packages"]):
            _copy(source, self._kept / source)


@dataclass(frozen=True)
class Container:
    """The files of an image, and how it starts."""

    app: Path
    """Its folder ``/app``."""

    command: list[str]
    """Its command, with the paths that this machine has."""

    @property
    def environment(self) -> dict[str, str]:
        """Its environment, in which its Python finds what this one does."""
        return environment(self.app) | {"PYTHONPATH": str(self.app)}

    @contextmanager
    def running(self, uri: str) -> Iterator[Server]:
        """Run it until the end of the block, with a secret in its environment."""
        options = [each for each in self.command[2:] if not each.startswith(GOOGLES)]
        arguments = [*adk_command(self.command[1]), *options]
        with serving(arguments, self.environment | {"MONGODB_URI": uri}) as server:
            yield server


def write_project(folder: Path) -> None:
    """Make an agent's folder, and ``services.py`` beside it."""
    agent = folder / "agents" / APP
    agent.mkdir(parents=True)
    (agent / "__init__.py").write_text("from . import agent\n")
    (agent / "agent.py").write_text(AGENT)
    (folder / "agents" / "services.py").write_text(SERVICES)


def deploy(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """Run ``adk deploy`` for a project, and build what it would have sent."""
    kept, stubs = folder / "kept", folder / "stubs"
    stubs.mkdir()
    for program in ("gcloud", "kubectl"):
        (stubs / program).write_text(_KEEPS_FOLDER.format(kept=kept))
        (stubs / program).chmod(0o700)
    client = SimpleNamespace(runtimes=_Runtimes(kept))
    library = SimpleNamespace(Client=lambda **_: client)
    importer = SimpleNamespace(agentplatform=library)
    name = "google.adk.dependencies._agentplatform"
    monkeypatch.setitem(sys.modules, name, cast("ModuleType", importer))
    monkeypatch.setenv("PATH", str(stubs), prepend=":")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    words = [each.replace("my_agent", APP) for each in COMMANDS[target][1:]]
    words.insert(2, f"--temp_folder={folder / 'staged'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it passes options that it deprecates
        done = CliRunner().invoke(main, words)

    assert done.exit_code == 0, done.output
    return _build(kept, folder / "image")


def _build(context: Path, image: Path) -> Container:
    """Follow those lines of a Dockerfile that say which files there are, and what runs.

    What it installs is installed here already.
    """
    dockerfile = (context / "Dockerfile").read_text()
    for copied in re.finditer(r'^COPY \S+ "(.+)" "/(.+)"$', dockerfile, re.MULTILINE):
        _copy(context / copied[1], image / copied[2])
    (command,) = re.findall(r"^CMD (\[.+\])$", dockerfile, re.MULTILINE)
    assert 'ENV PYTHONPATH="/app:$PYTHONPATH"' in dockerfile
    app = image / "app"
    words = json.loads(command)
    return Container(app, [*words[:-1], str(image / words[-1].removeprefix("/"))])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
