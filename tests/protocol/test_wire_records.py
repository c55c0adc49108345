"""HTTP bodies name what is wrong with them; records survive the way through JSON."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.errors import UserError
from scout_protocol.records import Author, RLRow, SFTRow, SFTTurn, Span, StopReason, ToolCall, Trace
from scout_protocol.wire import (
    ErrorBody,
    ObservationResponse,
    WireError,
    decode_observation_request,
    decode_retrieve_request,
    encode,
)


def test_verl_tools_bodies_decode() -> None:
    full = decode_observation_request(
        b'{"trajectory_ids":["a"],"actions":["<search>q</search>"],"finish":[false],"is_last_step":[false],'
        b'"extra_fields":[{"k":1}],"something_new":1}'
    )
    assert full.extra_fields == [{"k": 1}]
    closing = decode_observation_request(
        b'{"trajectory_ids":["a"],"actions":[""],"finish":[true],"is_last_step":[true]}'
    )
    assert (closing.finish, closing.extra_fields) == ([True], None)
    assert decode_observation_request(b'{"trajectory_ids":[],"actions":[]}').actions == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b"\xff\xfe", "body"),
        (b'{"trajectory_ids":["\xff"],"actions":["x"]}', "body"),
        (b'{"trajectory_ids":["a"],"actions":["\\ud800"]}', "body"),
        (b"[" * 100_000, "body"),
        (b'{"actions":["x"]}', "trajectory_ids"),
        (b'{"trajectory_ids":["a"]}', "actions"),
        (b'{"trajectory_ids":"a","actions":["x"]}', "trajectory_ids"),
        (b'{"trajectory_ids":[1],"actions":["x"]}', "trajectory_ids[0]"),
        (b'{"trajectory_ids":["a"],"actions":[null]}', "actions[0]"),
        (b'{"trajectory_ids":["a"],"actions":["x"],"finish":[0]}', "finish[0]"),
        (b'{"trajectory_ids":["a"],"actions":["x"],"is_last_step":true}', "is_last_step"),
        (b'{"trajectory_ids":["a"],"actions":["x"],"extra_fields":[1]}', "extra_fields[0]"),
        (b'{"trajectory_ids":["a"],"actions":["x","y"]}', "trajectory_ids"),
        (b'{"trajectory_ids":["a"],"actions":["x"],"finish":[]}', "finish"),
        (b'{"trajectory_ids":["a"],"actions":["x"],"is_last_step":[true,true]}', "is_last_step"),
        (b'{"trajectory_ids":["a"],"actions":["x"],"extra_fields":[{},{}]}', "extra_fields"),
    ],
)
def test_a_bad_observation_request_names_its_field(body: bytes, field: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_observation_request(body)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "queries"),
        (b'{"queries":"q"}', "queries"),
        (b'{"queries":[1]}', "queries[0]"),
        (b'{"queries":["q"],"topk":0}', "topk"),
        (b'{"queries":["q"],"topk":1001}', "topk"),
        (b'{"queries":["q"],"topk":"3"}', "topk"),
        (b'{"queries":["q"],"topk":1.5}', "topk"),
        (b'{"queries":["q"],"return_scores":"yes"}', "return_scores"),
    ],
)
def test_a_bad_retrieve_request_names_its_field(body: bytes, field: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_retrieve_request(body)
    assert caught.value.field == field


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_a_wire_error(body: bytes) -> None:
    for decode in (decode_observation_request, decode_retrieve_request):
        try:
            decode(body)  # type: ignore[operator]
        except WireError as error:
            assert error.field


def test_responses_have_verl_tools_keys() -> None:
    body = encode(
        ObservationResponse(["text", {"obs": "x", "latency_s": 0.1}], [False, True], [True, True], 1.5)
    )
    assert json.loads(body) == {
        "observations": ["text", {"obs": "x", "latency_s": 0.1}],
        "dones": [False, True],
        "valids": [True, True],
        "processing_time_ms": 1.5,
        "queue_time_ms": 0.0,
    }
    assert json.loads(encode(ErrorBody("too long", "actions"))) == {"error": "too long", "field": "actions"}


def _trace(text: str) -> Trace:
    return Trace(
        trace_id="t1",
        question_id="q1",
        data_source="world",
        question=text,
        golden_answers=[text],
        spans=[
            Span(Author.PROMPT, text, [1, 2]),
            Span(Author.POLICY, text, [3], [-0.5]),
            Span(Author.TOOL, text),
        ],
        tool_calls=[ToolCall(text, 0.01, valid=False, infra_error=True, error_kind="timeout")],
        stop_reason=StopReason.INFRA_ERROR,
        n_turns=1,
        n_searches=1,
        n_policy_tokens=1,
        n_tool_tokens=None,
        score={"total": 0.1, "why": text},
        model="m",
        stage="grpo",
        step=3,
        prompt_sha256="0" * 64,
        dialect="react",
        wall_s=1.25,
    )


@given(st.text())
def test_records_round_trip_as_one_line_of_json(text: str) -> None:
    rl = RLRow(
        "nq", [{"role": "user", "content": text}], "qa", {"style": "rule"}, {"index": 0}, "1", text, [text]
    )
    sft = SFTRow([], text, text, [text], True, [SFTTurn("policy", text, True)], n_searches=1, complete=False)
    for record in (rl, sft, _trace(text)):
        line = encode(record)
        assert b"\n" not in line
        assert msgspec.json.decode(line, type=type(record)) == record


def test_traces_do_not_share_their_extra() -> None:
    one, two = _trace("a"), _trace("b")
    one.extra["k"] = 1
    assert two.extra == {}


def test_an_unknown_stop_reason_is_refused() -> None:
    line = encode(_trace("a")).replace(b'"stop_reason":"infra_error"', b'"stop_reason":"tired"')
    with pytest.raises(msgspec.ValidationError, match="stop_reason"):
        msgspec.json.decode(line, type=Trace)


def test_user_errors_are_one_line_whatever_is_in_them() -> None:
    error = UserError("file\n", "a\r\nb\x1b[31m\u2028" + "x" * 500, "do\nthis")
    assert len(str(error).splitlines()) == 1
    assert "\x1b" not in str(error)
    assert str(error).endswith("…: do\\nthis")
    assert len(str(error)) < 300
