"""Circumstances of a run: what the programs of the benchmark share beside figures."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROUNDS = 5
"""The least number of rounds for figures that may be quoted."""


def make_parser(program: str, about: str | None) -> argparse.ArgumentParser:
    """Make a parser of the arguments that all programs take."""
    parser = argparse.ArgumentParser(
        f"scripts/bench {program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="rough: 2 rounds")
    add("--rounds", type=int, metavar="N", help="how often each is measured")
    add("--json", type=Path, metavar="FILE", help="write every figure")
    return parser


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments; exits with 2 if a shared one makes no sense."""
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else ROUNDS)
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    for file in (arguments.json, vars(arguments).get("svg")):
        if file and not file.absolute().parent.is_dir():
            parser.error(f"there is no directory {file.parent}")
    return arguments


def collect_facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect what figures depend on; silence the packages, warn of a busy machine."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    packages = ("google-adk", "pymongo", "pydantic", "mongo-session-service")
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "cpus": os.cpu_count(),
        "load_before": [round(each, 1) for each in os.getloadavg()],
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
    if is_busy(facts):
        load = facts["load_before"][0]
        print(
            f"bench: a load average of {load} on {facts['cpus']} CPUs: figures will be"
            " unsteady",
            file=sys.stderr,
        )
    return facts


def is_rough(facts: Mapping[str, Any]) -> bool:
    """True if too little was measured to quote, or judge, its figures."""
    return bool(facts["quick"]) or facts["rounds"] < ROUNDS


def is_busy(facts: Mapping[str, Any]) -> bool:
    """True if the machine had too much else to do when the run began."""
    return bool(facts["load_before"][0] > facts["cpus"])


def described(facts: Mapping[str, Any]) -> str:
    """Describe a run, for whoever reads its figures."""
    rounds = facts["rounds"]
    text = f"{rounds} round{'s' * (rounds != 1)} on {facts['cpus']} CPUs"
    if is_rough(facts):
        text = f"rough: {text}"
    if is_busy(facts):
        text += f"; busy: load average {facts['load_before'][0]:.1f} at its start"
    return text


def listed(facts: Mapping[str, Any]) -> str:
    """All facts, on one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def show_progress(step: str) -> None:
    """Show what is done now: on one line of a terminal, else on a line of its own."""
    if sys.stderr.isatty():
        print(f"\r\033[K{step[:79]}", end="", file=sys.stderr, flush=True)
    elif step:
        print(step, file=sys.stderr, flush=True)


def write_json(file: Path | None, figures: Mapping[str, Any]) -> None:
    """Write what was measured, if that was asked for."""
    if file:
        file.write_text(json.dumps(figures, indent=1))
