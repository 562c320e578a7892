"""Dashboard and alert rules name metrics that exist, as Prometheus spells them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import opentelemetry.metrics
import pytest
import yaml
from opentelemetry.metrics import NoOpMeter

from mongo_session_service import telemetry
from mongo_session_service.feed import stats

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations"
RULES = [
    rule
    for group in yaml.safe_load((OPERATIONS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((OPERATIONS / "dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
UNITS = {"s": "_seconds"}
"""The suffixes of units; one in braces has none."""
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
    "up_down_counter": ("",),
}
LABELS = {
    *("db.namespace", "db.operation.name", "db.system.name", "error.type", "le"),
    *("messaging.consumer.group.name", "mongo_session_service.turn.status"),
}


class Declarations(NoOpMeter):
    """A meter that keeps what is created of it."""

    def __init__(self) -> None:
        super().__init__("declarations")
        self.made: list[tuple[str, str, str]] = []

    def __getattribute__(self, name: str) -> Any:
        made: Callable[..., Any] = super().__getattribute__(name)
        if not name.startswith("create_"):
            return made
        kind = name.removeprefix("create_").removeprefix("observable_")

        def create(metric: str, *arguments: Any, **options: Any) -> Any:
            units = [it for it in arguments if it == "s" or str(it).startswith("{")]
            self.made.append((metric, kind, units[0]))
            return made(metric, *arguments, **options)

        return create


def executed_again(module: ModuleType) -> None:
    """Run what a module does when it is imported, in a copy of it."""
    assert module.__spec__
    copy = importlib.util.module_from_spec(module.__spec__)
    assert module.__spec__.loader
    module.__spec__.loader.exec_module(copy)


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The series of each metric, as OpenTelemetry's exporter names them."""
    meter = Declarations()
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", lambda *_: meter)
    monkeypatch.setattr(telemetry, "meter", meter)
    for module in (telemetry, stats):
        executed_again(module)
    return {
        metric: {
            re.sub(r"\W", "_", metric) + UNITS.get(unit, "") + suffix
            for suffix in SUFFIXES[kind]
        }
        for metric, kind, unit in meter.made
    }


def named_series(expression: str) -> set[str]:
    without_labels = re.sub(r"\{[^}]*\}|by \([^)]*\)", "", expression)
    return set(re.findall(r"\b(?:db|mongo)_\w+", without_labels))


def named_labels(expression: str) -> set[str]:
    listed = re.findall(r"by \(([^)]*)\)", expression)
    matched = re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"', expression)
    return {*matched, *(it.strip() for each in listed for it in each.split(","))}


@pytest.mark.parametrize("expression", [*SHOWN, *(each["expr"] for each in RULES)])
def test_each_expression_names_what_exists(
    expression: str, series: dict[str, set[str]]
) -> None:
    """A metric that is renamed is renamed there as well."""
    assert named_series(expression) <= set().union(*series.values())
    assert named_labels(expression) <= {re.sub(r"\W", "_", each) for each in LABELS}


def test_the_dashboard_shows_every_metric(series: dict[str, set[str]]) -> None:
    """A new one gets its place there."""
    shown = set().union(*map(named_series, SHOWN))
    assert [metric for metric, names in series.items() if not names & shown] == []


def test_grafana_can_show_the_dashboard() -> None:
    """Panels have ids and places of their own; what is chosen above them is defined."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert len({each["id"] for each in PANELS}) == len(PANELS)
    taken = [
        (column, line)
        for place in (each["gridPos"] for each in PANELS)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(column for column, _ in taken) < 24
    for panel in PANELS:
        assert panel["title"]
        assert len({each["refId"] for each in panel["targets"]}) == len(
            panel["targets"]
        )
    chosen = {each["name"] for each in DASHBOARD["templating"]["list"]}
    named = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS)))
    assert named == chosen | {"__rate_interval"}


def test_every_label_is_a_metric_s() -> None:
    """As the package sets them."""
    code = Path(telemetry.__file__).read_text() + Path(stats.__file__).read_text()
    written = code.replace('f"{NAME}.', '"mongo_session_service.')
    assert [each for each in LABELS - {"le"} if f'"{each}"' not in written] == []


def test_every_alert_has_its_reason_and_remedy() -> None:
    """Who is woken reads what has happened, and what to do."""
    text = (OPERATIONS / "alerts.yml").read_text()
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert re.search(rf"alert: {rule['alert']}\n +# \S", text)
