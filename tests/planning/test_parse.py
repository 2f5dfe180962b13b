"""Replies of language models, from the tidy to the absurd."""

import contextlib
import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.planning.parse import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    REFUSALS,
    RefusedReply,
    read_json_object,
    require_keys,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure!\n```json\n{"a": [1.5, null]}\n```\nGood luck {out there}.', {"a": [1.5, None]}),
        ('It\'s easy: {"a": "it\'s"} and that\'s it', {"a": "it's"}),
        ("{'a': 'x', 'b': [true]}", {"a": "x", "b": [True]}),
        ("{'a': 'say \"hi\"', \"b\": 'don\\'t', 'c': \"it's\"}",
         {"a": 'say "hi"', "b": "don't", "c": "it's"}),
        ("{'a\\n': 'back\\\\'}", {"a\n": "back\\"}),
        ('{think} and then {"a": {"b": {}}}', {"a": {"b": {}}}),
        ('[1, 2] or rather {"a": 2}', {"a": 2}),
        ('first {"a": 1} then {"a": 2}', {"a": 1}),
        ('{"a": "}{][\\" \\\\"}', {"a": '}{][" \\'}),
    ],
)  # fmt: skip
def test_what_is_repaired(text, value):
    assert read_json_object(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t\u2003", "empty"),
        ("x" * 1_000_000, "too_long"),
        ("I would walk to the corner.", "no_json"),
        ("向东北角移动", "no_json"),
        ("[1, 2]", "wrong_shape"),
        ("{" * 1000 + "}" * 1000, "too_deep"),
        ('{"a":' * 1000 + "1" + "}" * 1000, "too_deep"),
        ("[" * 10_000, "too_deep"),
        ('{"a": 1', "malformed_json"),
        ('{"a": 1,}', "malformed_json"),
        ('{"a": {"b": 1},}', "malformed_json"),  # what is inside is not what was meant
        ("{'a': 'don't'}", "malformed_json"),
        ("{a: 1}", "malformed_json"),
        ("{'a': True}", "malformed_json"),
        ("{'a': 1 + 1}", "malformed_json"),
        ('{"a": ' + "9" * 5000 + "}", "malformed_json"),
        ('{"a": NaN}', "not_finite"),
        ("{'a': -Infinity}", "not_finite"),
        ('{"a": 1e999}', "not_finite"),
        ('{"a": 1, "a": 2}', "duplicate_key"),
        ('{"a": {"b": 1, "b": 1}}', "duplicate_key"),
    ],
)
def test_what_is_refused_and_why(text, reason):
    with pytest.raises(RefusedReply) as caught:
        read_json_object(text)
    assert caught.value.reason == reason
    assert reason in REFUSALS
    assert len(str(caught.value)) < 200


PLAN = '{"a": {"b": 2}}'
DRAFT = 'Perhaps {"a": 1}? No, {"a": 0}. {'


@pytest.mark.parametrize(
    "reply",
    [
        f"<think>{DRAFT}</think>{PLAN}",
        f"<think>\n{DRAFT}\n</think>\n\n```json\n{PLAN}\n```",
        f"{DRAFT}</think>\n{PLAN}",  # the template has opened the thought already
        f'{{"a": 1}} is what I think.</think>{PLAN}',
        f"<think></think>{PLAN}",
        f"<think>{DRAFT}</think> <think>{DRAFT}</think> {PLAN}",
        f"<think>a <think>{DRAFT}</think> {DRAFT} </think>{PLAN}",
        f"<thinking>{DRAFT}</thinking><answer>{PLAN}</answer>",
        f"<THINK>{DRAFT}</THINK >{PLAN}",
        f"<thought>{DRAFT}</thought>{PLAN}",
        f"<reasoning>{DRAFT}</reasoning>{PLAN}",
        f'<think type="long">{DRAFT}</think>{PLAN}',
        f"<seed:think>{DRAFT}</seed:think>{PLAN}",
        f"[THINK]{DRAFT}[/THINK]{PLAN}",
        f"◁think▷{DRAFT}◁/think▷{PLAN}",
        f"<|START_THINKING|>{DRAFT}<|END_THINKING|><|START_RESPONSE|>{PLAN}<|END_RESPONSE|>",
        f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>"
        f"{PLAN}<|return|>",
        f"<|channel|>analysis<|message|>{DRAFT}<|end|><|channel|>final <|constrain|>json<|message|>"
        f"{PLAN}",
        f"analysis{DRAFT}assistantfinal{PLAN}",
        f"<|channel>thought\n{DRAFT}<channel|>{PLAN}",
        f"<think>{DRAFT * 1000}</think>{PLAN}",  # longer than an answer may be
        f"{PLAN} <think>{DRAFT}",  # behind the answer
    ],
)
def test_a_draft_in_a_thought_is_not_the_answer(reply):
    assert read_json_object(reply) == {"a": {"b": 2}}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (f"<think>{DRAFT}", "unfinished_thought"),
        (f"<think>{PLAN}", "unfinished_thought"),
        (f"Well. <thinking>{PLAN}", "unfinished_thought"),
        (f"[THINK]{PLAN}", "unfinished_thought"),
        (f"I will {{think}}. <think>{PLAN}", "unfinished_thought"),
        ("<think> where is the corner", "unfinished_thought"),
        (f"<|channel|>analysis<|message|>{PLAN}", "unfinished_thought"),
        (f"<think>{DRAFT}</think><think>{PLAN}", "unfinished_thought"),
        (f"<think>{PLAN}</think>", "empty"),
        (f"<think>{PLAN}</think>\n\n", "empty"),
        (f"{PLAN}</think> walk to the corner", "no_json"),
        (f"<think>{'x' * 300_000}</think>{PLAN}", "too_long"),
    ],
)
def test_a_thought_without_an_answer_is_refused(reply, reason):
    with pytest.raises(RefusedReply) as caught:
        read_json_object(reply)
    assert caught.value.reason == reason
    assert reason in REFUSALS


def test_a_mark_that_is_quoted_is_no_thought():
    for mark in ("<think>", "</think>", "<think></think>"):
        assert read_json_object(json.dumps({"a": mark})) == {"a": mark}
    assert read_json_object('Here: {"a": "<think>"}') == {"a": "<think>"}


PIECES = st.sampled_from(
    ['{', '}', '[', ']', '"', "'", "\\", ":", ",", "1", "-", "e9", "NaN", "a", "é", "\ud800", "\n",
     "<think>", "</think>", "[THINK]", "assistantfinal",
     "```", "null", " ", "{'a': ", '{"a": ', "\x00"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_gives_an_object_or_a_reason(text):
    reason = None
    try:
        value = read_json_object(text)
    except RefusedReply as refusal:
        reason = refusal.reason
    if reason is None:
        assert isinstance(value, dict)
        json.dumps(value, allow_nan=False)
    else:
        assert reason in REFUSALS


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.dictionaries(st.text(), VALUES, max_size=3), st.sampled_from(["", "Well.\n```\n", "so: "])
)
@settings(max_examples=200, deadline=None)
def test_what_json_wrote_is_read_back(value, prose):
    text = prose + json.dumps(value) + "\n``` and {so} on"

    def depth(item):
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return 1 + max(map(depth, inner), default=0) if isinstance(item, (dict, list)) else 0

    if depth(value) <= MAX_DEPTH:
        assert read_json_object(text) == value


@pytest.mark.parametrize(
    "unit",
    ["{", "[]", '"', "'", '\\"', "{'", '{"a":"', "\\", "{}", "}{", '{"a" ', "x", "<", "<think",
     "think", "<think>", "</think>", "</think ", "<|channel|>final", "<|", "[THINK", "<think x"],
)  # fmt: skip
def test_no_reply_takes_longer_than_its_length_deserves(unit):
    """The longest reply that is read; a quadratic scan of it takes seconds."""
    text = "{" * 3 + unit * (MAX_CHARACTERS // len(unit) - 4)
    begin = time.process_time()
    with contextlib.suppress(RefusedReply):
        read_json_object(text)
    assert time.process_time() - begin < 0.5


def test_a_megabyte_is_refused_at_once():
    begin = time.process_time()
    for text in ("{" * 2**20, '{"a": "' + "x" * 2**20 + '"}', " " * 2**20, "</think>" * 2**17):
        with pytest.raises(RefusedReply):
            read_json_object(text)
    assert time.process_time() - begin < 0.05


def test_keys_must_be_those_asked_for():
    assert require_keys({"a": 1}, ("a",), "it") == {"a": 1}
    for value in ({}, {"a": 1, "b": 2}, [("a", 1)], None, math.nan):
        with pytest.raises(RefusedReply, match="wrong_shape: it must be an object of a"):
            require_keys(value, ("a",), "it")
