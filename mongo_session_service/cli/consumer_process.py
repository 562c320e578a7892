"""Process around a consumer: its log and its signals."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

import click

from mongo_session_service.cli import terminal
from mongo_session_service.cli.options import StderrHandler
from mongo_session_service.consumers.consumer import Consumer
from mongo_session_service.consumers.handler import Handler

logger = logging.getLogger(__name__)


def log_with_times() -> None:
    """Log with times to stderr, as services do; -v adds details, and -q leaves out."""
    level = "DEBUG" if terminal.given().verbose else "INFO"
    root, library = logging.getLogger(), logging.getLogger("mongo_session_service")
    shown, before = logging.StreamHandler(), library.level
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    shown.setFormatter(logging.Formatter(form))
    root.addHandler(shown)
    for each in [*library.handlers]:
        if isinstance(each, StderrHandler):  # that of -v would show it once more
            library.removeHandler(each)
    library.setLevel("WARNING" if terminal.given().quiet else level)
    context = click.get_current_context()
    context.call_on_close(lambda: root.removeHandler(shown))
    context.call_on_close(lambda: library.setLevel(before))


async def run_until_signal(
    consumer: Consumer, handler: Handler, where: str, **how: Any
) -> None:
    """Run a consumer, until it has caught up if so asked, or a signal closes it."""
    logger.info("Consumer %r starts in %s.", consumer.name, where)
    _close_at_signal(consumer)
    await consumer.run(handler, **how)
    logger.info("Consumer %r has ended.", consumer.name)


def _close_at_signal(consumer: Consumer) -> None:
    """Let a signal close the consumer, and the next one end this process at once."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal(number: int, _: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        logger.info("%s: it ends after what is in hand.", signal.Signals(number).name)
        asyncio.run_coroutine_threadsafe(consumer.close(), loop)

    # Not the loop's own handlers, which wait for a handler that blocks the loop.
    for each in signals:
        signal.signal(each, on_signal)
