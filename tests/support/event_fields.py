"""A value for every field that an ADK event has, each unlike its default."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.models import (
    APIKey,
    APIKeyIn,
    OAuth2,
    OAuthFlowAuthorizationCode,
    OAuthFlows,
)
from google.adk.auth import AuthConfig, AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_credential import OAuth2Auth
from google.adk.events.event import NodeInfo
from google.adk.events.event_actions import EventCompaction
from google.adk.events.ui_widget import UiWidget
from google.adk.models.cache_metadata import CacheMetadata
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

# What a model, a tool or a user may put where ADK allows any JSON.
JSON = {
    "a.b": [1, 1.5, True, None, "ü\n"],
    "$set": {"": {}, "_id": -1, "$date": []},
    "big": 2**53 + 1,
}

CONTENT = types.Content(
    role="model",
    parts=[
        types.Part(text="It is sunny.", part_metadata=JSON),
        types.Part(text="Thinking.", thought=True, thought_signature=b"\x00\xff"),
        types.Part(function_call=types.FunctionCall(id="fc-1", name="f", args=JSON)),
        types.Part(
            function_response=types.FunctionResponse(
                id="fc-1",
                name="f",
                response=JSON,
                scheduling=types.FunctionResponseScheduling.SILENT,
                will_continue=True,
                parts=[
                    types.FunctionResponsePart.from_bytes(
                        data=b"\xff\xd8", mime_type="image/jpeg"
                    )
                ],
            )
        ),
        types.Part(
            inline_data=types.Blob(
                data=bytes(range(256)), mime_type="image/png", display_name="chart"
            )
        ),
        types.Part.from_uri(file_uri="gs://bucket/a.pdf", mime_type="application/pdf"),
        types.Part(video_metadata=types.VideoMetadata(fps=0.5, start_offset="1.5s")),
        types.Part.from_executable_code(code="1 / 3", language=types.Language.PYTHON),
        types.Part.from_code_execution_result(
            outcome=types.Outcome.OUTCOME_OK, output="0.3333333333333333"
        ),
    ],
)

TRANSCRIPTION = types.Transcription(text="Hallo", finished=False, language_code="de-DE")

EVENT: dict[str, Any] = {
    "model_version": "scripted-1",
    "content": CONTENT,
    "grounding_metadata": types.GroundingMetadata(
        web_search_queries=["weather"],
        grounding_chunks=[
            types.GroundingChunk(
                web=types.GroundingChunkWeb(title="Weather", uri="https://example.com")
            )
        ],
        grounding_supports=[
            types.GroundingSupport(
                segment=types.Segment(start_index=0, end_index=5, text="It is"),
                grounding_chunk_indices=[0],
                confidence_scores=[0.1 + 0.2],
            )
        ],
        retrieval_metadata=types.RetrievalMetadata(
            google_search_dynamic_retrieval_score=1e-300
        ),
        search_entry_point=types.SearchEntryPoint(sdk_blob=b"\x80\x81"),
    ),
    "turn_complete": True,
    "turn_complete_reason": types.TurnCompleteReason.NEED_MORE_INPUT,
    "interaction_status": types.InteractionStatus.IDLE,
    "finish_reason": types.FinishReason.MAX_TOKENS,
    "error_code": "429",
    "error_message": "Quota exceeded.",
    "interrupted": False,
    "custom_metadata": JSON,
    "usage_metadata": types.GenerateContentResponseUsageMetadata(
        prompt_token_count=2**31,
        candidates_token_count=0,
        cached_content_token_count=7,
        prompt_tokens_details=[
            types.ModalityTokenCount(modality=types.MediaModality.TEXT, token_count=3)
        ],
        traffic_type=types.TrafficType.ON_DEMAND,
    ),
    "live_session_resumption_update": types.LiveServerSessionResumptionUpdate(
        new_handle="handle", resumable=True, last_consumed_client_message_index=2**62
    ),
    "live_session_id": "live-1",
    "go_away": types.LiveServerGoAway(time_left="10s"),
    "voice_activity": types.VoiceActivity(
        voice_activity_type=types.VoiceActivityType.ACTIVITY_START
    ),
    "input_transcription": TRANSCRIPTION,
    "output_transcription": TRANSCRIPTION,
    "avg_logprobs": -0.12345678901234567,
    "logprobs_result": types.LogprobsResult(
        chosen_candidates=[
            types.LogprobsResultCandidate(token_id=1, log_probability=-0.5)
        ],
        top_candidates=[types.LogprobsResultTopCandidates(candidates=[])],
    ),
    "cache_metadata": CacheMetadata(
        cache_name="caches/1",
        expire_time=1700000000.123456,
        fingerprint="f" * 64,
        invocations_used=0,
        contents_count=3,
        created_at=1699990000.0,
    ),
    "citation_metadata": types.CitationMetadata(
        citations=[
            types.Citation(
                start_index=0,
                end_index=5,
                uri="https://example.com",
                publication_date=types.GoogleTypeDate(year=2024, month=2, day=29),
            )
        ]
    ),
    "interaction_id": "interaction-1",
    "environment_id": "environment-1",
    "invocation_id": "e-1",
    "author": "assistant",
    "output": {"report": JSON},
    "node_info": NodeInfo(
        path="wf@1/node@2", output_for=["wf@1", "wf@1/node@2"], message_as_output=True
    ),
    "long_running_tool_ids": {"fc-2", "fc-1"},
    "branch": "team.researcher",
    "isolation_scope": "fc-1",
    "id": "event-1",
    "timestamp": 1700000000.1234567,
}

API_KEY = APIKey.model_validate({"in": APIKeyIn.header, "name": "X-Key"})
OAUTH2 = OAuth2(
    flows=OAuthFlows(
        authorizationCode=OAuthFlowAuthorizationCode(
            authorizationUrl="https://example.com/authorize",
            tokenUrl="https://example.com/token",
            scopes={"calendar.read": "Read the calendar"},
        )
    )
)

ACTIONS: dict[str, Any] = {
    "skip_summarization": True,
    "state_delta": {"key": JSON, "user:key": [JSON], "app:key": None, "a.$b": 0.1},
    "artifact_delta": {"report.pdf": 0, "user:$chart.png": 2},
    "transfer_to_agent": "specialist_agent",
    "transfer_reason": "It knows.",
    "escalate": False,
    "requested_auth_configs": {
        "fc-1": AuthConfig(auth_scheme=API_KEY, credential_key="key-1"),
        "fc-2": AuthConfig(
            auth_scheme=OAUTH2,
            raw_auth_credential=AuthCredential(
                auth_type=AuthCredentialTypes.OAUTH2,
                oauth2=OAuth2Auth(client_id="id", auth_uri="https://example.com/?a=b"),
            ),
            credential_key="key-2",
        ),
    },
    "requested_tool_confirmations": {
        "fc-1": ToolConfirmation(hint="Really?", confirmed=True, payload=JSON),
    },
    "compaction": EventCompaction(
        start_timestamp=1700000000.1234567,
        end_timestamp=1700000001.0,
        compacted_content=CONTENT,
    ),
    "end_of_agent": True,
    "agent_state": {"current_sub_agent": "second", "times_looped": 0, **JSON},
    "rewind_before_invocation_id": "e-0",
    "route": [True, 1, "next", False, 0],
    "render_ui_widgets": [
        UiWidget(id="w-1", provider="mcp", payload={"resource_uri": "ui://w", **JSON})
    ],
    "set_model_response": {"answer": JSON},
}
