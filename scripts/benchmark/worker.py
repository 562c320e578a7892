"""Processes: each contestant runs in one of its own, so that none burdens another.

The benchmark tells it one step after another, as lines of JSON. A process may import
the package from another checkout: so one run compares two states of it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mongo_session_service
from benchmark.contestants import CONTESTANTS, Servers
from benchmark.figures import Sample, WrongError
from benchmark.workloads import make_workloads

SCRIPTS = Path(__file__).parents[1]


class StepError(Exception):
    """A contestant failed; the message says how."""


class Worker:
    """The process of a contestant, seen from the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, checkout: Path) -> Worker:
        """Start a process that imports the package, and all else, from a checkout."""
        python = checkout / ".venv/bin/python"
        process = await asyncio.create_subprocess_exec(
            *(str(python) if python.exists() else sys.executable, "-P"),
            *("-m", "benchmark.worker"),
            env=os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{SCRIPTS}"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
            start_new_session=True,  # so that Ctrl-C interrupts the benchmark alone
        )
        return cls(process)

    async def ask(self, step: str, **details: Any) -> Any:
        """Have it do a step; what it answers.

        Raises:
            WrongError: it stored or read something else than it was given.
            StepError: it failed.
        """
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        line = json.dumps({"step": step, **details}).encode() + b"\n"
        self._process.stdin.write(line)
        with suppress(OSError):  # as reading from a process that has ended
            await self._process.stdin.drain()
        answered = await self._process.stdout.readline()
        if not answered:
            raise StepError("its process has ended")
        answer = json.loads(answered)
        if "wrong" in answer:
            raise WrongError(answer["wrong"])
        if "failed" in answer:
            raise StepError(answer["failed"])
        return answer["done"]

    async def sample(self, seconds: float) -> Sample:
        """Have it run the workload that it has prepared."""
        return Sample(**await self.ask("sample", seconds=seconds))

    async def end(self) -> None:
        """Have it remove what it stored, and wait for its end."""
        with suppress(StepError, WrongError):
            await self.ask("close")
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class _Steps:
    """The other side: what the process does."""

    async def open(self, contestant: str, **servers: Any) -> str:
        self._contestant = CONTESTANTS[contestant](Servers(**servers))
        await self._contestant.open()
        return mongo_session_service.__file__

    async def prepare(self, workload: str) -> None:
        self._workload = make_workloads()[workload]
        await self._workload.prepare(self._contestant)
        await self._workload.sample(0)  # to warm up

    async def sample(self, seconds: float) -> Any:
        gc.collect()
        return asdict(await self._workload.sample(seconds))

    async def check(self) -> int:
        return await self._workload.check()

    async def close(self) -> None:
        await self._contestant.close()


async def _serve() -> None:
    steps = _Steps()
    while line := await asyncio.to_thread(sys.stdin.readline):
        details = json.loads(line)
        step = details.pop("step")
        answer: dict[str, Any]
        try:
            answer = {"done": await getattr(steps, step)(**details)}
        except WrongError as wrong:
            answer = {"wrong": str(wrong)}
        except Exception as error:  # noqa: BLE001  told to the benchmark
            answer = {"failed": _told(error)}
        print(json.dumps(answer), flush=True)
        if step == "close":
            break


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason}"[:200]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    asyncio.run(_serve())
