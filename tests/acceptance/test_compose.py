"""The Compose files' health check and URIs, with MongoDB's own shell."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.cli_runner import call
from support.leak_detector import PASSWORD
from support.secured_mongod import Secured

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded.mongod import HOST, find_mongod, free_ports

pytestmark = [pytest.mark.release, pytest.mark.xdist_group("secured")]

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "docker-compose.yml", ROOT / "docker-compose.auth.yml")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a server that is to be a replica set, as the container has one."""
    (port,) = free_ports(1)
    options = ["--replSet=rs0", f"--port={port}", f"--bind_ip={HOST}"]
    command = [find_mongod(), *options, "--nounixsocket", f"--dbpath={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as mongod:
        try:
            assert mongod.stdout is not None
            next(line for line in mongod.stdout if "Waiting for connections" in line)
            yield port
        finally:
            mongod.kill()


def checked(shell: Path, port: int, **environment: str) -> None:
    """Run the health check as Docker does, but for the port."""
    service = yaml.safe_load(FILES[0].read_text())["services"]["mongodb"]
    [kind, script] = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    command = script.replace("$$", "$").replace("27017", str(port))
    path = f"{shell}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", command],  # noqa: S607  any shell
        check=True,
        timeout=30,
        env=os.environ | {"PATH": path} | environment,
    )


def uris(file: Path, port: int) -> list[str]:
    """The URIs in a file's comment, that of another container as seen from here."""
    found = re.findall(r"^#\s+(mongodb://\S+)$", file.read_text(), re.MULTILINE)
    assert len(found) == 2
    here = (each.replace("mongodb:27017", f"{HOST}:27017") for each in found)
    return [
        each.replace("27017", str(port)).replace("PASSWORD", PASSWORD) for each in here
    ]


async def appended(uri: str) -> None:
    """Make a session through a URI, which needs a replica set with a primary."""
    async with MongoSessionService(uri) as service:
        assert service.database_name == "adk"
        await service.create_session(app_name="app", user_id="user")


async def test_the_health_check_makes_a_replica_set(shell: Path, port: int) -> None:
    """The first check initiates it, the next finds its primary, and both URIs work."""
    for _ in range(2):
        checked(shell, port)

    for uri in uris(FILES[0], port):
        await appended(uri)


async def test_the_health_check_logs_in(shell: Path, server: Secured) -> None:
    """With a password it logs in as root does, and so do both URIs."""
    checked(shell, server.port, MONGO_INITDB_ROOT_PASSWORD=PASSWORD)

    for uri in uris(FILES[1], server.port):
        await appended(uri)


def test_an_administrators_shell_runs_what_grants_prints(
    shell: Path, server: Secured, tmp_path: Path
) -> None:
    """The script creates the role, and updates it when it is run again."""
    script = tmp_path / "grants.js"
    script.write_text(call("grants", "--database", "adk", "--role", "app").stdout)

    for _ in range(2):
        uri = server.uri("root")
        subprocess.run([shell / "mongosh", "--quiet", uri, script], check=True)

    [role] = server.admin.admin.command("rolesInfo", "app", showPrivileges=True)[
        "roles"
    ]
    assert {each["resource"]["db"] for each in role["privileges"]} == {"adk", "local"}
