"""Lets the contestants take turns."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field

from benchmark.contestants import Contestant
from benchmark.measure import Result
from benchmark.plan import Results
from benchmark.workload import Check, Workload


@dataclass
class Pace:
    """How much is measured."""

    rounds: int
    budget: float
    """Seconds per turn, roughly."""
    is_quick: bool
    """Whether the heaviest workloads have one round, without references."""
    is_frozen: bool = True
    """Whether what is there before the turns is hidden from the garbage collector.

    There is less noise, then. But Python looks at everything when a quarter as much is
    new as it knows of, so a call that makes very much causes this more often.
    """


@dataclass
class Run:
    """The contestants, and what they achieved."""

    contestants: list[Contestant]
    pace: Pace
    results: Results = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """The checks that failed."""

    async def run(self, groups: list[list[Workload]]) -> None:
        """Run groups of workloads, one after the other."""
        for number, group in enumerate(groups, 1):
            self._where = f"{number}/{len(groups)} {group[0].name}"
            if not sys.stderr.isatty():
                print(self._where, file=sys.stderr, flush=True)
            try:
                await self._run(group)
            finally:
                for workload in group:
                    await workload.close()
                    for contestant in self.contestants:
                        contestant.forget(workload.app)
                gc.unfreeze()
        if sys.stderr.isatty():
            tell("")

    async def _run(self, group: list[Workload]) -> None:
        entries = self._entries(group)
        for entry in list(entries):
            if not await self._step("preparing", entry):
                entries.remove(entry)
        gc.collect()
        if self.pace.is_frozen:
            gc.freeze()  # what is there by now costs nobody's turn a thing
        for number in range(self.pace.rounds):
            for entry in list(entries):
                if number and self.pace.is_quick and entry[0].heavy:
                    continue
                step = f"round {number + 1} of {self.pace.rounds}"
                if not await self._step(step, entry):
                    entries.remove(entry)
            entries.reverse()  # whoever came first has no advantage of it
        for entry in entries:
            await self._step("checking", entry)

    def _entries(self, group: list[Workload]) -> list[tuple[Workload, Contestant]]:
        """Who does what; a result is noted for those who do not, too."""
        entries = []
        for workload in group:
            results = self.results.setdefault(workload.name, {})
            for contestant in self.contestants:
                result = results[contestant.name] = Result(workload.unit)
                if not workload.can(contestant):
                    result.note = "not applicable"
                elif self.pace.is_quick and workload.heavy and contestant.is_reference:
                    result.note = "not in --quick"
                else:
                    entries.append((workload, contestant))
        return entries

    async def _step(self, step: str, entry: tuple[Workload, Contestant]) -> bool:
        """Prepare, measure or check; False if it failed."""
        workload, contestant = entry
        result = self.results[workload.name][contestant.name]
        if sys.stderr.isatty():
            tell(f"{self._where}, {step}: {contestant.name}")
        try:
            await self._do(step, workload, contestant, result)
        except Check as failed:
            result.note = f"WRONG: {failed}"
            self.wrong.append(f"{workload.name}, {contestant.name}: {failed}")
        except Exception as error:  # noqa: BLE001  others can go on
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            reason = " ".join(str(first).split())
            result.turns.clear()
            result.note = f"cannot: {type(first).__name__}: {reason}"[:200]
            if contestant.is_ours:
                self.wrong.append(f"{workload.name}, {contestant.name}: {result.note}")
        else:
            return True
        return False

    async def _do(
        self, step: str, workload: Workload, contestant: Contestant, result: Result
    ) -> None:
        if step == "preparing":
            await workload.prepare(contestant)
            await workload.turn(contestant, 0)  # to warm up
        elif step != "checking":
            gc.collect()
            result.turns.append(await workload.turn(contestant, self.pace.budget))
        elif lost := await workload.check(contestant):
            result.note = f"LOST {lost}"
            if contestant.is_ours:
                raise Check(f"{lost} state keys were lost")


def say(step: str) -> None:
    """Show what is done now: on one line of a terminal, else on a line of its own."""
    if sys.stderr.isatty():
        tell(step)
    else:
        print(step, file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Show how far it is, on one line that is written over."""
    print(f"\r\033[K{text[:79]}", end="", file=sys.stderr, flush=True)
