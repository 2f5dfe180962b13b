"""The automata's languages are exactly what was asked for, on the host and on the device."""

import itertools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm import constrain
from jaxagent.models.llm.constrain import FREE, Automaton, automaton, pack
from jaxagent.models.llm.constrain_bytes import (
    byte_range,
    choice,
    compile_pattern,
    joined,
    literal,
    repeat,
    sequence,
)
from jaxagent.models.llm.constrain_json import NumberFormat, json_schema
from jaxagent.models.llm.constrain_text import (
    encode,
    encode_following,
    string_set,
    verb_object_grammar,
)
from jaxagent.models.llm.constrain_tokens import TokenBytes, lift, token_bytes
from tests.models.llm.random_models import COMMANDS, byte_tokenizer, piece_tokenizer

TOKENIZERS = {"byte-level": byte_tokenizer, "byte-fallback": piece_tokenizer}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def paths(a: Automaton, state: int = 0) -> list[list[int]]:
    """Every token sequence of a finite automaton."""
    if a.distance[state] == 0:
        return [[]]
    return [
        [token, *rest]
        for token in a.permitted(state).tolist()
        for rest in paths(a, a.advance(state, token))
    ]


def said(tokenizer, tokens: list[int]) -> str:
    return tokenizer.decode([t for t in tokens if t != tokenizer.eos_token_id])


def accepts(a: Automaton, tokens: list[int], end_token: int) -> bool:
    state = 0
    for token in tokens:
        if token not in a.permitted(state):
            return False
        state = a.advance(state, token)
    return a.distance[state] == 0 or end_token in a.permitted(state)


def random_walk(a: Automaton, rng: random.Random, budget: int) -> list[int]:
    """As decoding does: only what can still be finished."""
    state, tokens = 0, []
    while a.distance[state]:
        edges = slice(a.offsets[state], a.offsets[state + 1])
        usable = np.flatnonzero(a.distance[a.targets[edges]] < budget - len(tokens))
        edge = a.offsets[state] + rng.choice(usable.tolist())
        tokens.append(int(a.tokens[edge]))
        state = a.targets[edge]
    return tokens


def test_a_set_of_strings_has_one_path_for_each_string(tokenizer):
    end = tokenizer.eos_token_id

    def following(text):
        return encode_following(tokenizer, text)

    found = paths(string_set(tokenizer, [*COMMANDS, *COMMANDS[:3]], end_token=end))
    assert sorted(said(tokenizer, p) for p in found) == sorted(COMMANDS)
    for path in found:
        text = said(tokenizer, path)
        assert [t for t in path if t != end] == encode_following(tokenizer, text)
        # Exactly those that another one goes on from are closed by the end token.
        is_beginning = any(
            following(c)[: len(following(text))] == following(text) for c in COMMANDS if c != text
        )
        assert (path[-1] == end) == is_beginning
    assert any(p[-1] == end for p in found)


def test_a_grammar_is_the_product_of_its_slots(tokenizer):
    places, things = ["desk 1", "desk 12", "fridge 1"], ["apple 1", "egg"]
    rules = [
        [["go to"], places],
        [["take", "put"], things, ["from", "on"], places],
        [["go to desk"]],
        [["take"], ["apple 1"]],
    ]
    a = verb_object_grammar(tokenizer, rules, end_token=tokenizer.eos_token_id)
    expected = {" ".join(words) for rule in rules for words in itertools.product(*rule)}
    found = paths(a)
    assert {said(tokenizer, p) for p in found} == expected
    assert len(found) == len(expected)
    for path in found:
        text = said(tokenizer, path)
        spoken = [t for t in path if t != tokenizer.eos_token_id]
        assert spoken == encode_following(tokenizer, text)


def test_a_grammar_needs_states_for_phrases_not_sentences():
    tokenizer = byte_tokenizer()
    places = [f"desk {n}" for n in range(40)]
    rules = [[["take"], [f"egg {n}" for n in range(40)], ["from"], places]]
    a = verb_object_grammar(tokenizer, rules, end_token=tokenizer.eos_token_id)
    assert len(a.distance) < 200 < 40 * 40


def test_distances_are_those_of_the_shortest_string():
    tokenizer = byte_tokenizer()
    a = string_set(tokenizer, COMMANDS, end_token=tokenizer.eos_token_id)
    for state in range(len(a.distance)):
        assert a.distance[state] == min(map(len, paths(a, state)))


def test_states_that_lead_nowhere_are_cut():
    def edges(*pairs):
        return np.array([p[0] for p in pairs], int), np.array([p[1] for p in pairs], int)

    # 0 -5-> 1 (end), 0 -6-> 2 -7-> 2 (never ends)
    a = automaton([edges((6, 2), (5, 1)), edges(), edges((7, 2))], np.array([False, True, False]))
    assert paths(a) == [[5]]
    assert len(a.distance) == 2
    with pytest.raises(ValueError, match="nothing can be said"):
        automaton([edges((7, 0))], np.array([False]))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda t: string_set(t, [], end_token=1), "at least one string, found none"),
        (lambda t: string_set(t, ["a", ""], end_token=1), r"strings\[1\] must not be empty"),
        (lambda t: string_set(t, ["look"], end_token=encode(t, "look")[0]), "end token"),
        (
            lambda t: string_set(t, ["x", "<|im_start|>hello"], end_token=2),
            r"strings\[1\] .* must not hold a special token, found '<\|im_start\|>'",
        ),
        (lambda t: string_set(t, ["\ud800"], end_token=2), "half of a surrogate pair"),
        (lambda t: verb_object_grammar(t, [[["go"], ["<|im_end|>"]]], end_token=2), "special"),
        (lambda t: verb_object_grammar(t, [], end_token=1), "at least one rule"),
        (lambda t: verb_object_grammar(t, [[]], end_token=1), r"rules\[0\] must have"),
        (
            lambda t: verb_object_grammar(t, [[["a"], []]], end_token=1),
            r"rules\[0\]\[1\] must hold",
        ),
        (lambda t: verb_object_grammar(t, [[["a"], [""]]], end_token=1), "empty phrase"),
    ],
)
def test_bad_sets_and_grammars_are_named(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(byte_tokenizer())


def test_a_tokeniser_that_joins_words_is_refused_for_grammars():
    joining = piece_tokenizer(words=False)
    rules = [[["take", "put"], ["apple 1", "egg 1"], ["from desk 1"]]]
    with pytest.raises(ValueError, match="does not split 'take apple 1 from desk 1'"):
        verb_object_grammar(joining, rules, end_token=1)
    assert len(paths(string_set(joining, COMMANDS, end_token=1))) == len(COMMANDS)


def test_a_token_that_is_not_permitted_is_refused():
    a = string_set(byte_tokenizer(), ["look"], end_token=2)
    with pytest.raises(ValueError, match=r"token \(0\) is not permitted in state 0"):
        a.advance(0, 0)


PLAN = {
    "type": "object",
    "title": "a plan",
    "properties": {
        "thought": {"type": "string", "maxLength": 6},
        "sub_goals": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "x": {"type": "number", "minimum": -2.5, "maximum": 3},
                    "n": {"type": "integer", "minimum": -3, "maximum": 11},
                    "kind": {"enum": ["walk", 'run "fast"', None, 3]},
                },
                "required": ["x", "kind"],
            },
        },
        "ok": {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": {"a": [1]}}]},
        "free": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["sub_goals"],
}


def is_plan(value) -> bool:
    """The schema above, by hand."""
    if not set(value) <= {"thought", "sub_goals", "ok", "free"} or "sub_goals" not in value:
        return False
    goals = value["sub_goals"]
    return (
        1 <= len(goals) <= 3
        and all({"x", "kind"} <= set(g) <= {"x", "n", "kind"} for g in goals)
        and all(-2.5 <= g["x"] <= 3 and g["kind"] in ("walk", 'run "fast"', None, 3) for g in goals)
        and all(type(g.get("n", 0)) is int and -3 <= g.get("n", 0) <= 11 for g in goals)
        and len(value.get("thought", "")) <= 6
        and value.get("ok") in (True, False, None, {"a": [1]})
        and all(type(n) in (int, float) for n in value.get("free", []))
    )


def test_json_is_always_of_the_schema(tokenizer):
    end, rng = tokenizer.eos_token_id, random.Random(0)
    a = json_schema(tokenizer, PLAN, end_token=end)
    kinds = set()
    for budget in [int(a.distance[0])] * 3 + [120] * 150:
        tokens = random_walk(a, rng, budget)
        assert len(tokens) <= budget
        value = json.loads(said(tokenizer, tokens))
        assert is_plan(value), value
        kinds |= set(value)
    assert kinds == set(PLAN["properties"])


@pytest.mark.parametrize(
    "value",
    [
        {"sub_goals": [{"x": -1.5, "kind": "walk"}, {"x": -2, "kind": None}]},
        {"sub_goals": [{"x": 3, "n": 11, "kind": 'run "fast"'}] * 3, "ok": {"a": [1]}},
        {"thought": 'é→𝄞"\\', "sub_goals": [{"x": -0.25, "n": -3, "kind": None}], "free": []},
        {"sub_goals": [{"x": 2.9999, "kind": 3}], "ok": None, "free": [1, -20.5, 0]},
    ],
)
def test_what_json_writes_is_permitted_in_any_tokenisation(value):
    tokenizer = byte_tokenizer()
    a = json_schema(tokenizer, PLAN, end_token=tokenizer.eos_token_id)
    text = json.dumps(value, ensure_ascii=False)
    assert is_plan(value)
    assert accepts(a, encode(tokenizer, text), tokenizer.eos_token_id)
    spelled = {b: i for i, b in enumerate(token_bytes(tokenizer)) if len(b) == 1}
    letter_by_letter = [spelled[bytes([byte])] for byte in text.encode()]
    assert accepts(a, letter_by_letter, tokenizer.eos_token_id)


@pytest.mark.parametrize(
    "text",
    [
        '{"sub_goals": []}',
        '{"sub_goals": [{"x": 3.5, "kind": 3}]}',
        '{"sub_goals": [{"x": -2.6, "kind": 3}]}',
        '{"sub_goals": [{"x": 1, "n": 12, "kind": 3}]}',
        '{"sub_goals": [{"kind": 3, "x": 1}]}',
        '{"sub_goals": [{"x": 01, "kind": 3}]}',
        '{"sub_goals": [{"x": 1, "kind": 3}], "more": 1}',
        '{"thought": "sevenxx", "sub_goals": [{"x": 1, "kind": 3}]}',
        '{"thought": "a\nb", "sub_goals": [{"x": 1, "kind": 3}]}',
        '{"sub_goals": [{"x": NaN, "kind": 3}]}',
        '{"sub_goals": [{"x": 1, "kind": 3}]',
    ],
)
def test_what_is_outside_the_schema_is_not_permitted(text):
    tokenizer = byte_tokenizer()
    a = json_schema(tokenizer, PLAN, end_token=tokenizer.eos_token_id)
    assert not accepts(a, encode(tokenizer, text), tokenizer.eos_token_id)


def test_a_bare_number_ends_with_the_end_token():
    tokenizer = byte_tokenizer()
    a = json_schema(
        tokenizer, {"type": "integer"}, end_token=2, numbers=NumberFormat(integer_digits=2)
    )
    texts = {said(tokenizer, path) for path in paths(a)}
    assert texts == {str(n) for n in range(-99, 100)}


def test_strings_are_well_formed_utf8():
    tokenizer, rng = byte_tokenizer(), random.Random(1)
    a = json_schema(tokenizer, {"type": "string"}, end_token=tokenizer.eos_token_id)
    spelled = token_bytes(tokenizer)
    beyond_ascii = 0
    for _ in range(200):
        text = b"".join(spelled[t] for t in random_walk(a, rng, 24)).decode()
        beyond_ascii += not text.isascii()
        json.loads(text)
    assert beyond_ascii > 50


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "date"}, r"schema: type \('date'\)"),
        ([], "must be an object"),
        ({"type": "string", "pattern": "(?=a)"}, r"pattern \('\(\?=a\)'\) may not hold lookahead"),
        ({"type": "array", "uniqueItems": True}, r"keyword \(uniqueItems\)"),
        ({"type": "object", "properties": {"a": {"type": "x"}}}, r"schema\.a: type \('x'\)"),
        ({"type": "object", "required": ["b"]}, r"required \(b\)"),
        ({"type": "object", "additionalProperties": True}, "additionalProperties"),
        ({"type": "array"}, "must have items"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 2}, "minItems"),
        ({"type": "string", "maxLength": -1}, r"maxLength \(-1\)"),
        ({"type": "string", "maxLength": 10**6}, "more than 20000 states"),
        ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "permits nothing"),
        ({"type": "integer", "maximum": 10**1000}, "maximum must have at most 1000 digits"),
        ({"type": "number", "multipleOf": 0.1}, r"multipleOf \(0\.1\)"),
        ({"enum": []}, "at least one"),
        ({"type": []}, r"schema: type \(\[\]\) must be one of"),
        ({"type": ["string", "date"]}, r"schema: type \(\['string', 'date'\]\)"),
        ({"type": [["string"]]}, r"schema: type \(\[\['string'\]\]\)"),
        ({"minItems": 1}, r"must have items"),
        ({"type": "string", "enum": [1]}, "permits nothing"),
        ({"type": "object", "properties": []}, r"schema: properties \(\[\]\) must be an object"),
        ({"type": "object", "properties": {1: {}}}, r"schema: properties .* by name"),
        ({"type": "object", "required": 5}, r"schema: required \(5\) must be a list of names"),
        ({"type": "object", "required": [["a"]]}, r"required \(\[\['a'\]\]\) must be a list"),
        ({"type": "object", "required": "ab"}, r"required \('ab'\) must be a list of names"),
        ({"type": "number", "minimum": 1e400}, r"minimum \(inf\) must be a finite number"),
        ({"type": "integer", "maximum": -1e400}, r"maximum \(-inf\) must be a finite number"),
        ({"type": "integer", "maximum": None}, r"maximum \(None\) must be a finite number"),
        ({"const": "\ud800"}, r"schema\.const .* must be JSON"),
        ({"const": float("nan")}, "must be JSON"),
    ],
)
def test_schemas_that_are_not_understood_are_named(schema, complaint):
    with pytest.raises(ValueError, match=complaint):
        json_schema(byte_tokenizer(), schema, end_token=2)


def nested(depth):
    schema = {"type": "null"}
    for _ in range(depth - 1):
        schema = {"type": "array", "items": schema}
    return schema


def test_schemas_lie_so_deep_inside_one_another_and_no_deeper():
    tokenizer = byte_tokenizer()
    a = json_schema(tokenizer, nested(64), end_token=2)
    value = None
    for _ in range(63):
        value = [value, value] if value is None else [value]
    assert accepts(a, encode(tokenizer, json.dumps(value)), 2)
    for depth in (65, 300):
        with pytest.raises(ValueError, match=r"items: schemas may lie 64 deep inside one another"):
            json_schema(tokenizer, nested(depth), end_token=2)
    with pytest.raises(ValueError, match=r"schema\.enum .* must be JSON"):
        json_schema(tokenizer, {"enum": [nested(3000)]}, end_token=2)


def test_a_list_of_types_is_any_of_them():
    tokenizer = byte_tokenizer()
    schema = {"type": ["integer", "null", "string"], "maximum": 2, "minimum": 1, "maxLength": 1}
    a = json_schema(tokenizer, schema, end_token=2)
    for text, expected in (("1", 1), ("2", 1), ("3", 0), ("null", 1), ('"a"', 1), ('"ab"', 0)):
        assert accepts(a, encode(tokenizer, text), 2) == bool(expected), text


@pytest.mark.parametrize("num_required", [0, 1, 3])
def test_any_of_the_optional_properties_may_be_left_out(num_required):
    """Every choice of four, by hand; and forty of them take states in proportion."""
    tokenizer, names = byte_tokenizer(), ["a", "ab", "b", "c"]
    required = names[1 : 1 + num_required]

    def build(names):
        properties = {name: {"type": "null"} for name in names}
        schema = {"type": "object", "properties": properties, "required": required}
        return json_schema(tokenizer, schema, end_token=2)

    a = build(names)
    for chosen in itertools.chain(*(itertools.combinations(names, n) for n in range(5))):
        text = json.dumps(dict.fromkeys(chosen))
        assert accepts(a, encode(tokenizer, text), 2) == (set(required) <= set(chosen)), text
        assert not accepts(a, encode(tokenizer, text.replace("}", ", }")), 2)
    sizes = [len(build(names + [f"{n:02}" for n in range(count)]).distance) for count in (20, 40)]
    assert sizes[1] < 2.5 * sizes[0]


def test_patterns_against_regular_expressions():
    """Every string of up to five letters, against Python's own engine."""
    import re

    a_or_bc = choice(literal("a"), literal("bc"))
    cases = {
        r"(a|bc)*": repeat(a_or_bc, 0, None),
        r"(a|bc){2,3}c?": sequence(repeat(a_or_bc, 2, 3), repeat(literal("c"), 0, 1)),
        r"[a-b]+c": sequence(repeat(byte_range(97, 98), 1, None), literal("c")),
        r"(a|bc)(b(a|bc)){1,2}": joined(a_or_bc, literal("b"), 2, 3),
        r"(a|bc)(b(a|bc))*": joined(a_or_bc, literal("b"), 1, None),
        r"(ab*|b)": choice(sequence(literal("a"), repeat(literal("b"), 0, None)), literal("b")),
    }
    letters = TokenBytes([b"a", b"b", b"c", b"ab", b""])
    for expression, pattern in cases.items():
        machine = compile_pattern(pattern)
        for length in range(6):
            for text in map("".join, itertools.product("abc", repeat=length)):
                state = 0
                for byte in text.encode():
                    state = machine.targets[state, byte]
                matches = re.fullmatch(expression, text) is not None
                assert bool(machine.is_complete[state]) == matches, (expression, text)
        lifted = lift(machine, letters, end_token=4)
        assert accepts(lifted, [3], 4) == (re.fullmatch(expression, "ab") is not None)


def test_bytes_of_every_token(tokenizer):
    spelled = token_bytes(tokenizer)
    text = 'go to desk 12 déjà ☃ {"x": 1.5}'
    joined = b"".join(spelled[t] for t in encode(tokenizer, text)).decode()
    assert joined.removeprefix(" ") == text
    assert spelled[tokenizer.eos_token_id] == b""


def test_an_entry_outside_the_byte_alphabet_is_what_the_decoder_makes_of_it():
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    described = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    strange = ["日本", "a b", "<|extra|>"]
    size = len(described["model"]["vocab"])
    described["model"]["vocab"] |= {text: size + n for n, text in enumerate(strange)}
    odd = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), eos_token="<|im_end|>"
    )
    odd.add_tokens([AddedToken("é", special=False), AddedToken("<|new|>", special=True)])
    spelled = token_bytes(odd)
    for token in range(len(odd)):
        if spelled[token] and spelled[token].isascii():
            assert odd.decode([token]) == spelled[token].decode(), token
    assert [spelled[size + n].decode() for n in range(3)] == strange
    # The decoder reads added tokens in its alphabet, too: é is the byte E9.
    accented = odd.convert_tokens_to_ids("é")
    assert (spelled[accented], odd.decode([accented])) == (b"\xe9", "\ufffd")
    assert spelled[odd.convert_tokens_to_ids("<|new|>")] == b""
    a = json_schema(odd, {"type": "string", "maxLength": 3}, end_token=odd.eos_token_id)
    assert accepts(a, encode(odd, '"') + [size] + encode(odd, '"'), odd.eos_token_id)


def test_a_tokeniser_of_unknown_kind_is_refused():
    class Words:
        class backend_tokenizer:
            @staticmethod
            def to_str():
                return json.dumps({"decoder": {"type": "WordPiece"}})

    with pytest.raises(ValueError, match="WordPiece"):
        token_bytes(Words())


def test_the_device_agrees_with_the_host_in_every_state():
    """Lists, rows over the vocabulary, free rows and budgets, all in one batch."""
    tokenizer = byte_tokenizer()
    end, vocab_size = tokenizer.eos_token_id, len(tokenizer)
    text = json_schema(
        tokenizer,
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
        end_token=end,
    )
    assert (np.diff(text.offsets) > 128).any()
    commands = string_set(tokenizer, COMMANDS, end_token=end)
    tables, starts = pack([text, None, commands, text], vocab_size=vocab_size)
    assert starts[1] == FREE
    assert starts[0] == starts[3]
    permitted, advance = jax.jit(constrain.permitted, static_argnums=3), jax.jit(constrain.advance)
    for item, start in ((text, starts[0]), (commands, starts[2])):
        states = np.arange(len(item.distance))
        edge_state = np.repeat(states, np.diff(item.offsets))
        for budget in (1, 3, 30):
            mask = np.asarray(
                permitted(
                    tables, jnp.array(states + start), jnp.full(len(states), budget), vocab_size
                )
            )
            expected = np.zeros_like(mask)
            usable = item.distance[item.targets] < budget
            expected[edge_state[usable], item.tokens[usable]] = True
            assert np.array_equal(mask, expected)
        after = advance(tables, jnp.array(edge_state + start), jnp.array(item.tokens))
        assert np.array_equal(after, item.targets + start)
        done = constrain.is_done(tables, jnp.array(states + start))
        assert np.array_equal(np.asarray(done), item.distance == 0)
    free = jnp.array([FREE])
    assert bool(jnp.all(permitted(tables, free, jnp.array([1]), vocab_size)))
    assert advance(tables, free, jnp.array([7])).tolist() == [FREE]
    assert not constrain.is_done(tables, free)[0]


def test_tables_grow_in_a_few_sizes_and_never_shrink():
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    few = string_set(tokenizer, ["look"], end_token=end)
    many = string_set(tokenizer, [f"look at {n}" for n in range(300)], end_token=end)
    small = pack([few], vocab_size=320)[0].sizes
    large = pack([many], vocab_size=320)[0].sizes
    assert small == (256, 32, 0)
    assert large.states == 1024
    assert pack([few], vocab_size=320, at_least=large)[0].sizes == large


def test_a_token_outside_the_vocabulary_is_named():
    tokenizer = byte_tokenizer()
    with pytest.raises(ValueError, match="must be below the vocabulary's size"):
        pack([string_set(tokenizer, ["look"], end_token=2)], vocab_size=10)
