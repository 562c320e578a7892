#!/usr/bin/env python3
"""Runs contract and unit tests on each Python, set of packages and MongoDB."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/compatibility.md"
ENVIRONMENTS = ROOT / ".compatibility"
BEGIN, END = "<!-- begin: scripts/compatibility -->\n", "<!-- end -->"
PACKAGES = ("google-adk", "pymongo", "motor", "mongomock-motor")
HEADER = ("Python", "google-adk", "PyMongo", "Motor", "mongomock-motor")
SERVER = "MongoDB "  # begins the other columns
NOT_AT_HAND = ("7.0", "8.0")  # servers that this project has not been run on
NOT_RUN = "not run"
MINORS = (11, 12, 13)
OF_TOOLS = (  # which need newer packages than this one
    "--ignore=tests/unit/suite",
    "--deselect=tests/unit/package/test_packaging.py::test_files_for_other_tools_follow_their_schemas",
)
TESTS = ("tests/contract", "tests/unit", *OF_TOOLS, "-n2")


@dataclass(frozen=True)
class Program:
    """A Python or a MongoDB server."""

    path: str
    version: str

    @classmethod
    def at(cls, path: str) -> Program | None:
        """The program there, if there is one that runs."""
        try:
            shown = output(path, "--version")
        except (OSError, subprocess.CalledProcessError):
            return None
        found = re.search(r"\d+\.\d+\.\d+", shown)
        return cls(path, found[0]) if found else None

    @classmethod
    def named(cls, path: str) -> Program:
        """The program that the user names; exits if it does not run."""
        program = cls.at(path)
        if program is None:
            print(f"compatibility: {path} cannot be run", file=sys.stderr)
            sys.exit(2)
        return program


@dataclass(frozen=True)
class Cell:
    """What the tests run on."""

    python: Program
    packages: str
    server: Program

    @property
    def name(self) -> str:
        """As ``--only`` takes it."""
        return f"{self.python.version} {self.packages} {self.server.version}"

    def run(self) -> list[str]:
        """Run the tests; return the versions, the server's last, and the verdict."""
        program = self._environment() / "bin/python"
        versions = [
            output(
                program,
                "-c",
                f"import importlib.metadata as m; print(m.version({p!r}))",
            )
            for p in PACKAGES
        ]
        environment = {k: v for k, v in os.environ.items() if k != "MONGODB_URI"}
        done = subprocess.run(
            [program, "-m", "pytest", *TESTS, "-q", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env=environment
            | {"MONGOD": self.server.path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            print(done.stdout, end="")
        return [self.python.version, *versions, self.server.version, verdict(done)]

    def _environment(self) -> Path:
        """An environment with these packages, installed once."""
        folder = ENVIRONMENTS / f"{self.python.version}-{self.packages}"
        stamp, wanted = folder / "installed", (ROOT / "pyproject.toml").read_text()
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"compatibility: installing {folder.name}", flush=True)
            subprocess.run(
                [self.python.path, "-m", "venv", "--clear", folder], check=True
            )
            pins = folder / "constraints.txt"
            pins.write_text("\n".join(lowest() if self.packages == "lowest" else ()))
            pip = [folder / "bin/python", "-m", "pip", "install", "-qq"]
            subprocess.run([*pip, "pip>=25.1"], check=True)
            what = ["--editable", ".[motor,sse,embedded]", "--group", "dev"]
            subprocess.run([*pip, "-c", pins, *what], check=True, cwd=ROOT)
            stamp.write_text(wanted)
        return folder


def output(*command: str | Path) -> str:
    """What a command prints."""
    quiet = subprocess.DEVNULL
    return subprocess.check_output(command, text=True, stderr=quiet).strip()


def verdict(done: subprocess.CompletedProcess[str]) -> str:
    """How the tests ended, in words."""
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", last_line(done))}
    passed, failed = counts.get("passed", 0), counts.get("failed", 0)
    if done.returncode == 0 and passed:
        return f"{passed:,} passed"
    return f"**{failed:,} of {passed + failed:,} failed**" if failed else "**failed**"


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Where pytest counts."""
    return (done.stdout.strip().splitlines() or [""])[-1]


def lowest() -> list[str]:
    """The lowest versions that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = project["dependencies"]
    found = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in wanted)
    return [f"{each[1]}=={each[2]}" for each in filter(None, found)]


def cells(pythons: list[Program], servers: list[Program]) -> list[Cell]:
    """Each Python on the first server; each other server with the first Python."""
    pairs = [(python, servers[0]) for python in pythons]
    pairs += [(pythons[0], server) for server in servers[1:]]
    sets = ("lowest", "newest")
    return [
        Cell(python, packages, server) for python, server in pairs for packages in sets
    ]


def numbers(version: str) -> list[int]:
    """What versions are ordered by."""
    return [int(each) for each in re.findall(r"\d+", version)]


def table(runs: dict[tuple[str, ...], str]) -> str:
    """A row for each set of packages, a column for each server."""
    tried = {key[-1] for key in runs}
    untried = {
        each for each in NOT_AT_HAND if not any(it.startswith(each) for it in tried)
    }
    servers = sorted(tried | untried, key=numbers)
    rows = sorted({key[:-1] for key in runs}, key=lambda row: [*map(numbers, row)])
    lines = [
        [*HEADER, *(f"{SERVER}{each}" for each in servers)],
        ["---"] * (len(HEADER) + len(servers)),
        *([*row, *(runs.get((*row, it), NOT_RUN) for it in servers)] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parsed(shown: str) -> dict[tuple[str, ...], str]:
    """The runs that a table shows."""
    header, _, *rows = [
        line.strip("| ").split(" | ") for line in shown.strip().splitlines()
    ]
    servers = [each.removeprefix(SERVER) for each in header[len(HEADER) :]]
    return {
        (*row[: len(HEADER)], server): verdict
        for row in rows
        for server, verdict in zip(servers, row[len(HEADER) :], strict=True)
        if verdict != NOT_RUN
    }


def write(runs: list[list[str]]) -> None:
    """Put runs into the page's table, in place of those of the same versions."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    shown, after = rest.split(END)
    known = parsed(shown) | {tuple(run[:-1]): run[-1] for run in runs}
    PAGE.write_text(f"{before}{BEGIN}{table(known)}{END}{after}")


def parse_arguments() -> argparse.Namespace:
    """What the user asked for; exits if that is help, or makes no sense."""
    parser = argparse.ArgumentParser(prog="scripts/compatibility", description=__doc__)
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--mongod", action="append", default=[], metavar="PATH")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="of cells' names"
    )
    parser.add_argument("--list", action="store_true", help="only print their names")
    parser.add_argument("--no-write", action="store_true", help="leave the page alone")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for."""
    arguments = parse_arguments()
    from mongo_session_service.embedded.mongod import find_mongod  # noqa: PLC0415

    found = [Program.at(f"python3.{minor}") for minor in MINORS]
    pythons = [*filter(None, found), *map(Program.named, arguments.python)]
    servers = list(map(Program.named, (str(find_mongod()), *arguments.mongod)))
    wanted = [
        each for each in cells(pythons, servers) if fnmatch(each.name, arguments.only)
    ]
    if not wanted:
        print(f"compatibility: no cell is named {arguments.only!r}", file=sys.stderr)
        return 2
    if arguments.list:
        print(*(each.name for each in wanted), sep="\n")
        return 0
    runs = []
    for each in wanted:
        run = each.run()
        runs.append(run)
        print(f"{each.name}: {run[-1]}", flush=True)
        if not arguments.no_write:
            write(runs)
    return 0 if all("*" not in run[-1] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
