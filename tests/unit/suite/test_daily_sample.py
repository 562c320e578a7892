"""Each case of a product that runs as a daily sample has its days."""

from __future__ import annotations

from support.daily_sample import in_turn

CASES = [f"test_of_a_product[{n}]" for n in range(4)]


def test_each_day_has_others_and_each_case_its_day() -> None:
    """A day's choice is the same wherever it is made; in some weeks all were chosen."""
    days = [f"2026-03-{day:02}" for day in range(1, 29)]
    chosen = [in_turn(day, CASES)[0] for day in days]

    assert chosen == [in_turn(day, reversed(CASES))[0] for day in days]
    assert {*chosen} == {*CASES}
