"""A fault campaign: full load, mixed faults, and a check at the end."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from support.replica_set import FailingReplicaSet

from chaos.disks import small_disks
from chaos.figures import figures
from chaos.run import Outcome, Plan, run
from chaos.sampling import Sample
from mongo_session_service.embedded import EmbeddedServerError

MEMBERS = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--freeze", type=float, default=20)
    parser.add_argument("--small-disks", type=int)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if asked.minutes <= 0 or asked.processes < 1 or asked.clients < 1:
        parser.error("--minutes, --processes and --clients must be more than 0")
    return asked


def show(minutes: float) -> None:
    """A function that says how far it is: one line on a terminal, else each fault."""
    total = minutes * 60

    def progress(what: str, sample: Sample) -> None:
        line = (
            f"{sample.at:6.0f} of {total:.0f} s  {sample.memory:5.0f} MB"
            f"  {sample.connections:4d} connections  {what}"
        )
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="\n" if what else "", file=sys.stderr)
        elif what:
            print(line, file=sys.stderr, flush=True)

    return progress  # type: ignore[return-value]


def soak(asked: argparse.Namespace, folder: Path) -> Outcome:
    plan = Plan(
        seed=asked.seed,
        seconds=asked.minutes * 60,
        processes=asked.processes,
        clients=asked.clients,
        freeze=asked.freeze,
        calm=5,
    )
    with ExitStack() as stack:
        disks = None
        if asked.small_disks is not None:
            disks = stack.enter_context(small_disks(MEMBERS, asked.small_disks))
        replica_set = stack.enter_context(FailingReplicaSet(MEMBERS, disks))
        return run(plan, replica_set, folder, show(asked.minutes))


def main() -> int:
    asked = arguments()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    if list(folder.iterdir()):
        print(f"soak: {folder} is not empty", file=sys.stderr)
        return 2
    print(f"Seed {asked.seed}, {asked.minutes:g} minutes.", flush=True)
    try:
        outcome = soak(asked, folder)
    except EmbeddedServerError as error:
        print(f"soak: MongoDB failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print()
    print(figures(outcome))
    for complaint in outcome.complaints:
        print("-", complaint[:500])
    if outcome.complaints:
        print(f"{len(outcome.complaints)} answers were not true.")
        return 1
    print("Every answer was true.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
