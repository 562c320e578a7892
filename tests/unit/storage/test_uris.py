"""A URI that cannot be used is refused with its reason, and with no secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service import ConfigurationError
from mongo_session_service.storage.clients import open_client

SECRET = "hunter2"  # noqa: S105  it opens nothing
SCHEME = "its scheme is neither mongodb:// nor mongodb+srv://"
ENCODED = "user or password hold characters that have to be percent-encoded"
MALFORMED = "it is malformed, or names a file that cannot be read"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("h:27017", SCHEME),
        ("postgresql://h/d", SCHEME),
        ("postgresql://u:hunter2@h/d", SCHEME),
        ("postgresql://u:hun@ter2@h/d", SCHEME),
        ("mongodb://u:hunter2@x@h/", ENCODED),
        ("mongodb://u@x:hunter2@h/", ENCODED),
        ("mongodb://u:hunter2/x@h/", ENCODED),
        ("mongodb://u:hunter2?x@h/", ENCODED),
        ("mongodb://u:hunter2:x@h/", MALFORMED),
        ("mongodb://u:hunter2%x@h/", MALFORMED),
        ("mongodb+srv://u:hunter2@x@h.example.com/", ENCODED),
        ("mongodb://u:x@hunter2/x@h", ENCODED),
        ("mongodb://u:x@hunter2/x@h/d?replicaSet=rs0", ENCODED),
        ("mongodb+srv://u:x@hunter2/x@h.example.com", ENCODED),
        ("mongodb://u:12/hunter2@h", ENCODED),
        ("mongodb://u:x@hunter2?x@h/", ENCODED),
        ("mongodb://u:x@hunter2/x?y=z@h/", ENCODED),
        ("mongodb://u:1/hunter2?y=z@h/", ENCODED),
        ("mongodb://hunter2?:x=@h/", ENCODED),
        ("mongodb://hunter2@h/", MALFORMED),
        ("mongodb://:hunter2@h/", MALFORMED),
        ("mongodb://u:hunter2@h:99999/", MALFORMED),
        ("mongodb://u:hunter2@/", MALFORMED),
        ("mongodb://u%3Ahunter2%40h:99999/", MALFORMED),
        ("mongodb://u:hunter2@h:99999/?appName=a@b", MALFORMED),
        ("mongodb://h:x/?tlsCertificateKeyFilePassword=hunter2", MALFORMED),
        ("mongodb://u:hunter2@h/?replicaset", MALFORMED),
        ("mongodb://u:hunter2@h/?tls=true&tlsCAFile=/no.pem", MALFORMED),
        ("mongodb://h/?datetime_conversion=hunter2@x", MALFORMED),
        ("mongodb://u:hunter2@h,i/?w=1&directConnection=true", MALFORMED),
        ("mongodb://h/?datetime_conversion=hunter2&srvServiceName=x", MALFORMED),
        ("mongodb://u:hunter2@h/?authMechanism=MONGODB-X509", MALFORMED),
    ],
)
def test_the_reason_has_no_secret(uri: str, reason: str) -> None:
    """It is the scheme, characters to encode, or that the URI is malformed."""
    with pytest.raises(ConfigurationError) as caught:
        open_client(uri)

    assert reason in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


_TEXTS = st.text(st.sampled_from("@:/?#[]%&=+ ,;x4 0ä"), max_size=4)


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://u:p%40s%2Fs@h/",
        "mongodb://h/?appName=a@b",
        "mongodb://u:p@h?appName=a@b",
        "mongodb://u:p@h/d?APPNAME=a@b/c&retryWrites=true",
        "mongodb://u:p@h/?tls=true&tlsCertificateKeyFilePassword=a@b/c",
    ],
)
def test_encoded_parts_are_accepted(uri: str) -> None:
    """An ``@`` in the value of an option need not be encoded."""
    hosts = open_client(uri).topology_description.server_descriptions()

    assert hosts.keys() == {("h", 27017)}


@pytest.mark.filterwarnings("ignore::UserWarning")  # the driver's, of options
@given(_TEXTS, _TEXTS, _TEXTS, st.sampled_from([":99999/", ":x/a b", "/?tls", "/"]))
def test_no_password_is_shown(user: str, before: str, after: str, rest: str) -> None:
    """However little of it is encoded, no part of it is shown, nor taken for a host."""
    try:
        client = open_client(f"mongodb://{user}:{before}{SECRET}{after}@h{rest}")
        hosts = client.topology_description.server_descriptions()
        assert hosts.keys() == {("h", 27017)}
    except ConfigurationError as error:
        assert SECRET not in str(error)  # noqa: PT017  most are refused, not all
