"""The judge of a run."""

from __future__ import annotations

from itertools import islice

from chaos.check_log import check_log
from chaos.check_reads import check_reads
from chaos.check_received import check_received
from chaos.check_shared import check_shared
from chaos.history import History

MOST = 20
"""Complaints of one kind."""


def check(history: History) -> list[str]:
    """Each way in which storage and readers contradict the answers to clients."""
    checks = (check_log, check_shared, check_reads, check_received)
    return [complaint for each in checks for complaint in islice(each(history), MOST)]
