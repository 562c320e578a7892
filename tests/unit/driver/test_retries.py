"""Which failures are retried, and how long a retry waits."""

from __future__ import annotations

from pymongo.errors import ConfigurationError as DriverConfigurationError

from mongo_session_service import StorageUnavailableError
from mongo_session_service.driver.retries import is_transient
from mongo_session_service.driver.tasks import backoff
from mongo_session_service.driver.translation import translate_error


def test_a_member_that_is_starting_is_an_outage_that_passes() -> None:
    """It knows no sessions yet, which is not how the deployment is configured."""
    error = DriverConfigurationError(
        "Sessions are not supported by this MongoDB deployment"
    )

    assert is_transient(error)
    assert type(translate_error(error)) is StorageUnavailableError
    other = DriverConfigurationError("Server does not support transactions")
    assert not is_transient(other)


def test_pauses_double_up_to_their_limit() -> None:
    """They stay there, however often something has failed."""
    pauses = [backoff(attempt, first=1, longest=30) for attempt in (0, 1, 4, 5, 5000)]

    for pause, most in zip(pauses, (1, 2, 16, 30, 30), strict=True):
        assert most / 2 <= pause <= most
