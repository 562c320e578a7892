"""Code blocks of Markdown pages, and running them as a reader would.

How a block is marked says what a test does with it:

- ``python``: a whole program, which is run.
- any language with ``title="NAME.EXT"``: a file, which is written; a ``console`` block
  runs it, as in ``$ python NAME.py``. "NAME.EXT, continued" is added to its end.
- ``text title="Output"``: what the program or the commands before it print; ``...``
  stands for any text. "Output at first" is that on an empty database.
- ``console``: after each ``$ ``, a command. Servers run until the page ends. Those of
  `ELSEWHERE` are not run.
- ``python title="Fragment"``: statements that are run with a ``service`` at hand.
- ``title="Example"``: what needs more than this machine has; Python is compiled, and
  the options of this package's commands are checked.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import click

from mongo_session_service.cli.app import main
from mongo_session_service.embedded.mongod import free_ports
from support.forks import FORKS
from support.patience import PATIENCE

OUTPUTS = {"Output", "Output at first"}
LOCAL = "mongodb://127.0.0.1:27017/adk?replicaSet=rs0"
"""The URI of every example, but for those with a database of their own."""

_OWN = re.compile(r"mongodb://127\.0\.0\.1:27017/(\w+)\?replicaSet=rs0")

ELSEWHERE = {
    "adk deploy": "needs an account in a cloud",
    "docker": "needs a Docker engine",
    "export": "is done by the test, with its own URI",
    "gcloud": "needs an account in a cloud",
    "kubectl": "needs a cluster",
    "mongo-session-service mongod": "is what the test run has started already",
    "mongod ": "is a program of its own",
    "mongodump": "is a program of its own",
    "mongorestore": "is a program of its own",
    "mongosh": "is a program of its own",
    "pip": "installs what is installed already",
    "scripts/": "is for those who change the code",
}
SERVERS = ("adk api_server", "adk web", "uvicorn")
FOLLOWERS = {
    "mongo-session-service live": ["--port", "0", "--no-open"],
    "mongo-session-service watch": [],
}
"""What runs until Ctrl-C, and arguments that a test adds."""

PROGRAMS = Path(sys.executable).parent
INTERRUPTED = 130

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: +title=\"(?P<title>[^\"]*)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line of its page that it begins on."""

    line: int
    language: str
    title: str
    text: str

    @property
    def is_file(self) -> bool:
        """Whether it is shown under the name of a file."""
        return "." in self.title or self.title.endswith(("Dockerfile", "Caddyfile"))

    @property
    def is_output(self) -> bool:
        """Whether it shows what was printed."""
        return self.title in OUTPUTS

    @property
    def commands(self) -> list[str]:
        """What is typed after each prompt."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            line=text.count("\n", 0, each.start()) + 1,
            language=each["language"],
            title=each["title"] or "",
            text=textwrap.dedent(each["text"]),
        )
        for each in _FENCE.finditer(text)
    ]


def fragment_program(text: str, uri: str = LOCAL) -> str:
    """The program that a fragment is a part of."""
    lines = [
        "import asyncio",
        "from google.adk.events import Event, EventActions",
        "from mongo_session_service import Change, MongoSessionService",
        "async def fragment(service: MongoSessionService) -> None:",
        textwrap.indent(text, " " * 4),
        "async def main() -> None:",
        f"    async with MongoSessionService({uri!r}) as service:",
        "        await fragment(service)",
        "asyncio.run(main())",
    ]
    return "\n".join(lines)


def as_shown(printed: str, shown: str) -> bool:
    """Whether an output is the one shown, in which ``...`` is any text."""
    pattern = ".*?".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@dataclass
class Reader:
    """Somebody who follows a page in a folder of their own."""

    uri: str
    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    printed: str = ""
    is_first_time: bool = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()
            server.wait()

    def follow(self, block: Block) -> None:
        """Do what a block says, and compare what it shows.

        Raises:
            AssertionError: it fails, or prints something else.
        """
        text = self._here(block.text)
        if not block.is_output:
            self.printed = ""
        if block.is_output:
            if block.title == "Output" or self.is_first_time:
                assert as_shown(self.printed, text), self.printed
        elif block.is_file:
            name, _, is_continued = block.title.partition(", ")
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.read_text() + "\n\n" + text if is_continued else text)
        elif block.title == "Example":
            _check(block)
        elif block.title == "Fragment":
            self._run_fragment(text)
        elif block.language == "python":
            path = self.folder / f"line_{block.line}.py"
            path.write_text(text)
            self._run_program([str(path)])
        elif block.language == "console":
            for command in block.commands:
                self._run_command(self._here(command))

    def _here(self, text: str) -> str:
        text = text.replace(LOCAL, self.uri).replace("8000", str(self.port))
        return _OWN.sub(lambda own: self.uri.replace("?", f"_{own[1]}?", 1), text)

    def _run_command(self, command: str) -> None:
        words = command.split()
        if any(command.startswith(each) for each in ELSEWHERE):
            _check_command(command)
        elif any(command.startswith(each) for each in SERVERS):
            self._serve(command)
        elif more := [
            FOLLOWERS[each] for each in FOLLOWERS if command.startswith(each)
        ]:
            program, *arguments = shlex.split(command)
            self._follow([str(PROGRAMS / program), *arguments, *more[0]])
        elif words[0] == "python" and words[1].endswith(".py"):
            self._run_program(words[1:])
        elif words[0] == "mongo-session-service" and not {"|", ">"} & {*words}:
            expanded = command.replace("$MONGODB_URI", self.uri)
            program, *arguments = shlex.split(expanded, comments=True)
            self._run_program([str(PROGRAMS / program), *arguments])
        else:
            done = subprocess.run(
                ["/bin/bash", "-c", command],
                cwd=self.folder,
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            self.printed += done.stdout

    def _environment(self) -> dict[str, str]:
        path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        here = {"MONGODB_URI": self.uri, "PATH": path, "COLUMNS": "80"}
        return os.environ | here | {"PYTHONPATH": str(self.folder)}

    def _serve(self, command: str) -> None:
        """Start a server anew, and wait until it listens."""
        for server in self.servers:
            server.kill()
            server.wait()
        self.servers = [
            subprocess.Popen(
                ["/bin/bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment(),
            )
        ]
        deadline = time.monotonic() + PATIENCE
        while not _listens(self.port):
            assert self.servers[0].poll() is None, command
            assert time.monotonic() < deadline, command
            time.sleep(0.05)

    def _run_program(self, arguments: list[str]) -> None:
        process = self._start(arguments)
        process.join(PATIENCE)
        process.kill()
        process.join()
        self.printed += self._output.read_text()
        assert process.exitcode == 0, f"{self.printed}\n{self._errors.read_text()}"

    def _follow(self, arguments: list[str]) -> None:
        """Run a program until it says what it does, and then press Ctrl-C."""
        process = self._start(arguments)
        deadline = time.monotonic() + PATIENCE
        while "." not in self._errors.read_text():
            assert process.is_alive(), arguments
            assert time.monotonic() < deadline, arguments
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        process.join(PATIENCE)
        process.kill()
        process.join()
        assert process.exitcode == INTERRUPTED, self._errors.read_text()

    def _start(self, arguments: list[str]) -> Any:
        """Start a program as a fork of a process that has imported ADK already."""
        self._errors.write_text("")
        process = FORKS.Process(
            target=_as_main,
            args=(arguments, self.folder, self._environment()),
            kwargs={"output": self._output, "errors": self._errors},
        )
        process.start()
        return process

    @property
    def _output(self) -> Path:
        return self.folder / "output.txt"

    @property
    def _errors(self) -> Path:
        return self.folder / "errors.txt"

    def _run_fragment(self, text: str) -> None:
        path = self.folder / "fragment.py"
        path.write_text(fragment_program(text, self.uri))
        self._run_program([str(path)])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _as_main(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    *,
    output: Path,
    errors: Path,
) -> None:
    """Be the process of a program, whose streams go to files."""
    for descriptor, path in (1, output), (2, errors):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv[:] = arguments
    sys.path.insert(0, str(folder))
    warnings.simplefilter("ignore")
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()


def _check(block: Block) -> None:
    if block.language == "python":
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(block.text, f"line {block.line}", "exec", flags)
    for command in block.commands:
        _check_command(command)


def _check_command(command: str) -> None:
    """A command of this package has to exist, and its options too."""
    words = shlex.split(command, comments=True)
    if words[0] != "mongo-session-service":
        return
    found: click.Command = main
    arguments = [word for word in words[1:] if word not in {"|", ">"}]
    while isinstance(found, click.Group) and arguments:
        if (named := found.commands.get(arguments[0])) is None:
            break
        found, arguments = named, arguments[1:]
    known = {
        name for each in found.params for name in (*each.opts, *each.secondary_opts)
    }
    known |= {"--help", *(name for each in main.params for name in each.opts)}
    unknown = {word for word in arguments if word.startswith("--")} - known
    assert not unknown, f"{command}: {unknown}"
    assert found is not main, command
