"""Encrypted connections, with an authority of our own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from pymongo import AsyncMongoClient
from support.cli_runner import run
from support.leak_detector import PASSWORD
from support.secured_mongod import Secured
from support.subscriptions import SESSION, new_event

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.embedded.mongod import HOST

pytestmark = pytest.mark.xdist_group("secured")

AT_ONCE = 20
"""Seconds in which a refusal is told; the driver would take 30 to give up."""


@pytest.fixture(autouse=True)
def _refused_sockets_are_collected() -> Iterator[None]:
    """PyMongo leaves a socket whose handshake failed to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def unknown_authority(tmp_path: Path) -> str:
    """The file of an authority that has certified nobody."""
    path = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return str(path)


@contextlib.asynccontextmanager
async def presenting(
    server: Secured, certificate: trustme.LeafCert
) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    """The server, behind another certificate: its port, and how to change that."""

    async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65536):
                to.write(chunk)
                await to.drain()
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection(HOST, server.port)
        await asyncio.gather(copy(reader, onward), copy(there, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    async with await asyncio.start_server(serve, HOST, ssl=context) as listener:
        yield listener.sockets[0].getsockname()[1], context


def through(port: int, server: Secured, **options: str) -> str:
    authority = str(server.authority_file)
    uri = server.uri("root", tls="true", tlsCAFile=authority, **options)
    direct = uri.replace("replicaSet=rs0", "directConnection=true")
    return direct.replace(f":{server.port}/", f":{port}/")


async def refusal(service: MongoSessionService) -> str:
    async with asyncio.timeout(AT_ONCE):
        with pytest.raises(ConfigurationError) as caught:
            await service.get_session(**SESSION)
    await service.close()
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_a_private_authority_is_trusted_if_it_is_named(server: Secured) -> None:
    """With the right tlsCAFile everything goes over TLS, the change feed too."""
    uri = server.uri("root", tls="true", tlsCAFile=str(server.authority_file))

    async with MongoSessionService(uri, database="tls") as service:
        session = await service.create_session(**SESSION)
        async with service.watch(**SESSION) as changes:
            await service.append_event(session, new_event())
            told = [(await anext(changes)).kind for _ in range(2)]

    assert told == ["snapshot", "appended"]


async def test_an_unknown_authority_is_refused_at_once(
    server: Secured, unknown_authority: str
) -> None:
    """A certificate that nobody vouches for is called so, by host, without waiting."""
    for authority in (unknown_authority, None):
        options = {} if authority is None else {"tlsCAFile": authority}
        uri = server.uri("root", tls="true", **options)

        said = await refusal(MongoSessionService(uri))

        assert f"{HOST}:{server.port} is not accepted: self-signed certificate" in said
        assert "tlsCAFile" in said


async def test_certificates_of_a_borrowed_client_are_checked(
    server: Secured, unknown_authority: str
) -> None:
    """An unknown authority is refused at once."""
    uri = server.uri("root", tls="true", tlsCAFile=unknown_authority)
    async with AsyncMongoClient[Any](uri) as client:
        said = await refusal(MongoSessionService(client=client))

    assert "self-signed certificate" in said


@pytest.mark.parametrize(
    ("host", "days", "says"),
    [
        (HOST, -1, "certificate has expired"),
        ("mongodb.example.org", 1, f"not valid for '{HOST}'"),
    ],
)
async def test_a_bad_certificate_of_a_good_authority_is_refused_at_once(
    server: Secured, host: str, days: int, says: str
) -> None:
    """It has to be valid now, and for the name in the URI."""
    until = datetime.now(UTC) + timedelta(days=days)
    certificate = server.authority.issue_cert(host, not_after=until)
    async with presenting(server, certificate) as (port, _):
        said = await refusal(MongoSessionService(through(port, server)))

    assert says in said


async def test_a_certificate_that_expires_in_use_is_called_so(server: Secured) -> None:
    """Where a running service loses MongoDB to a certificate, that is the reason."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    good = server.authority.issue_cert(HOST)
    async with presenting(server, good) as (port, context):
        uri = through(port, server, serverSelectionTimeoutMS="500")
        async with MongoSessionService(uri, database="tls") as service:
            server.authority.issue_cert(HOST, not_after=yesterday).configure_cert(
                context
            )
            await service.close()  # and a later call connects again

            said = await refusal(service)

    assert "certificate has expired" in said


def test_a_command_reports_a_bad_certificate_in_one_line(
    server: Secured, unknown_authority: str
) -> None:
    """The command line fails at once, naming the option that is missing."""
    uri = server.uri("root", tls="true", tlsCAFile=unknown_authority)

    done = run("consumers", "--uri", uri)

    assert done.returncode == 1
    assert "tlsCAFile" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert PASSWORD not in done.stdout + done.stderr
