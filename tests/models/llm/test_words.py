"""The tokeniser of words and things, and its factored embedding."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm.words import SubwordTokenizer, WordTokenizer, with_embedding
from tests.models.llm.files import small_tokenizer

KINDS = {"drawer": 3, "apple": 2}


def tokenizer():
    return WordTokenizer(["go", "sees", ">"], KINDS)


def test_a_thing_is_one_token():
    words = tokenizer()
    ids = words.encode("go drawer 3 sees apple 1 apple 2 apple")
    assert len(ids) == 6
    assert words.decode(ids) == "go drawer 3 sees apple 1 apple 2 apple"
    assert not words.missing


def test_every_token_comes_back():
    words = tokenizer()
    for number in range(2, words.vocab_size):
        assert words.encode(words.decode([number])) == [number]


def test_the_embedding_of_a_thing_is_the_sum_of_its_parts():
    words = tokenizer()
    stems = int(words.factors.stem.max()) + 1
    numbers = int(words.factors.number.max()) + 1
    stem = np.arange(stems * 2, dtype=np.float32).reshape(stems, 2)
    number = 100.0 * np.arange(numbers * 2, dtype=np.float32).reshape(numbers, 2)
    params = {"stem": jnp.asarray(stem), "number": jnp.asarray(number), "layers": {}}
    table = np.asarray(with_embedding(params, words.factors)["embedding"])
    drawer, drawer_3, apple, apple_2 = words.ids_of(["drawer", "drawer 3", "apple", "apple 2"])
    # What a number adds is the same whatever bears it.
    np.testing.assert_array_equal(table[drawer_3] - table[drawer], number[3] - number[0])
    np.testing.assert_array_equal(table[apple_2] - table[apple], number[2] - number[0])
    assert "stem" not in with_embedding(params, words.factors)
    assert with_embedding({"embedding": 1}, None) == {"embedding": 1}


@pytest.mark.parametrize(
    ("name", "read"),
    [("drawer 9", "drawer 3"), ("gizmo 2", "thing 2"), ("gizmo 99", "thing 8")],
)
def test_what_the_vocabulary_lacks_is_read_as_the_nearest_and_named(name, read):
    words = tokenizer()
    assert words.decode(words.encode(f"go {name}")) == f"go {read}"
    assert words.describe_missing() == f"the vocabulary lacks what it read '{name}' as '{read}'"


def test_unknown_words_are_unknown_and_the_line_stays_short():
    words = tokenizer()
    assert words.decode(words.encode("fly go")) == "<unknown> go"
    words.encode(" ".join(f"gizmo{letter}" for letter in "abcdefgh"))
    assert words.describe_missing().endswith("and 4 more")
    assert tokenizer().describe_missing() == ""


def test_without_kinds_names_are_two_words():
    words = WordTokenizer(["drawer", "3", "in/on", "\n", ">"])
    ids = words.encode("drawer 3 in/on\n> drawer")
    assert words.decode(ids) == "drawer 3 in/on \n > drawer"


def test_a_description_makes_the_same_tokeniser():
    words = tokenizer()
    again = WordTokenizer.from_dict(words.to_dict())
    assert again.encode("go drawer 2") == words.encode("go drawer 2")
    assert again.vocab_size == words.vocab_size
    with pytest.raises(ValueError, match=r"tokeniser format 'other' is not 'jaxagent\.words\.1'"):
        WordTokenizer.from_dict({"format": "other"})


def test_words_and_kinds_must_differ_and_exact_tokens_must_exist():
    with pytest.raises(ValueError, match=r"\['apple'\] cannot be both"):
        WordTokenizer(["apple"], KINDS)
    with pytest.raises(ValueError, match=r"highest number of 'egg' \(0\) must be >= 1"):
        WordTokenizer([], {"egg": 0})
    for token in (-1, 10_000):
        with pytest.raises(ValueError, match=rf"token \({token}\) must lie in \[0, "):
            tokenizer().decode([token])
    with pytest.raises(ValueError, match="no token 'apple 7'"):
        tokenizer().ids_of(["go", "apple 7"])


def test_a_subword_tokeniser_adds_nothing_of_its_own():
    plain = small_tokenizer()
    words = SubwordTokenizer(plain, vocab_size=len(plain) + 5)
    ids = words.encode("go to desk 1\n")
    assert words.decode(ids) == "go to desk 1\n"
    assert words.decode([*ids, len(plain) + 2]) == "go to desk 1\n"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("go drawer ²", "go drawer <unknown>"),  # a digit to str.isdigit, no number to int
        ("go drawer ③ drawer 2", "go drawer <unknown> drawer 2"),
        ("go drawer ٣", "go drawer <unknown>"),  # a number to int, not one that the games print
        ("go drawer " + "9" * 5000, "go drawer 3"),
        ("go drawer " + "0" * 5000 + "2", "go drawer 2"),
        ("go gizmo " + "7" * 5000, "go thing 8"),
        ("drawer 0", "drawer 1"),
    ],
)
def test_digits_of_every_kind_and_number_are_read(text, read):
    words = tokenizer()
    assert words.decode(words.encode(text)) == read


def test_ids_of_a_tokeniser_beyond_its_model_are_refused():
    plain = small_tokenizer()
    assert SubwordTokenizer(plain, len(plain)).encode("go")
    most = max(plain.encode("go", add_special_tokens=False))
    with pytest.raises(ValueError, match=rf"token \({most}\) must lie in \[0, {most - 1}\]"):
        SubwordTokenizer(plain, most).encode("go")
