"""Messages that quote an argument, where somebody has put a URI."""

from __future__ import annotations

import pytest

from mongo_session_service.errors import quoted, without_passwords

LONG = "mongodb://ada:" + "hunter2" * 30 + "@h/"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'mongodb://ada:hunter2@h/adk' is", "'mongodb://...@h/adk' is"),
        ("no postgresql+asyncpg://ada:a b\n/?@'@h", "no postgresql+asyncpg://...@h"),
        ("mongodb:/ada:hunter2@h", "mongodb:/...@h"),
        ("postgresql://h/x?a=1&password=hunter2&b=2", None),
        ("mongodb://h/?authMechanismProperties=TOKEN:hunter2", None),
        ("mongodb://h/?tlsCertificateKeyFilePassword=hunter2'", None),
        ("ada@example.org in mongodb://h1,h2/adk?w=1", "="),
    ],
)
def test_a_password_is_removed(text: str, shown: str | None) -> None:
    """It goes whole, and what has none stays as it is."""
    plain = without_passwords(text)

    assert "hunter2" not in plain
    if shown is not None:
        assert plain == (text if shown == "=" else shown)


def test_a_name_is_quoted_without_it() -> None:
    """A name that is cut does not lose the sign by which a password is known."""
    assert quoted(LONG) == "'mongodb://...@h/'"
