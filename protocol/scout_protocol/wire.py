"""HTTP bodies of the tool server: verl-tool's ``/get_observation`` and Search-R1's ``/retrieve``."""

from __future__ import annotations

from typing import Any

import msgspec


class WireError(ValueError):
    """A body that does not follow the protocol. ``field`` names the part that is wrong."""

    def __init__(self, field: str, detail: str) -> None:
        self.field, self.detail = field, detail
        super().__init__(f"{field}: {detail}")


class ObservationRequest(msgspec.Struct):
    """POST /get_observation (verl-tool, ``verl_tool/servers``). All lists have one item per trajectory."""

    trajectory_ids: list[str]
    actions: list[str]
    finish: list[bool] | None = None
    is_last_step: list[bool] | None = None
    extra_fields: list[dict[str, Any]] | None = None


class ObservationResponse(msgspec.Struct):
    """Answer to POST /get_observation.

    An observation is plain text, or an object with at least ``obs`` whose float values are metrics.
    """

    observations: list[str | dict[str, Any]]
    dones: list[bool]
    valids: list[bool]
    processing_time_ms: float
    queue_time_ms: float = 0.0


class RetrieveRequest(msgspec.Struct):
    """POST /retrieve (Search-R1, ``search_r1/search/retrieval_server.py``)."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class ErrorBody(msgspec.Struct):
    """What every 4xx and 5xx of the tool server carries."""

    error: str
    field: str = ""


_OBSERVATION = msgspec.json.Decoder(ObservationRequest)
_RETRIEVE = msgspec.json.Decoder(RetrieveRequest)
_ENCODER = msgspec.json.Encoder()


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        # msgspec ends its message with the path: "Expected `str`, got `int` - at `$.actions[...]`"
        message, _, path = str(error).partition(" - at `$")
        missing = message.rsplit("`", 2)[1] if message.startswith("Object missing") else ""
        field = path.rstrip("`").lstrip(".") or missing or "body"
        raise WireError(field, message) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("body", f"not valid JSON: {error}") from error


def decode_observation_request(body: bytes) -> ObservationRequest:
    """Decode and check a request body.

    Raises:
        WireError: naming the field: not JSON, wrong type, or a list whose length differs from ``actions``.
    """
    request: ObservationRequest = _decode(_OBSERVATION, body)
    n = len(request.actions)
    for name in ("trajectory_ids", "finish", "is_last_step", "extra_fields"):
        items = getattr(request, name)
        if items is not None and len(items) != n:
            raise WireError(name, f"has {len(items)} items but actions has {n}")
    return request


def decode_retrieve_request(body: bytes) -> RetrieveRequest:
    """Decode and check a retrieval request.

    Raises:
        WireError: naming the field.
    """
    request: RetrieveRequest = _decode(_RETRIEVE, body)
    if request.topk is not None and not 1 <= request.topk <= 1000:
        raise WireError("topk", f"must be between 1 and 1000, got {request.topk}")
    return request


def encode(message: Any) -> bytes:
    """Any wire or record object as JSON bytes."""
    return _ENCODER.encode(message)
