"""What titles, labels and times are taken, and how they are stored."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from mongo_session_service import InvalidInputError
from mongo_session_service.codec.record import SessionRecord
from mongo_session_service.model.metadata import (
    MAX_TTL,
    NO_DETAILS,
    NOT_GIVEN,
    Details,
    StoredDetails,
)
from mongo_session_service.model.records import SessionKey

NOW = 1.8e9

BAD = [
    ({"title": ""}, "title must not be empty"),
    ({"title": 1}, "title must be a string"),
    ({"title": "x" * 1001}, "title has 1001 characters; 1000 are allowed"),
    ({"title": "\ud800"}, "title is not valid Unicode"),
    ({"labels": ["a"]}, "labels must be a dict"),
    ({"labels": {"": "x"}}, "label's name must not be empty"),
    ({"labels": {1: "x"}}, "label's name must be a string"),
    ({"labels": {"a": 1}}, "value of label 'a' must be a string"),
    ({"labels": {"a": "x" * 257}}, "value of label 'a' has 257 characters"),
    ({"labels": {str(number): "" for number in range(65)}}, "65 labels are too many"),
    ({"ttl": 0}, "ttl must be more than 0"),
    ({"ttl": -1.0}, "ttl must be more than 0"),
    ({"ttl": float("nan")}, "ttl must be more than 0"),
    ({"ttl": 10**400}, "at most 3155760000 seconds"),
    ({"ttl": timedelta.max}, "at most 3155760000 seconds"),
    ({"ttl": "60 s"}, "ttl must be seconds, a timedelta or text such as"),
    ({"ttl": "inf"}, "ttl must be seconds, a timedelta or text such as"),
    ({"ttl": "0s"}, "ttl must be more than 0"),
    ({"ttl": True}, "ttl must be seconds, a timedelta or text such as"),
    ({"expire_time": 1.9e9}, "expire_time must be a datetime"),
    ({"expire_time": "tomorrow"}, "expire_time is not ISO 8601"),
    ({"expire_time": "2100-01-01T00:00:00"}, "expire_time has no time zone"),
    ({"expire_time": "2000-01-01T00:00:00Z"}, "must be in the future"),
    ({"expire_time": "2100-01-01T00:00:00Z", "ttl": 1}, "but not both"),
    ({"expire_time": "2100-01-01T00:00:00Z", "ttl": math.inf}, "but not both"),
    ({"ttl": -math.inf}, "ttl must be more than 0"),
]


def created(
    title: object = None,
    labels: object = None,
    ttl: object = None,
    expire_time: object = None,
) -> Details:
    given = {"title": title, "labels": labels, "ttl": ttl, "expire_time": expire_time}
    return StoredDetails.given(NOW, is_new=True, **given)


def changed(
    title: object = NOT_GIVEN,
    labels: object = NOT_GIVEN,
    ttl: object = NOT_GIVEN,
    expire_time: object = NOT_GIVEN,
) -> dict[str, Any]:
    given = {"title": title, "labels": labels, "ttl": ttl, "expire_time": expire_time}
    return StoredDetails.given(NOW, **given).changed()


@pytest.mark.parametrize(("details", "reason"), BAD)
def test_bad_details_are_refused(details: dict[str, Any], reason: str) -> None:
    """What a session cannot have is refused, and the error says why."""
    with pytest.raises(InvalidInputError, match=reason):
        created(**details)


@pytest.mark.parametrize(("details", "reason"), [*BAD, ({}, "Give a title")])
def test_bad_changes_are_refused(details: dict[str, Any], reason: str) -> None:
    """So it is when a session is to get it later, or nothing at all."""
    with pytest.raises(InvalidInputError, match=reason):
        changed(**details)


def read_back(details: StoredDetails) -> StoredDetails:
    key = SessionKey("app", "user", "s")
    return SessionRecord.part(key, {"_id": key.id, **details.to_document()}).details


def test_details_are_read_back_as_stored() -> None:
    """Details are the same after storage, and take no place if there are none."""
    details = created(title="T" * 1000, labels={"b": "", "a": "x" * 256}, ttl=MAX_TTL)

    assert read_back(details) == details
    assert details.to_document()["labels"][0] == {"name": "a", "value": "x" * 256}
    assert created(labels={}).to_document() == NO_DETAILS.to_document() == {}
    assert read_back(NO_DETAILS) == NO_DETAILS


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2027, 2, 1, 12, tzinfo=UTC),
        datetime(2027, 2, 1, 7, tzinfo=timezone(timedelta(hours=-5))),
        "2027-02-01T12:00:00Z",
        "2027-02-01T13:00:00+01:00",
        "20270201T120000Z",
    ],
)
def test_a_moment_has_many_forms(moment: object) -> None:
    """Whatever the form and the time zone, a moment is the same."""
    assert created(expire_time=moment).expire_time == 1801483200.0


def test_a_change_names_the_details_it_removes() -> None:
    """None or something empty stands for what is to go; the rest is left out."""
    assert changed(title=None) == {"title": ""}
    assert changed(labels={}) == changed(labels=None) == {"labels": []}
    assert changed(ttl=None) == {"ttl": None, "expire_time": None}
    assert changed(ttl=timedelta(minutes=1)) == {"ttl": 60.0, "expire_time": None}
    assert changed(ttl="60.5s") == {"ttl": 60.5, "expire_time": None}
    assert changed(expire_time=None) == changed(ttl=math.inf) == changed(ttl=None)
    fixed = {"ttl": None, "expire_time": 1801483200.0}
    assert changed(ttl=None, expire_time="2027-02-01T12:00:00Z") == fixed
