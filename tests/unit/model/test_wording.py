"""Words that depend on what they go with."""

from __future__ import annotations

from uuid import UUID

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session

from mongo_session_service.model.wording import counted, indefinite


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 events"), (1, "1 event"), (2, "2 events"), (1000, "1,000 events")],
)
def test_one_of_something_is_no_plural(number: int, shown: str) -> None:
    """And what are many is told in thousands."""
    assert counted(number, "event") == shown


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (int, "an int"),
        (Event, "an Event"),
        (EventActions, "an EventActions"),
        (object, "an object"),
        (str, "a str"),
        (Session, "a Session"),
        (UUID, "a UUID"),
    ],
)
def test_an_article_is_as_it_is_spoken(kind: type, shown: str) -> None:
    """Before a vowel it is another than before the rest."""
    assert indefinite(kind.__name__) == shown
