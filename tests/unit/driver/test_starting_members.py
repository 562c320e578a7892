"""What the driver says of a member that has just been started."""

from __future__ import annotations

from pymongo.errors import ConfigurationError as DriverConfigurationError

from mongo_session_service import StorageUnavailableError
from mongo_session_service.driver import calls
from mongo_session_service.driver.translation import translation


def test_a_member_that_is_starting_is_an_outage_that_passes() -> None:
    """It knows no sessions yet, which is not how the deployment is configured."""
    error = DriverConfigurationError(
        "Sessions are not supported by this MongoDB deployment"
    )

    assert calls.is_passing(error)
    assert type(translation(error)) is StorageUnavailableError
    other = DriverConfigurationError("Server does not support transactions")
    assert not calls.is_passing(other)
