"""Passwords that are given apart from the URLs they are for."""

from __future__ import annotations

import click
import pytest
from sqlalchemy import make_url

from mongo_session_service.cli.options import with_password

PASSWORD = "p@ss/w:"  # noqa: S105  it opens nothing


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("postgresql://me@db/adk", "postgresql://me:p%40ss%2Fw%3A@db/adk"),
        ("postgresql+asyncpg://me:@/x?host=/s", None),
        ("mongodb://me:old@h1,h2/?replicaSet=rs0", None),
        ("mongodb+srv://me@h/adk", "mongodb+srv://me:p%40ss%2Fw%3A@h/adk"),
    ],
)
def test_a_password_is_put_into_its_url(url: str, whole: str | None) -> None:
    """It is the user's, quoted, whatever it consists of; the rest of the URL stays."""
    done = with_password(url, PASSWORD)

    if whole is not None:
        assert done == whole
    assert ":p%40ss%2Fw%3A@" in done
    assert done.split("@", 1)[1] == url.split("@", 1)[1]
    if url.startswith("postgresql"):
        assert make_url(done).password == PASSWORD


@pytest.mark.parametrize("url", ["postgresql://db/adk", "sqlite:///me@x.db", "me"])
def test_a_password_needs_a_user(url: str) -> None:
    """Without a user in the URL it is refused, rather than dropped."""
    with pytest.raises(click.UsageError, match="scheme://user@host") as caught:
        with_password(url, "s3cr3t")

    assert "s3cr3t" not in caught.value.message


def test_without_a_password_a_url_is_as_it_was() -> None:
    """One in the URL stays in use."""
    assert with_password("mongodb://me:mine@h", None) == "mongodb://me:mine@h"
