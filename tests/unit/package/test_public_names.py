"""What is imported only when it is used, and seems to be there before."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import subprocess
import sys
from importlib import import_module, metadata

import pytest
from packaging.version import Version
from support.patience import PATIENCE

import mongo_session_service
from mongo_session_service import service

NOWHERE = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"
COMMANDS = {
    "": 2 if Version(metadata.version("click")) >= Version("8.2") else 0,
    "--help": 0,
    "--version": 0,
    "nonsense": 2,
    "watch --help": 0,
    "watch --session s": 2,
    "import --help": 0,
    "import sqlite --help": 0,
    "import sqlite": 2,
    "export --help": 0,
    "mongod --help": 0,
    "mongod --members 8": 2,
    "grants": 0,
    "watch --uri mongodb://[": 1,
    f"consumers --uri {NOWHERE}": 1,
    f"doctor --uri {NOWHERE}": 1,
    f"export {NOWHERE}": 1,
    f"import sqlite x.db {NOWHERE}": 1,
    f"verify sqlite x.db {NOWHERE}": 1,
    f"grants {NOWHERE.replace('/?', '/db?')}": 0,
}
"""What is answered without ADK, and the exit code."""

WITHOUT_ADK = """
import json, sys
from click.testing import CliRunner
from mongo_session_service import MongoSessionServiceError
from mongo_session_service.cli import main
from mongo_session_service.embedded import EmbeddedReplicaSet

run = CliRunner().invoke
codes = {each: run(main, each.split()).exit_code for each in sys.argv[1:]}
tab = {
    "_MONGO_SESSION_SERVICE_COMPLETE": "bash_complete",
    "COMP_WORDS": "mongo-session-service verify ",
    "COMP_CWORD": "2",
}
completed = run(main, prog_name="mongo-session-service", env=tab).output.split()
heavy = {"google.adk", "google.genai", "opentelemetry", "pydantic", "rich"}
heavy &= sys.modules.keys()
print(json.dumps([codes, completed, sorted(heavy)]))
"""

AT_ONCE = """
import threading
import mongo_session_service

names = mongo_session_service.__all__ * 2
start, found = threading.Barrier(len(names)), []

def use(name):
    start.wait()
    found.append((name, getattr(mongo_session_service, name)))

threads = [threading.Thread(target=use, args=[name]) for name in names]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(found), len(set(found)))
"""


def run(program: str, *arguments: str) -> str:
    """What a program prints in a process that has imported nothing yet."""
    done = subprocess.run(
        # The driver lets go of the sockets by which it has found nobody.
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning"]
        + ["-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def imported(body: list[ast.stmt]) -> dict[str, str]:
    return {
        alias.name: str(each.module).removeprefix("mongo_session_service.")
        for each in body
        if isinstance(each, ast.ImportFrom) and "mongo" in str(each.module)
        for alias in each.names
    }


def seen_by_type_checkers() -> tuple[dict[str, str], dict[str, str]]:
    """The names that the package imports at once and for them only: from where."""
    tree = ast.parse(inspect.getsource(mongo_session_service))
    block = next(each for each in tree.body if isinstance(each, ast.If))
    return imported(tree.body), imported(block.body)


def test_the_command_line_answers_without_adk() -> None:
    """Help, completion, wrong usage and a missing server do not wait for its import."""
    codes, completed, heavy = json.loads(run(WITHOUT_ADK, *COMMANDS))

    assert codes == COMMANDS
    assert "plain,sqlite" in completed
    assert heavy == []


def test_threads_may_use_every_name_at_once() -> None:
    """Each gets the same, whoever is first."""
    names = mongo_session_service.__all__

    assert run(AT_ONCE).split() == [str(2 * len(names)), str(len(names))]


def test_public_names_are_the_same_everywhere() -> None:
    """Who runs, who checks types and who lists find the same names, in order."""
    at_once, later = seen_by_type_checkers()

    elsewhere = {it: home for it, home in later.items() if not hasattr(service, it)}
    assert elsewhere == mongo_session_service._HOMES  # noqa: SLF001
    assert mongo_session_service.__all__ == sorted(
        at_once | later, key=lambda name: (name == "__version__", name)
    )


def test_public_names_can_be_used_as_if_imported() -> None:
    """A star, ``dir`` and ``pickle`` find them, and they are what their module has."""
    starred: dict[str, object] = {}
    exec("from mongo_session_service import *", starred)  # noqa: S102

    at_once, later = seen_by_type_checkers()
    assert at_once.pop("__version__") == "_version"
    for name, home in (at_once | later).items():
        found = getattr(mongo_session_service, name)
        module = import_module(f"mongo_session_service.{home}")

        assert found is starred[name] is vars(module)[name]
        assert name in dir(mongo_session_service)
        if not isinstance(found, type):  # an alias of what a function looks like
            continue
        assert found.__module__ == "mongo_session_service"
        assert pickle.loads(pickle.dumps(found)) is found


def test_the_service_is_one_class() -> None:
    """Every public method is found in one place, beside what ADK's base class has."""
    service = mongo_session_service.MongoSessionService
    own = [each for each in service.__mro__ if "mongo" in each.__module__]

    assert own == [service]


def test_modules_are_there_unasked() -> None:
    """``mongo_session_service.errors`` needs no import of its own."""
    probe = "import mongo_session_service as m; print(m.errors.StorageError.__name__)"

    assert run(probe) == "StorageError\n"


@pytest.mark.parametrize("name", ["Session", "error", "errors.StorageError", "__all"])
def test_other_names_are_missing_as_anywhere(name: str) -> None:
    """The error is Python's own, and knows what it is about."""
    with pytest.raises(AttributeError) as caught:
        getattr(mongo_session_service, name)

    with pytest.raises(AttributeError) as usual:
        getattr(ast, name)
    assert str(caught.value) == str(usual.value).replace("ast", "mongo_session_service")
    assert (caught.value.name, caught.value.obj) == (name, mongo_session_service)
