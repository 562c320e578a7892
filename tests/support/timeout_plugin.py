"""A plugin for pytest: a coroutine that hangs fails, and nothing else does.

``faulthandler_timeout`` ends any test that hangs, but with it the process that runs it.
A coroutine is cancelled before that, which shows where it was. A fixture could not do
it: it runs in another task than the test.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

_SHARE: Final = 0.5
"""Of the limit for all tests."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have it fail in time; not if Hypothesis runs it, many times perhaps."""
    seconds = float(item.config.getini("faulthandler_timeout")) * _SHARE
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = _in_time(item.obj, seconds or None)


def _in_time(
    test: Callable[..., Awaitable[None]], seconds: float | None
) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(*arguments: Any, **fixtures: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*arguments, **fixtures)

    return bounded
