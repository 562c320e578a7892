"""Progress on real pseudo-terminals, of any width and kind; and where none belongs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.forked_processes import on_a_terminal
from support.sample_data import fill

from mongo_session_service import MongoSessionService

pytestmark = pytest.mark.xdist_group("terminals")

CONTROL = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
FINISHED = r"Exporting ━+ 100% 24 events [\d,]+/s \d:\d\d:\d\d"


@pytest.fixture
async def export(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> list[str]:
    """A command that shows progress; then it says what it has done."""
    await fill(service)
    to = str(tmp_path / "sessions.jsonl")
    return ["export", mongodb_uri, "--database", database, "--to", to]


def lines(shown: str) -> list[str]:
    """What stands on a terminal at the end: a line may be drawn several times."""
    plain = CONTROL.sub("", shown).replace("\r\n", "\n")
    return [each.rpartition("\r")[2] for each in plain.rstrip("\n").split("\n")]


@pytest.mark.parametrize(
    ("columns", "shown_first"),
    [
        (80, FINISHED),
        (40, r"Exporting ━+ 100% [\d,]+/s \d:\d\d:\d\d"),
        (12, r"Exp.*"),
    ],
)
def test_progress_is_drawn_on_one_line(
    export: list[str], columns: int, shown_first: str
) -> None:
    """It never scrolls; on a narrow terminal the rate and the time go last."""
    code, shown = on_a_terminal(*export, columns=columns)

    assert code == 0
    drawn = re.split(r"[\r\n]+", CONTROL.sub("", shown).partition("Exported")[0])
    assert re.fullmatch(shown_first, lines(shown)[0])
    assert max(map(cell_len, drawn)) <= columns
    assert COLOUR.search(shown)


def test_progress_obeys_no_color(export: list[str]) -> None:
    """NO_COLOR takes the colours, and nothing else."""
    code, shown = on_a_terminal(*export, columns=80, NO_COLOR="1")

    assert code == 0
    assert re.fullmatch(FINISHED, lines(shown)[0])
    assert not COLOUR.search(shown)


def test_a_dumb_terminal_gets_a_line_at_the_end(export: list[str]) -> None:
    """One that cannot move its cursor is sent no control sequence."""
    code, shown = on_a_terminal(*export, columns=80, TERM="dumb")

    assert code == 0
    assert "\x1b" not in shown
    assert shown.count("Exporting") == 1
    assert re.match(FINISHED, shown)


def test_output_is_not_mixed_with_progress(export: list[str], tmp_path: Path) -> None:
    """What is piped away is whole; on the way to a terminal no line is in between."""
    path = tmp_path / "piped"
    arguments = export[: export.index("--to")]

    piped = on_a_terminal(*arguments, output=path)
    both = on_a_terminal(*arguments)

    assert (piped[0], both[0]) == (0, 0)
    assert [json.loads(each)["format"] for each in path.read_text().split("\n")[:1]]
    assert "Exporting" not in piped[1] + both[1]
    assert lines(piped[1])[0].startswith("Exported 5 sessions")


def test_json_stands_alone(at: tuple[str, ...]) -> None:
    """With --json the terminal gets nothing but an object; with -q, nothing at all."""
    code, shown = on_a_terminal("prune", "--json", *at)
    silent = on_a_terminal("prune", "-q", *at)

    assert code == 0
    assert json.loads(shown) == {"sessions": 0, "events": 0}
    assert silent == (0, "")


async def test_problems_are_printed_above_the_progress(
    export: list[str], service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """A difference that is found meanwhile has a line of its own, as has the result."""
    on_a_terminal(*export)
    await service.delete_user(app_name="weather", user_id="ada")
    place = (mongodb_uri, "--database", database)

    code, shown = on_a_terminal("verify", "jsonl", export[-1], *place)

    assert code == 3, shown
    *differences, progress, result = lines(shown)
    assert len(differences) > 1
    assert all(re.match("  (session|state) ", each) for each in differences)
    assert progress.startswith("Verifying ━")
    assert result.startswith("Compared ")
    assert re.search(r" in database \S+ on 127\.0\.0\.1:\d+: ", result)
