"""What may leave the process: compared with ADK's own server, and of anything."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from google.adk.auth import auth_credential
from google.adk.events import Event, EventActions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support import credentials
from support.credentials import CANARY
from support.event_fields import ACTIONS, EVENT
from support.strategies import json_values, nested

from mongo_session_service.changes.change import Change
from mongo_session_service.codec import documents, public_view
from mongo_session_service.codec.events import build_event
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.records import SessionKey

KEY = SessionKey("app", "user", "session")

redacted_by_adk = getattr(
    auth_credential,
    "_redact_credential_secrets",
    public_view._without_credentials,  # noqa: SLF001
)
"""What ADK's own server does from 2.12 on; before, it sends all, and is no example."""


def change(**fields: Any) -> Change:
    return Change(kind="appended", app_name="app", time=1.0, **fields)


def sent(it: Change) -> Any:
    text = it.json_text
    text.encode()

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "it",
    [
        change(event=credentials.event()),
        change(state_delta=credentials.state()),
        change(state=credentials.state()),
        change(event=credentials.hidden_event()),
        change(state_delta=credentials.hidden()),
        change(state=credentials.hidden()),
    ],
    ids=["event", "delta", "state", "event's text", "delta's text", "state's text"],
)
def test_no_secret_leaves_but_all_of_it_stays(it: Change) -> None:
    """Credentials are stripped wherever they are, and the change itself is whole."""
    assert CANARY not in it.json_text
    assert it.is_withheld
    assert CANARY in str(it.model_dump())
    assert "my-client" in it.json_text
    assert "https://example.com/token" in it.json_text


def test_fields_that_are_no_secret_stay() -> None:
    """A tool's own tokens and names are content, and metadata of the app is sent."""
    content = {"token": 1, "name": "password", "authType": "none", "api_key": ["x"]}
    event = credentials.event()
    assert sent(change(event=event))["event"]["customMetadata"] == {"mine": "shown"}
    assert sent(change(state=content))["state"] == content
    assert not change(state=content).is_withheld


@pytest.mark.parametrize(
    "text",
    [
        '{"token": "cat", "pos":  "noun"}',
        '  [{"password": "swordfish"}, 1.50, "\\u00e9"]',
        'Write {"client_id": "mine", "client_secret": "..."} into a file.',
        "{ if (secret) { return token; } }",
        '{"client_id": "mine", "cut off',
        '"Hello", she said.',
        "[see C:\\users\\u00e9ric]",
        '["\\u0041 bc", "caf\\u00e9"]',
        "[" * 100_000,
        '{"a": ' * 100_000,
    ],
)
def test_text_without_credentials_stays_as_it_is(text: str) -> None:
    """Prose, code and a tool's own JSON, to the character."""
    assert sent(change(state={"k": text}))["state"] == {"k": text}
    assert not change(state={"k": text}).is_withheld


def escaped(text: str, letters: str = "[a-z_]") -> str:
    """The same JSON, with its letters as escapes."""
    return re.sub(letters, lambda it: f"\\u{ord(it[0]):04X}", text)


def forms_of_escapes() -> Iterator[str]:
    bearer = {"access_token": "hunter2", "token_type": "Bearer"}
    parked = {"authType": "apiKey", "apiKey": "hunter2"}
    for text in map(json.dumps, (bearer, [parked])):
        whole = escaped(text)
        yield whole
        yield json.dumps({"inside": whole})
        yield json.dumps([escaped(json.dumps({"inside": whole}))])
        yield json.dumps(whole)
        yield escaped(text, "k").replace("006B", "006b")
        yield f'{{"inside": "{escaped(text, ".")}"}}'
        yield whole[:-1]  # which cannot be parsed


def holds_secret(value: Any) -> bool:
    """Whether who reads all JSON in all text of a value comes upon it."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return any(map(holds_secret, inner))
    try:
        return holds_secret(json.loads(value))
    except ValueError:
        plain = re.sub(r"\\u(....)", lambda it: chr(int(it[1], 16)), value)
        return "hunter2" in plain


@pytest.mark.parametrize("text", [*forms_of_escapes()])
def test_a_name_that_is_escaped_hides_no_secret(text: str) -> None:
    """Whichever of its letters are, and however deep in text it is."""
    it = change(state={"k": text, "deep": [{"k": text}]})
    assert holds_secret(it.state)
    assert not holds_secret(sent(it)["state"])
    assert it.is_withheld


def test_numbers_and_removals_of_token_caches_are_sent() -> None:
    """A count of cached tokens is none of them, and None removes a key."""
    content = {"used_token_cache": 3, "bigquery_token_cache": None}
    assert sent(change(state_delta=content))["state_delta"] == content


def test_text_is_looked_through_in_time_that_its_length_bounds() -> None:
    """Also where text is in text in text, or is not what it seems."""
    text = json.dumps(credentials.googles())
    for _ in range(15):
        text = json.dumps({"token": 1, "inside": text})
    quotes = '{"token":' + "\\" * 500_000
    began = time.process_time()
    shown = change(state={"deep": text, "quotes": quotes, "many": '["token":' * 99_999})
    assert CANARY not in shown.json_text
    assert time.process_time() - began < 2


def test_a_detail_that_was_removed_is_null() -> None:
    """In an ``updated``, so that who merges changes drops it; in no other kind."""
    updated = Change(kind="updated", app_name="app", labels={"k": "v"}, time=1.0)
    none = {"title": None, "ttl": None, "expire_time": None}
    assert sent(updated).items() >= (none | {"labels": {"k": "v"}}).items()
    assert json.loads(updated.outline_text).items() >= none.items()
    assert not sent(change()).keys() & none.keys()


def test_empty_metadata_is_left_out() -> None:
    """As ADK does it, from events alone: state may have such keys."""
    internal = {"__adk_internal_restored_event": True}
    event = Event(author="a", custom_metadata=internal)

    shown = sent(change(event=event, state=internal))

    assert "customMetadata" not in shown["event"]
    assert shown["state"] == internal
    assert event.custom_metadata == internal


_names = st.sampled_from(
    ["authType", "auth_type", "name", "args", "response", "authConfig", "auth_config"]
    + ["requestedAuthConfigs", "requested_auth_configs", "rawAuthCredential"]
    + ["exchanged_auth_credential", "clientSecret", "client_secret", "token", "other"]
    + ["accessToken", "api_key", "apiKey", "privateKeyId", "additional_headers"]
)
_values = st.sampled_from(
    [1, None, "oauth2", "OAUTH2", "apiKey", "http", "serviceAccount", "open_id_connect"]
    + [credentials.REQUEST, "text"]
)
_payloads = st.recursive(
    _values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner),
    max_leaves=25,
)


@given(_payloads)
def test_the_fields_that_adk_strips_are_stripped(payload: Any) -> None:
    """Nothing more and nothing less, in any arrangement."""
    view = public_view.public_view({"payload": payload})
    assert view == {"payload": redacted_by_adk(payload)}


@pytest.mark.parametrize(
    "event",
    [
        Event(**EVENT, actions=EventActions(**ACTIONS)),
        credentials.event(),
        Event(author="a", output={"bytes": b"\xff\xfe>>??", "text": b"abc"}),
        Event(author="a", output=[math.nan, math.inf, 10**400, "\u2028"]),
    ],
    ids=["every field", "credentials", "bytes", "numbers"],
)
def test_an_event_is_as_adks_server_sends_it(event: Event) -> None:
    """The same fields by the same names, with the same values."""
    metadata = event.custom_metadata and {
        name: value
        for name, value in event.custom_metadata.items()
        if not name.startswith("__adk_internal_")
    }
    dumped = event.model_copy(update={"custom_metadata": metadata}).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    theirs = json.loads(json.dumps(redacted_by_adk(dumped)))

    for fields in (theirs, ours := sent(change(event=event))["event"]):
        fields.get("longRunningToolIds", []).sort()
    assert ours == theirs


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"\xff\xfe>>??", "__4-Pj8_"),
        (b"text", "dGV4dA=="),
        (math.nan, None),
        (-math.inf, None),
        ("half \ud800", "half \ud800"),
        ({"\ud800": [], "k\udfff": 2}, {"\ud800": [], "k\udfff": 2}),
        (10**400, 10**400),
        ({1: 2}, {"1": 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_json_form_get_one(value: Any, form: Any) -> None:
    """The documented one, in events and in state alike."""
    shown = sent(change(event=Event(author="a", output=value), state={"k": value}))
    assert shown["event"]["output"] == form
    assert shown["state"] == {"k": form}


def test_the_whole_change_has_the_same_form_of_bytes() -> None:
    """A relay that sends all of it stumbles over no bytes, either."""
    it = change(event=Event(author="a", output=b"\xff\xfe"))
    dumped = json.loads(it.model_dump_json(by_alias=True, exclude_none=True))
    assert dumped["event"] == sent(it)["event"]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field of an event, and every place in them."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, each in items:
        yield from _places(each, (*path, key))


FIELDS = Event(**EVENT, actions=EventActions(**ACTIONS)).model_dump(
    by_alias=True, exclude_none=True
)
PLACES = [path for path in _places(FIELDS) if path and "compaction" not in path]
AWKWARD = st.sampled_from(
    [
        "\ud800",
        "\ud83d\ude00\udfff",
        b"\xff",
        math.nan,
        math.inf,
        10**4000,
        {"\ud800": 0},
    ]
    + [[b"\xff", {"\udfff": "\ud800"}], nested(245, b"\xff"), {"%json": "x"}, {}]
)


def _with(fields: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    changed = fields.copy()
    changed[first] = _with(fields[first], tuple(rest), value)
    return changed


@pytest.mark.filterwarnings("ignore:.*is not a valid:UserWarning")
@given(st.sampled_from(PLACES), AWKWARD | json_values())
def test_every_stored_value_can_be_sent(path: tuple[Any, ...], value: Any) -> None:
    """Whatever is anywhere in an event, its change has JSON, stored or not."""
    try:
        event = build_event(_with(FIELDS, path, value))
    except (ValidationError, TypeError, AttributeError, ValueError):
        return
    assert sent(change(event=event, state_delta=event.actions.state_delta))
    try:
        append = documents.encode_append(KEY, event, NO_HOOKS)
    except InvalidInputError:
        return
    document = documents.event_document(append, 1)
    (stored,) = documents.decode_events([document], NO_HOOKS)
    assert sent(change(event=stored, state_delta=stored.actions.state_delta))
