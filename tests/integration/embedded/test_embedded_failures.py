from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from pymongo.uri_parser import parse_uri
from support.patience import PATIENCE

from mongo_session_service.embedded import EmbeddedReplicaSet, EmbeddedServerError
from mongo_session_service.embedded.mongod import find_mongod

SOON = 5.0

OWNER = """
import json, signal, subprocess
from mongo_session_service.embedded import EmbeddedReplicaSet

replica_set = EmbeddedReplicaSet(members=2)
replica_set.start()
executed = subprocess.Popen(["sleep", "60"])
facts = {
    "mongods": replica_set.pids,
    "child": executed.pid,
    "data_dir": str(replica_set.data_dir),
}
print(json.dumps(facts), flush=True)
signal.pause()
"""

FORKER = """
import os
from pymongo import MongoClient
from mongo_session_service.embedded import EmbeddedReplicaSet

with EmbeddedReplicaSet() as replica_set:
    if child := os.fork():
        assert os.waitpid(child, 0) == (child, 0)
        assert None not in replica_set.pids
    else:
        with MongoClient(replica_set.uri) as client:
            client.admin.command("ping")
print("left", flush=True)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def run_python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def all_end(descriptors: list[int]) -> bool:
    """Whether the processes end soon; closes the process descriptors."""
    try:
        return all(select.select([each], [], [], SOON)[0] for each in descriptors)
    finally:
        for each in descriptors:
            os.close(each)


def left_of(path: Path) -> list[str]:
    """What is in the directory, and the command lines of processes naming it."""
    found = [str(each) for each in path.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if str(path) in command:
            found.append(command)
    return found


def failure_of(replica_set: EmbeddedReplicaSet) -> str:
    """Why it does not start, which must show within a few seconds."""
    began = time.monotonic()
    with pytest.raises(EmbeddedServerError) as raised:
        replica_set.start()
    assert time.monotonic() - began < SOON
    assert replica_set.pids == ()
    return str(raised.value)


def test_stopping_leaves_nothing_and_may_be_repeated(temporary: Path) -> None:
    """The throw-away directory and its mongod are gone, and it can start anew."""
    replica_set = EmbeddedReplicaSet()
    with replica_set:
        assert replica_set.data_dir.parent == temporary
        with pytest.raises(EmbeddedServerError, match="already started"):
            replica_set.start()
    replica_set.stop()
    assert left_of(temporary) == []
    for ask in (lambda: replica_set.uri, lambda: replica_set.data_dir):
        with pytest.raises(EmbeddedServerError, match="not started"):
            ask()
    with replica_set:
        assert replica_set.pids != ()


async def test_a_cancelled_start_leaves_nothing(temporary: Path) -> None:
    """Cancelling during the start ends what has been started by then."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), EmbeddedReplicaSet():
            await asyncio.Event().wait()
    assert left_of(temporary) == []


def test_a_killed_owner_leaves_nothing() -> None:
    """Not even while programs that the owner started live on."""
    with run_python(OWNER) as owner:
        assert owner.stdout is not None
        facts = json.loads(owner.stdout.readline())
        try:
            assert Path(facts["data_dir"]).is_dir()
            guards = map(parent_of, facts["mongods"])
            ending = [*map(os.pidfd_open, (*facts["mongods"], *guards))]
            owner.kill()
            assert all_end(ending)
            assert not Path(facts["data_dir"]).exists()
        finally:
            owner.kill()
            os.kill(facts["child"], signal.SIGKILL)


def test_a_forked_child_may_use_it_but_not_end_it() -> None:
    """A child that leaves the with block stops nothing."""
    with run_python(FORKER) as forker:
        output, _ = forker.communicate(timeout=PATIENCE)
    assert output.split() == ["left", "left"]
    assert forker.returncode == 0


def test_the_program_named_must_exist(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$MONGOD is never silently passed over for another mongod."""
    monkeypatch.setenv("MONGOD", str(temporary / "nowhere"))
    assert f"{temporary / 'nowhere'}: not found" in failure_of(EmbeddedReplicaSet())
    assert left_of(temporary) == []


def test_a_missing_library_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loader prints is in the error."""
    script = "#!/bin/sh\necho error while loading libcurl.so.4 >&2\nexit 127\n"
    monkeypatch.setenv("MONGOD", program(tmp_path / "mongod", script))
    failure = failure_of(EmbeddedReplicaSet(members=3))
    assert "error while loading libcurl.so.4" in failure
    assert left_of(temporary) == []


def test_a_program_may_be_wrapped(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that runs mongod as a child leaves no child behind."""
    script = f'#!/bin/sh\n"{find_mongod()}" "$@"\nexit $?\n'
    monkeypatch.setenv("MONGOD", program(tmp_path / "mongod", script))
    with EmbeddedReplicaSet() as replica_set:
        assert None not in replica_set.pids
    assert left_of(temporary) == []


def test_an_installed_program_is_made_runnable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's program may have been installed without its run bit."""

    class Wheel:
        def locate_file(self, path: str) -> Path:
            return tmp_path / Path(path).name

    (tmp_path / "mongod").touch(mode=0o644)
    monkeypatch.delenv("MONGOD", raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Wheel())
    assert find_mongod() == str(tmp_path / "mongod")
    assert os.access(tmp_path / "mongod", os.X_OK)


@pytest.mark.parametrize(
    ("system", "machine", "says"),
    [
        ("linux", "x86_64", "pip install 'mongo-session-service[embedded]', or set"),
        ("darwin", "arm64", "pip install 'mongo-session-service[embedded]', or set"),
        ("linux", "aarch64", "docker run -d -p 27017:27017 mongodb/mong"),
        ("darwin", "x86_64", "install it with its mongod on the PATH, or set $MONGOD"),
    ],
)
def test_without_any_program_the_error_names_where_to_get_one(
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    machine: str,
    says: str,
) -> None:
    """Neither named, nor installed, nor on the PATH; the extra is not for everyone."""

    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("MONGOD", raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    monkeypatch.setenv("PATH", str(temporary))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert says in failure_of(EmbeddedReplicaSet())


def test_a_taken_port_is_reported(tmp_path: Path) -> None:
    """A kept set needs the ports it had; a program on one of them is in the way."""
    replica_set = EmbeddedReplicaSet(data_dir=tmp_path)
    with replica_set:
        [address] = parse_uri(replica_set.uri)["nodelist"]
    with socket.create_server(address):
        assert "Address already in use" in failure_of(replica_set)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    """A data directory whose parent is a file cannot be made."""
    (tmp_path / "file").touch()
    replica_set = EmbeddedReplicaSet(data_dir=tmp_path / "file" / "data")
    assert "Not a directory" in failure_of(replica_set)


def test_a_directory_mongod_cannot_write_is_reported(tmp_path: Path) -> None:
    """A directory in place of its lock file stops even root; its words are quoted."""
    (tmp_path / "member-0" / "mongod.lock").mkdir(parents=True)
    failure = failure_of(EmbeddedReplicaSet(data_dir=tmp_path))
    assert "lock file" in failure
