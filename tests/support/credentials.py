"""Credentials wherever ADK puts them, each secret of them easily found again."""

from __future__ import annotations

import json
from typing import Any

from fastapi.openapi.models import (
    HTTPBearer,
    OAuth2,
    OAuthFlowAuthorizationCode,
    OAuthFlows,
)
from google.adk.auth import AuthConfig, AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_credential import (
    HttpAuth,
    HttpCredentials,
    OAuth2Auth,
    ServiceAccount,
    ServiceAccountCredential,
)
from google.adk.events import Event, EventActions
from google.genai import types

CANARY = "c4n4ry"
"""What every secret contains, and nothing else does."""

REQUEST = "adk_request_credential"

SCHEME = OAuth2(
    flows=OAuthFlows(
        authorizationCode=OAuthFlowAuthorizationCode(
            authorizationUrl="https://example.com/authorize",
            tokenUrl="https://example.com/token",
            scopes={"calendar.read": "Read the calendar"},
        )
    )
)


def oauth2() -> AuthCredential:
    """A credential with every secret of OAuth."""
    secrets = {
        name: f"{CANARY}-{name}"
        for name in ("client_secret", "auth_response_uri", "auth_code")
        + ("access_token", "refresh_token", "id_token", "code_verifier")
        if name in OAuth2Auth.model_fields
    }
    return AuthCredential(
        auth_type=AuthCredentialTypes.OAUTH2,
        oauth2=OAuth2Auth(client_id="my-client", **secrets),
    )


def credentials() -> list[AuthCredential]:
    account = ServiceAccountCredential(
        type_="service_account",
        project_id="my-project",
        private_key_id=f"{CANARY}-key-id",
        private_key=f"{CANARY}-key",
        client_email="me@example.com",
        client_id="my-client",
        auth_uri="https://example.com/auth",
        token_uri="https://example.com/token",  # noqa: S106  an address
        auth_provider_x509_cert_url="https://example.com/certs",
        client_x509_cert_url="https://example.com/cert",
        universe_domain="example.com",
    )
    secret = HttpCredentials(
        username="ada", password=f"{CANARY}-password", token=f"{CANARY}-token"
    )
    http = HttpAuth(scheme="bearer", credentials=secret)
    return [
        oauth2(),
        AuthCredential(
            auth_type=AuthCredentialTypes.API_KEY, api_key=f"{CANARY}-api-key"
        ),
        AuthCredential(auth_type=AuthCredentialTypes.HTTP, http=http),
        AuthCredential(
            auth_type=AuthCredentialTypes.SERVICE_ACCOUNT,
            service_account=ServiceAccount(
                service_account_credential=account, scopes=["calendar.read"]
            ),
        ),
    ]


def spelt(*, camel: bool) -> list[dict[str, Any]]:
    """The same as JSON, as a credential service parks them in state."""
    return [
        each.model_dump(mode="json", by_alias=camel, exclude_none=True)
        for each in credentials()
    ]


def config() -> AuthConfig:
    """What a tool asks for, and the credential that came of it."""
    return AuthConfig(
        auth_scheme=SCHEME,
        raw_auth_credential=oauth2(),
        exchanged_auth_credential=oauth2(),
        credential_key="my-key",
    )


def state() -> dict[str, Any]:
    """State in which credentials are parked."""
    return {
        "credential": spelt(camel=True)[0],
        "user:credentials": spelt(camel=False),
        "app:deep": {"list": [{"again": spelt(camel=True)}], "shown": "plainly"},
        "config": config().model_dump(mode="json", by_alias=True, exclude_none=True),
        "config_snake": config().model_dump(mode="json", exclude_none=True),
    }


def googles() -> dict[str, Any]:
    """A user's credentials as Google's libraries write them, in ``to_json()``."""
    secrets = ("token", "refresh_token", "client_secret", "rapt_token")
    shown = {
        "token_uri": "https://example.com/token",
        "client_id": "my-client",
        "scopes": ["calendar.read"],
        "expiry": "2026-01-01T00:00:00Z",
    }
    return {name: f"{CANARY}-{name}" for name in secrets} | shown


def hidden() -> dict[str, Any]:
    """Credentials which ADK's own server sends: in text, and of other libraries."""
    text = json.dumps(googles())
    bearer = {"access_token": CANARY, "token_type": "Bearer", "expires_in": 3599}
    again = json.dumps({"scope": "all", "inside": [text, {"deeper": text}]})
    return {
        "bigquery_token_cache": text,
        "user:my_token_cache": json.dumps({"token": CANARY}),
        "app:gcs_token_cache": f"{CANARY}, encrypted",
        "nested": {"spanner_token_cache": {"token": CANARY}},
        "google": googles(),
        "bearer": bearer,
        "texts": [
            text,
            json.dumps(bearer),
            json.dumps(googles(), indent=1),
            f"\n {text}",
        ],
        "text in text": again,
        "text of a text": json.dumps(text),
        "text in text in text": json.dumps([again]),
        "adks": json.dumps(spelt(camel=True)),
        "adks in snake case": json.dumps({"a": {"b": spelt(camel=False)}}),
        "cut off": text[:-9],
        "of Python": str(googles()),
        "lines": f"{text}\n{text}",
    }


def hidden_event() -> Event:
    """An event of a tool that returns credentials, fails with them and stores them."""
    text = json.dumps(googles())
    response = types.FunctionResponse(name="my_tool", response={"result": text})
    parts = [types.Part(function_response=response), types.Part(text=text)]
    return Event(
        id="event-2",
        author="agent",
        content=types.Content(role="model", parts=parts),
        error_message=text,
        custom_metadata={"mine": text},
        actions=EventActions(state_delta=hidden()),
    )


def event(said: str = "Please log in \ud800.") -> Event:
    """An event that asks for credentials, answers with one, and parks them."""
    shown = config().model_dump(mode="json", by_alias=True, exclude_none=True)
    snake = config().model_dump(mode="json", exclude_none=True)
    args = {"functionCallId": "fc-1", "authConfig": shown, "auth_config": snake}
    parts = [
        types.Part(text=said),
        types.Part(function_call=types.FunctionCall(name=REQUEST, args=args)),
        types.Part(
            function_response=types.FunctionResponse(name=REQUEST, response=shown)
        ),
        types.Part(
            function_call=types.FunctionCall(
                name="my_tool", args={"with": {"credential": spelt(camel=False)[1]}}
            )
        ),
        types.Part(
            function_response=types.FunctionResponse(
                name="my_tool", response={"requested_auth_configs": {"fc-1": snake}}
            )
        ),
    ]
    return Event(
        id="event-1",
        author="agent",
        timestamp=1.5,
        content=types.Content(role="model", parts=parts),
        custom_metadata={"__adk_internal_fc_hmac": f"{CANARY}-hmac", "mine": "shown"},
        actions=EventActions(
            state_delta=state(),
            requested_auth_configs={
                "fc-1": config(),
                "fc-2": AuthConfig(
                    auth_scheme=HTTPBearer(),
                    raw_auth_credential=credentials()[2],
                    credential_key="my-other-key",
                ),
            },
        ),
    )
