import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support.patience import PATIENCE

import mongo_session_service

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
WITH_PASSWORD = ROOT / "docker-compose.auth.yml"
GITHUB = ROOT / ".github"
SCRIPTS = [
    ROOT / ".ci/run",
    *(
        path
        for path in sorted((ROOT / "scripts").iterdir())
        if path.is_file() and path.name not in {"noxfile.py", "constraints.txt"}
    ),
]


@pytest.mark.parametrize(
    ("schema", "described"),
    [
        ("compose-spec", [COMPOSE, WITH_PASSWORD]),
        ("github-workflows", [*GITHUB.glob("workflows/*.yml")]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
        ("github-issue-forms", [*GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")]),
    ],
)
def test_files_for_other_tools_follow_their_schemas(
    schema: str, described: list[Path]
) -> None:
    """Each is valid under the schema of those who read it."""
    check = [sys.executable, "-m", "check_jsonschema", "--verbose"]
    builtin = ["--builtin-schema", f"vendor.{schema}"]

    result = subprocess.run(
        [*check, *builtin, *described], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert described


def test_links_between_pages_outside_of_the_site_lead_somewhere() -> None:
    """Each relative link of a page at the root or in examples/ names a file here."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("examples/*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)


def test_compose_publishes_only_on_this_machine() -> None:
    """No port of the Compose file can be reached from another machine."""
    services = yaml.safe_load(COMPOSE.read_text())["services"].values()

    ports = [port for service in services for port in service["ports"]]

    assert ports == ["127.0.0.1:27017:27017"]
    assert not any("network_mode" in service for service in services)


def test_compose_sends_clients_to_the_published_address() -> None:
    """The replica set is initiated under the name and the address clients use."""
    service = yaml.safe_load(COMPOSE.read_text())["services"]["mongodb"]

    probe = service["healthcheck"]["test"][-1]

    secured = yaml.safe_load(WITH_PASSWORD.read_text())["services"]["mongodb"]

    assert service["command"][1:3] == ["--replSet", "rs0"]
    assert secured["command"][:4] == service["command"]
    assert "ports" not in secured
    assert '_id: "rs0"' in probe
    assert 'host: "127.0.0.1:27017"' in probe


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_runs_and_explains_itself(script: Path) -> None:
    """Every script is executable, has a shebang and answers --help."""
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!")

    result = subprocess.run(
        [script, "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert result.returncode == 0, result.stderr
    assert "Usage:" in result.stdout or "usage:" in result.stdout


def test_version_is_the_same_everywhere() -> None:
    """The installed metadata and the package agree on the version."""
    installed = importlib.metadata.version("mongo-session-service")

    assert installed == mongo_session_service.__version__


def test_the_citation_names_the_authors_of_the_package() -> None:
    """Who is cited is who published it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert [each["name"] for each in cited["authors"]] == [
        each["name"] for each in project["authors"]
    ]


def test_licence_is_apache() -> None:
    """The licence named in the metadata is the licence whose full text is shipped."""
    metadata = importlib.metadata.metadata("mongo-session-service")

    text = (ROOT / "LICENSE").read_text()

    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0," in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_every_named_extra_exists_and_is_named_in_full() -> None:
    """Messages say mongo-session-service[x], which works outside of a checkout, too."""
    published = importlib.metadata.metadata("mongo-session-service")
    extras = published.get_all("Provides-Extra") or []
    code = [*(ROOT / "mongo_session_service").rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in [*code, *pages, ROOT / "examples/README.md"]:
        text = path.read_text()
        named = re.findall(r"mongo-session-service\[([\w,]+)\]", text)

        assert {each for one in named for each in one.split(",")} <= {*extras}, path
        if path in code:
            assert "extra '" not in text, path
            assert not re.search(rf"\.\[({'|'.join(extras)})\b", text), path
