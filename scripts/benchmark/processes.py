"""The workload that appends from several processes, and what they run."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import warnings
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from benchmark.appends import SharedState
from benchmark.contestants import Contestant, Place
from benchmark.measure import Turn, measured, time_lanes
from benchmark.rivals import CONTESTANTS

_PROCESSES = 4


class FromProcesses(SharedState):
    """`SharedState`, its sessions divided among four processes."""

    def __init__(self, name: str, place: Place, *, at_once: int) -> None:
        super().__init__(name, "/s", at_once=at_once)
        self._place = place
        self._workers: list[asyncio.subprocess.Process] = []

    @override
    def can(self, contestant: Contestant) -> bool:
        return contestant.is_shared

    @override
    async def prepare(self, contestant: Contestant) -> None:
        await super().prepare(contestant)
        if not self._workers:
            starting = [self._start() for _ in range(_PROCESSES)]
            self._workers = await asyncio.gather(*starting)
        for worker in self._workers:
            await self._ask(worker, contestant=contestant.name)

    async def _start(self) -> asyncio.subprocess.Process:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmark.processes"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
            start_new_session=True,  # so that Ctrl-C interrupts the bench alone
        )
        # Not on its command line, which is for all to see.
        await self._ask(worker, **asdict(self._place))
        return worker

    async def _ask(self, worker: asyncio.subprocess.Process, **what: Any) -> Any:
        assert worker.stdin  # noqa: S101
        assert worker.stdout  # noqa: S101
        worker.stdin.write(json.dumps(what).encode() + b"\n")
        await worker.stdin.drain()
        answer = json.loads(await worker.stdout.readline() or '"it has ended"')
        if isinstance(answer, str):
            message = f"a process failed: {answer}"
            raise RuntimeError(message)  # noqa: TRY004
        return answer

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        appended = self._appended[contestant]
        wanted = self._per_second[contestant] * budget
        each = max(1, int(wanted / self.at_once))
        share = self.at_once // _PROCESSES
        asking = []
        start_at = time.time() + 0.1
        for number, worker in enumerate(self._workers):
            indices = range(number * share, (number + 1) * share)
            task = {
                "contestant": contestant.name,
                "app": self.app,
                "sessions": [(each, len(appended[each])) for each in indices],
                "count": each,
                "at": start_at,
            }
            asking.append(self._ask(worker, **task))
        async with measured(contestant.server_cpu) as turn:
            answers = await asyncio.gather(*asking)
        for answer in answers:
            turn.values += answer["calls"]
            for index, ids in answer["ids"]:
                appended[index] += ids
        turn.client = sum(each["cpu"] for each in answers)
        turn.elapsed = max(each["end"] for each in answers) - start_at
        self._per_second[contestant] = len(turn.values) / turn.elapsed
        return turn

    @override
    async def close(self) -> None:
        await super().close()
        for worker in self._workers:
            assert worker.stdin  # noqa: S101
            worker.stdin.close()
        for worker in self._workers:
            try:
                async with asyncio.timeout(10):
                    await worker.wait()
            except TimeoutError:
                worker.kill()
                await worker.wait()
        self._workers = []


class _Part(SharedState):
    """What one of the processes does of it."""

    async def run(self, contestant: Contestant, task: dict[str, Any]) -> Any:
        """Append to some of the sessions, all from the same moment on."""
        known = self._sessions.setdefault(contestant, {})  # type: ignore[arg-type]
        self._appended.setdefault(contestant, {})  # type: ignore[arg-type]
        self.app = task["app"]
        lanes = []
        for index, length in task["sessions"]:
            if index not in known:
                known[index] = await contestant.service.get_session(
                    app_name=self.app,
                    user_id=self.user(index),
                    session_id=f"{self.app}-{index}",
                )
            self._appended[contestant][index] = [""] * length
            lanes.append(self._lane(contestant, index, task["count"]))
        await asyncio.sleep(task["at"] - time.time())
        turn = await time_lanes(lanes, _nobody_asks)
        ids = [
            (index, self._appended[contestant][index][length:])
            for index, length in task["sessions"]
        ]
        return {
            "calls": turn.values,
            "ids": ids,
            "cpu": turn.client,
            "end": task["at"] + turn.elapsed,
        }


async def _nobody_asks() -> None:
    """The server's clock, which the other process reads."""


async def _serve() -> None:
    place: Place | None = None
    opened: dict[str, Contestant] = {}
    part = _Part("part")
    while line := await asyncio.to_thread(sys.stdin.readline):
        task = json.loads(line)
        answer: Any = {}
        try:
            if place is None:
                place = Place(**task)
            elif (name := task["contestant"]) not in opened:
                opened[name] = CONTESTANTS[name](place)
                await opened[name].open()
            else:
                answer = await part.run(opened[name], task)
        except Exception as error:  # noqa: BLE001  told to who asked
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)
    for contestant in opened.values():
        await contestant.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    asyncio.run(_serve())
