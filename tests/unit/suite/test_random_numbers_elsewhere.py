"""Hypothesis draws arguments while other threads draw random numbers."""

from __future__ import annotations

import random
import threading

from hypothesis import given
from hypothesis import strategies as st


def draw_elsewhere(text: str) -> str:
    """Have another thread draw a random number, as the driver does in the feed's."""
    thread = threading.Thread(target=random.random)
    thread.start()
    thread.join()
    return text


@given(st.builds(draw_elsewhere, st.sampled_from(["x" * 40_000])))
def test_no_strategy_is_blamed_for_another_threads_numbers(text: str) -> None:
    """Not even by a warning about the length of its description."""
    assert text
