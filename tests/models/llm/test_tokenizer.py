"""Tokenisers trained from text and read from GGUF metadata."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.models.llm.gguf_tokenizer import tokenizer_from_gguf
from jaxagent.models.llm.tokenizer import train_tokenizer

TEXTS = ["go to desk 1", "take mug 2 from desk 1", "put mug 2 in/on shelf 3"] * 20
TOKENIZER = train_tokenizer(TEXTS, 340)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_every_text_comes_back(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= token < len(TOKENIZER) for token in ids)


def test_common_words_are_one_token_and_specials_are_never_split():
    assert len(TOKENIZER) <= 340
    assert TOKENIZER.tokenize("take mug 2") == ["take", "Ġmug", "Ġ2"]
    assert TOKENIZER.tokenize("<|im_start|>go<|im_end|>") == ["<|im_start|>", "go", "<|im_end|>"]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token) == (0, "<|im_end|>")


def test_chat_template():
    chat = [{"role": "system", "content": "plan"}, {"role": "user", "content": "go"}]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nplan<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ValueError, match="vocab_size must be at least 259, found 100"):
        train_tokenizer(TEXTS, 100)


def metadata(split, tokens=(), **extra):
    specials = ["<s>", "</s>"]
    letters = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ"]
    vocabulary = [*specials, *letters, *tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.merges": [" ".join((t[:-1], t[-1])) for t in tokens],
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(vocabulary) - 2),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **extra,
    }


@pytest.mark.parametrize(
    ("split", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
        ("gpt-2", ["1234"]),
    ],
)
def test_numbers_are_cut_as_the_family_cuts_them(split, pieces):
    tokenizer = tokenizer_from_gguf(metadata(split, ["12", "123", "1234"]))
    assert tokenizer.tokenize("1234") == pieces
    assert tokenizer.decode(tokenizer.encode("a 1234\nb")) == "a 1234\nb"


def test_a_beginning_is_added_where_the_file_says_so():
    plain = tokenizer_from_gguf(metadata("gpt-2"))
    begun = tokenizer_from_gguf(metadata("gpt-2", **{"tokenizer.ggml.add_bos_token": True}))
    assert begun.encode("a") == [0, *plain.encode("a")]
    assert begun.pad_token == "</s>"  # none given: the end
