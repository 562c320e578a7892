"""No public method goes without hostile input."""

from __future__ import annotations

from support.hostile_values import VALUES, methods, parameters


def test_every_parameter_of_every_public_method_is_fuzzed() -> None:
    """A new parameter has hostile values, by its name, in tests/hostile.py."""
    missing = {
        f"{name}({each.name}=)"
        for name, method in methods()
        for each in parameters(method)
        if each.name not in VALUES
    }

    assert missing == set()
    assert {name for name, _ in methods()} >= {
        "MongoSessionService.append_event",
        "MongoSessionService.watch",
        "Consumer.run",
    }
