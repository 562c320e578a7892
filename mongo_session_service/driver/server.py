"""The first word with a server, which is not waited for in vain."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mongo_session_service.driver.errors import certificate_refusal
from mongo_session_service.errors import ConfigurationError

_LOOK: Final = 0.1  # seconds


async def greeted(client: Any) -> dict[str, Any]:
    """What the server says of itself, its reply to ``hello``.

    The driver waits half a minute for a server with a certificate it does not accept,
    as for one that is down. But that will not pass.

    Raises:
        ConfigurationError: no server has a certificate that is accepted.
        PyMongoError: no server has answered.
    """
    asking = asyncio.ensure_future(client.admin.command("hello"))
    try:
        while not (await asyncio.wait([asking], timeout=_LOOK))[0]:
            servers = client.topology_description.server_descriptions().values()
            refusals = [certificate_refusal(str(each.error)) for each in servers]
            if refusals and all(refusals):
                raise ConfigurationError(refusals[0])
        hello: dict[str, Any] = asking.result()
        return hello
    finally:
        asking.cancel()
