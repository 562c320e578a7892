"""Outages: why no server of a client can be used, in this package's words.

The driver's text of an error changes with its releases. So the reason is found in what
its topology holds, and in the numbers and names that the operating system and OpenSSL
give to their errors, wherever these stand in a text.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from pymongo import AsyncMongoClient

_MOST_SERVERS: Final = 3
_SYSTEM_ERROR: Final = re.compile(r"\[Errno (-?\d+)\]")
_UNRESOLVED: Final = {8, 11001}
"""What macOS and Windows call a name that DNS does not know; Linux, below zero."""
_CERTIFICATE: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED\](?:[^:]*: (.*?) \(_ssl)?")

_NO_MEMBER: Final = (
    "no member of a replica set named {!r} was found. The servers may answer, but"
    " belong to no replica set, as a standalone, or to one of another name: check"
    " replicaSet= in the URI."
)
_NO_PRIMARY: Final = (
    "none of {} is primary. During an election, try again soon; a new replica set"
    " needs rs.initiate() once."
)
_UNREACHABLE: Final = (
    "Check that mongod is running there, and can be reached from this machine."
)
_NO_DNS: Final = "Check its name in the URI."
_NO_TLS: Final = "Check whether the server offers TLS, as the URI asks."


def topology_of(client: Any) -> Any:
    """Return what a client of PyMongo's or Motor's knows of its servers."""
    is_own = isinstance(client, AsyncMongoClient)
    return (client if is_own else client.delegate).topology_description


def describe_outage(client: Any) -> str:
    """Return why no server of a client can be used, and what to do about it."""
    topology = topology_of(client)
    servers = list(topology.server_descriptions().values())
    if not servers:
        return _NO_MEMBER.format(topology.replica_set_name)
    known = [each for each in servers if each.server_type_name != "Unknown"]
    if known == servers:
        return _NO_PRIMARY.format(", ".join(_address_text(each) for each in servers))
    failed = [each for each in servers if each not in known]
    reasons = [_failure(str(each.error)) for each in failed]
    named = [
        f"{_address_text(each)}: {reason}"
        for each, (reason, _) in zip(failed[:_MOST_SERVERS], reasons, strict=False)
    ]
    return f"{'; '.join(named)}. {reasons[0][1]}"


def certificate_refusal(client: Any) -> str | None:
    """Return the message for refused certificates; None if a server has another."""
    refusal = None
    for server in topology_of(client).server_descriptions().values():
        refused = _CERTIFICATE.search(str(server.error))
        if refused is None:
            return None
        reason = f": {refused[1]}" if refused[1] else ""
        refusal = refusal or (
            f"The certificate of MongoDB at {_address_text(server)} is not"
            f" accepted{reason}. It must be valid now, issued for that name, and"
            " signed by an authority that the system or tlsCAFile= in the URI trusts."
        )
    return refusal


def _failure(text: str) -> tuple[str, str]:
    """Return why a server cannot be reached, and a hint."""
    if found := _SYSTEM_ERROR.search(text):
        number = int(found[1])
        if number < 0 or number in _UNRESOLVED:
            return "DNS does not know the host", _NO_DNS
        return os.strerror(number), _UNREACHABLE
    if "SSL" in text:
        return "no TLS connection is possible", _NO_TLS
    return "it does not answer", _UNREACHABLE


def _address_text(server: Any) -> str:
    host, port = server.address
    return f"{host}:{port}"
