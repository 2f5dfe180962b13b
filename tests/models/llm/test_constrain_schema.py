"""Keywords of JSON Schema: what is written satisfies all of them, as another validator sees it."""

import enum
import itertools
import json
import os
import random
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pydantic
import pytest
from pydantic import Field

from jaxagent.models.llm.constrain import Packer, advance, is_done, permitted
from jaxagent.models.llm.constrain_json import json_schema
from jaxagent.models.llm.constrain_text import encode
from jaxagent.models.llm.constrain_tokens import TokenBytes, lift, token_bytes
from jaxagent.models.llm.sampling import SamplingConfig, draw, stack_sampling
from tests.models.llm.random_models import byte_tokenizer
from tests.models.llm.test_constrain import accepts, random_walk, said

END = byte_tokenizer().eos_token_id
TRIES = int(os.environ.get("JAXAGENT_SCHEMA_TRIES", "480"))


def build(schema):
    return json_schema(byte_tokenizer(), schema, end_token=END, spelled=_spelled())


def _spelled(kept=[]):  # noqa: B006
    if not kept:
        kept.append(TokenBytes(token_bytes(byte_tokenizer())))
    return kept[0]


NODE = {"type": "object", "properties": {"kind": {"const": "n"}, "size": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "string", "enum": [1, "a"]}, ['"a"'], ["1"]),
        ({"type": ["string", "null"], "enum": ["a", None, 3]}, ['"a"', "null"], ["3"]),
        ({"type": "number", "enum": [1, True, "1"], "minimum": 1}, ["1"], ["true", '"1"']),
        ({"enum": [1, 2, 3], "const": 2}, ["2"], ["1"]),
        ({"enum": ["a", "abc"], "pattern": "b", "maxLength": 3}, ['"abc"'], ['"a"']),
        (
            {
                "anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "maxLength": 2}],
                "maximum": 5,
            },
            ["3", "5", '"ab"'],
            ["2", "6", '"abc"'],
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "type": "null"}, ["null"], ['"a"']),
        ({"type": "integer", "minimum": 0}, ["0", "7", "999999999"], ["-1", "01", "1.0"]),
        ({"type": "integer", "maximum": 10**400}, ["0", "-7", "1" * 400], ["1" * 402]),
        (
            {"type": "integer", "minimum": 0, "maximum": 20000000000},
            ["0", "20000000000", "19999999999"],
            ["20000000001", "30000000000", "-1"],
        ),
        (
            {"type": "integer", "exclusiveMinimum": -12, "exclusiveMaximum": 105},
            ["-11", "0", "99", "104"],
            ["-12", "105", "-0", "-"],
        ),
        (
            {"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 100},
            ["0", "7", "-14", "98"],
            ["1", "-21", "105", "13"],
        ),
        (
            {"type": "number", "minimum": 0.25, "maximum": 1},
            ["0.25", "0.5", "1", "0.9999", "1.0", "0.3"],
            ["0.2", "0.2499", "1.1", "1.0001", "0"],
        ),
        (
            {"type": "number", "exclusiveMinimum": -1.5, "maximum": -0.1},
            ["-1.4", "-1", "-0.1", "-1.4999"],
            ["-1.5", "0", "-0.0999", "-0"],
        ),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.0001", "5", "12.25"], ["0", "0.0", "-1"]),
        ({"type": "number", "multipleOf": 0.5}, ["0", "7.5", "-1.0"], ["1.25", "0.1"]),
        (
            {"type": "string", "pattern": r"^[a-z]{2,4}\d?$", "maxLength": 4},
            ['"ab"', '"abc1"', '"abcd"'],
            ['"a"', '"abcd1"', '"Abc"'],
        ),
        ({"type": "string", "pattern": "a.c"}, ['"abc"', '"xxaéc/"', r'"a\"c"'], [r'"a\nc"']),
        ({"type": "string", "pattern": '^[^"a]$'}, ['"b"', '"é"', r'"\\"'], ['"a"', r'"\""']),
        ({"type": "string", "pattern": "^(a|^b)$|^c"}, None, "pattern"),
        (
            {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 1}], "minItems": 2},
            ["[true, 1]"],
            ["[true]", "[]", "[true, 1, 1]"],
        ),
        (
            {"type": "array", "prefixItems": [{"const": 0}], "items": {"const": 2}, "maxItems": 3},
            ["[]", "[0]", "[0, 2, 2]"],
            ["[2]", "[0, 2, 2, 2]"],
        ),
        (
            {"additionalProperties": {"type": "null"}},
            ["{}", '{"a": null, "b": null}'],
            ['{"a": 1}'],
        ),
        (
            {
                "type": "object",
                "additionalProperties": {"const": 1},
                "propertyNames": {"enum": ["x", "y"]},
                "minProperties": 1,
            },
            ['{"x": 1}', '{"x": 1, "y": 1}'],
            ['{"a": 1}', "{}"],
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                    {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}},
                ]
            },
            ['{"a": 3}', '{"a": 4, "b": null}'],
            ['{"a": 2}', "{}"],
        ),
        (
            {"allOf": [{**NODE, "additionalProperties": False}, {"properties": {"b": {}}}]},
            ["{}", '{"kind": "n", "size": 3}'],
            ['{"b": 1}'],
        ),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"x"', "3"], ["null"]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, None, r"oneOf\[0\] and oneOf\[1\]"),
        ({"$defs": {"n": NODE}, "$ref": "#/$defs/n", "required": ["kind"]}, ['{"kind": "n"}'], []),
        ({"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}, None, "itself"),
        ({"$ref": "other.json"}, None, r"\$ref \('other.json'\) must begin"),
        ({"$ref": "#/$defs/x"}, None, r"\$ref \(#/\$defs/x\) leads nowhere"),
        ({"type": "string", "format": "iri"}, None, r"format \('iri'\) is not supported"),
        (
            {"type": "object", "minProperties": 1, "properties": {"a": {}}},
            None,
            "type must be given",
        ),
    ],
)
def test_keywords_are_a_conjunction(schema, inside, outside):
    if inside is None:
        with pytest.raises(ValueError, match=outside) as raised:
            build(schema)
        assert "\n" not in str(raised.value)
        return
    a = build(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for text in inside:
        assert validator.is_valid(json.loads(text)), text
        assert accepts(a, encode(byte_tokenizer(), text), END), text
    for text in outside:
        assert not accepts(a, encode(byte_tokenizer(), text), END), text


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(pydantic.BaseModel):
    """Where."""

    name: str = Field(min_length=1, max_length=12, description="of a room")
    floor: int = Field(ge=-2, lt=40)


class Walk(pydantic.BaseModel):
    kind: Literal["walk"] = "walk"
    to: Place
    via: list[Place] = Field(default=[], max_length=2)


class Take(pydantic.BaseModel):
    kind: Literal["take"]
    what: Annotated[str, Field(pattern=r"^[a-z]+ \d$", max_length=9)]
    color: Color | None = None


class Plan(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(title="a plan", extra="forbid")
    steps: list[Annotated[Walk | Take, Field(discriminator="kind")]] = Field(min_length=1)
    confidence: float = Field(gt=0, le=1)
    budget: int = Field(ge=0, multiple_of=5, examples=[10])
    notes: dict[str, int | None] = {}
    pair: tuple[bool, int]
    when: Literal["now", 3] | None = None


def test_nested_models_of_pydantic_are_what_is_written():
    schema, rng = Plan.model_json_schema(), random.Random(0)
    a, seen = build(schema), set()
    for budget in [int(a.distance[0])] * 2 + [200] * 120:
        text = said(byte_tokenizer(), random_walk(a, rng, budget))
        jsonschema.validate(json.loads(text), schema)
        plan = Plan.model_validate_json(text)
        seen |= {type(step) for step in plan.steps}
    assert seen == {Walk, Take}
    given = Plan(
        steps=[Take(kind="take", what="egg 1", color=Color.RED)],
        confidence=0.5,
        budget=10,
        notes={"a": 1, "b": None},
        pair=(True, -3),
    )
    assert accepts(a, encode(byte_tokenizer(), json.dumps(given.model_dump(mode="json"))), END)


def test_what_is_too_large_names_its_field():
    part = {"type": "string", "maxLength": 80}
    properties = {"few": part, "many": {"type": "string", "maxLength": 3000}}
    with pytest.raises(ValueError, match=r"largest part is schema\.many, about \d+ states"):
        build({"type": "object", "properties": properties})
    properties["many"] = {"type": "string", "maxLength": 400}
    a = build({"type": "object", "properties": properties, "required": ["few", "many"]})
    text = json.dumps({"few": "é" * 80, "many": "x" * 400}, ensure_ascii=False)
    assert accepts(a, encode(byte_tokenizer(), text), END)
    assert not accepts(a, encode(byte_tokenizer(), text.replace('"}', 'x"}')), END)


def test_repeated_characters_are_lifted_as_one_by_one(monkeypatch):
    """States that are like an earlier one take its edges; without that, the same automaton."""
    words = ["the ", "quick", '", "b": "', '"}', "----------------------------", "é", "→ab" * 9]
    spelled = TokenBytes([bytes([b]) for b in range(256)] + [w.encode() for w in words] + [b""])
    from jaxagent.models.llm import constrain_tokens
    from jaxagent.models.llm.constrain_bytes import compile_pattern, literal, repeat, sequence
    from jaxagent.models.llm.constrain_characters import CHARACTER

    text = [sequence(literal('"'), repeat(CHARACTER, n, n + 40), literal('"')) for n in (0, 30)]
    pattern = sequence(literal('{"a": '), text[0], literal(', "b": '), text[1], literal("}"))
    machine = compile_pattern(pattern)
    shifts, _ = constrain_tokens._shifts(machine, spelled.longest)
    assert len(shifts) > 400
    quick = lift(machine, spelled, end_token=263)
    monkeypatch.setattr(constrain_tokens, "_shifts", lambda *_: ({}, {}))
    for one, two in zip(quick, lift(machine, spelled, end_token=263), strict=True):
        np.testing.assert_array_equal(one, two)


KEYWORDS = {
    "type": [
        "string",
        "integer",
        "number",
        "null",
        "boolean",
        "array",
        "object",
        ["integer", "null"],
    ],
    "enum": [[1, "a", None, 2.5, True], ["ab", 7, 12], [[1], {"a": 1}, "x"]],
    "const": [1, "ab", 12, None, {"a": 1}],
    "minimum": [0, 3, 2.5, -7],
    "maximum": [5, 10**30, 12.25, -1],
    "exclusiveMinimum": [0, 2, -0.5],
    "exclusiveMaximum": [9, 12.5, 10**12],
    "multipleOf": [1, 3, 0.5, 0.1],
    "minLength": [0, 2],
    "maxLength": [0, 3, 30],
    "pattern": ["^[a-z]+$", "b", r"\d$", "(x|yy)*", "^.?$"],
    "format": ["date", "email", "uuid", "time", "hostname"],
    "items": [{"type": "integer"}, {"enum": ["a", 1]}, False, True],
    "prefixItems": [[{"type": "null"}], [{"const": 1}, {"type": "boolean"}]],
    "minItems": [0, 2],
    "maxItems": [0, 1, 3],
    "uniqueItems": [True, False],
    "contains": [{"const": 1}],
    "properties": [
        {"a": {"type": "integer", "minimum": 2}},
        {"a": {"const": 1}, "b": {"type": "null"}},
    ],
    "required": [["a"], ["b", "a"], []],
    "additionalProperties": [False, True, {"type": "integer"}],
    "propertyNames": [{"pattern": "^[ab]$"}, {"maxLength": 3}],
    "patternProperties": [{"^a": {"type": "null"}}],
    "minProperties": [0, 1, 2],
    "maxProperties": [0, 1, 5],
    "anyOf": [[{"type": "integer"}, {"type": "string"}], [{"minimum": 3}, {"maxLength": 2}]],
    "oneOf": [[{"type": "null"}, {"type": "object"}], [{"type": "integer"}, {"type": "number"}]],
    "allOf": [[{"minimum": 1}, {"type": "integer"}], [{"type": "object"}, {"required": ["a"]}]],
    "not": [{"type": "null"}],
    "$ref": ["#/$defs/n"],
    "if": [{"type": "integer"}],
    "dependentRequired": [{"a": ["b"]}],
}
DEFS = {"n": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ROWS = 24


def schema_of(rng: random.Random, pair: tuple[str, str]) -> dict:
    """Two keywords, and now and then a type beside them, or all inside an object."""
    schema = {keyword: rng.choice(KEYWORDS[keyword]) for keyword in pair}
    if "type" not in schema and rng.random() < 0.5:
        schema["type"] = rng.choice(["string", "integer", "number", "array", "object"])
    if rng.random() < 0.3:
        schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return {**schema, "$defs": DEFS}


@jax.jit
def step(tables, state, remaining, logits, sampling, index):
    mask = permitted(tables, state, remaining, logits.shape[-1])
    token = draw(logits, mask, sampling, index).token
    done = is_done(tables, state)
    return jnp.where(done, state, advance(tables, state, token)), jnp.where(done, -1, token)


def play(packer: Packer, automata: list, rng: np.random.Generator) -> list[list[int]]:
    """A reply under each, of a model whose logits are broken in one of several ways."""
    tables, starts = packer.pack(automata)
    modes = [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 3, 1.0), (1.3, 0, 0.3), (5.0, 9, 0.9)]
    configs = [
        SamplingConfig(temperature=t, top_k=k, top_p=p, seed=row)
        for row, (t, k, p) in zip(range(ROWS), itertools.cycle(modes), strict=False)
    ]
    sampling = stack_sampling(configs, [()] * ROWS)
    budgets = np.array([int(a.distance[0]) + 40 for a in automata])
    state, replies = jnp.asarray(starts), []
    size = len(byte_tokenizer())
    for index in range(int(budgets.max())):
        logits = rng.normal(size=(ROWS, size)).astype(np.float32)
        logits[rng.random((ROWS, size)) < rng.choice([0, 0.5, 0.99], (ROWS, 1))] = np.nan
        logits[::4], logits[1::4] = rng.choice([np.nan, np.inf, -np.inf, 0.0]), np.inf
        remaining = jnp.asarray(np.maximum(budgets - index, 1))
        place = jnp.full(ROWS, index)
        state, token = step(tables, state, remaining, jnp.asarray(logits), sampling, place)
        replies.append(np.asarray(token))
        if (replies[-1] < 0).all():
            break
    return [[t for t in row if t >= 0] for row in np.stack(replies, axis=1).tolist()]


def test_no_pair_of_keywords_lets_a_broken_model_out():
    rng, noise = random.Random(1), np.random.default_rng(1)
    pairs = [*itertools.combinations(KEYWORDS, 2)]
    rng.shuffle(pairs)
    packer, queue, refused = Packer(len(byte_tokenizer())), [], []
    chosen = itertools.islice(itertools.cycle(pairs), TRIES)
    for number, pair in enumerate(chosen):
        schema = schema_of(rng, pair)
        try:
            queue.append((schema, build(schema)))
        except ValueError as error:
            refused.append(str(error))
        if len(queue) == ROWS or (queue and number == TRIES - 1):
            rows = (queue * ROWS)[:ROWS]
            replies = play(packer, [automaton for _, automaton in rows], noise)
            for (each, _), tokens in zip(rows, replies, strict=True):
                jsonschema.validate(json.loads(said(byte_tokenizer(), tokens)), each)
            queue = []
    assert [line for line in refused if "\n" in line or not line.startswith("schema")] == []
    print(f"{TRIES} schemas, {len(refused)} refused by name")
    assert len(refused) < 0.8 * TRIES
