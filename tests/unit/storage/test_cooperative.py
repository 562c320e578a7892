"""The pause of Python's garbage collector ends, and changes nothing else."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from mongo_session_service.storage.tasks import with_gc_paused


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    """Tests begin and end with a collector that is enabled."""
    assert gc.isenabled()
    yield
    gc.enable()


def test_a_disabled_collector_stays_disabled() -> None:
    """What the application has disabled is not enabled."""
    gc.disable()

    assert not with_gc_paused(gc.isenabled)

    assert not gc.isenabled()


def test_a_failure_ends_the_pause() -> None:
    """Whatever the work raises, an interrupt as well."""

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_gc_paused(fail)
    assert gc.isenabled()


@pytest.fixture
def elsewhere() -> Iterator[Callable[[], None]]:
    """A pause of another thread; the function ends it."""
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=lambda: with_gc_paused(hold))

    def end() -> None:
        over.set()
        thread.join()

    thread.start()
    begun.wait()
    yield end
    end()


@pytest.mark.usefixtures("elsewhere")
def test_a_forked_process_collects_garbage() -> None:
    """The thread that had paused the collector does not exist there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)

    assert os.waitpid(child, 0) == (child, 0)
