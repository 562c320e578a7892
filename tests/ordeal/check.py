"""The judge: what is wrong with a run, if anything."""

from __future__ import annotations

from itertools import islice

from ordeal.check_log import check_log
from ordeal.check_reads import check_reads
from ordeal.check_shared import check_shared
from ordeal.check_told import check_told
from ordeal.history import History

MOST = 20
"""Complaints of one kind."""


def check(history: History) -> list[str]:
    """Every way in which storage and readers contradict what clients were told."""
    checks = (check_log, check_shared, check_reads, check_told)
    return [complaint for each in checks for complaint in islice(each(history), MOST)]
