"""Options of the benches that report rounds, and the circumstances they lead to."""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import platform
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmark.contestants import Place
from benchmark.report import ROUNDS, is_crowded
from benchmark.run import Pace
from mongo_session_service import MongoSessionService, MongoSessionServiceError
from mongo_session_service.embedded import EmbeddedReplicaSet


def add(parser: argparse.ArgumentParser, *, quick: str, svg: str | None = None) -> None:
    """Add what they share; `quick` and `svg` say what these do here."""
    option = parser.add_argument
    option("--quick", action="store_true", help=quick)
    option("--rounds", type=int, help="how often each workload has its turn")
    option("--uri", default=os.environ.get("MONGODB_URI"), help="a MongoDB replica set")
    option("--json", type=Path, metavar="FILE", help="write every figure")
    if svg:
        option("--svg", type=Path, metavar="FILE", help=svg)


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the user asked for; exits with 2 if what is shared makes no sense."""
    arguments = parser.parse_args()
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    for file in (arguments.json, vars(arguments).get("svg")):
        if file and not file.absolute().parent.is_dir():
            parser.error(f"there is no directory {file.parent}")
    if arguments.uri:
        try:
            MongoSessionService(arguments.uri)
        except MongoSessionServiceError as error:
            parser.error(str(error))
    return arguments


@contextmanager
def begun(
    arguments: argparse.Namespace, postgres: str | None = None
) -> Iterator[tuple[Place, Pace, dict[str, Any]]]:
    """Where and how to measure, on a MongoDB of its own if none is given; and facts.

    The facts are whole when it ends. Python's warnings and logs are off from now on.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    quick = arguments.quick
    pace = Pace(
        arguments.rounds or (2 if quick else ROUNDS), 0.05 if quick else 0.3, quick
    )
    facts = _about(pace)
    if is_crowded(facts):
        busy = f"a load average of {facts['load_before'][0]} on {facts['cpus']} CPUs"
        print(f"bench: {busy}: figures will be unsteady", file=sys.stderr)
    start = time.monotonic()
    with ExitStack() as stack:
        uri = arguments.uri or stack.enter_context(EmbeddedReplicaSet()).uri
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        yield Place(uri, secrets.token_hex(4), directory, postgres), pace, facts
    facts |= {"seconds": round(time.monotonic() - start), "load": _load()}


def _about(pace: Pace) -> dict[str, Any]:
    packages = ("google-adk", "pymongo", "motor", "pydantic", "mongo-session-service")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "quick": pace.is_quick,
        "rounds": pace.rounds,
        "cpus": os.cpu_count(),
        "load_before": _load(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _load() -> list[float]:
    """How much the machine has had to do in the last 1, 5 and 15 minutes."""
    return [round(each, 1) for each in os.getloadavg()]
