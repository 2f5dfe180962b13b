"""Tokenisers of GGUF files: pieces of SentencePiece, llama.cpp's default, and broken metadata."""

import itertools
import random

import pytest

from jaxagent.models.llm.constrain_tokens import token_bytes
from jaxagent.models.llm.gguf_tokenizer import tokenizer_from_gguf
from jaxagent.models.llm.tokenizer import train_tokenizer

K = "tokenizer.ggml."


def pieces():
    """As Llama 2 has them: unknown, begin, end, the bytes, letters, then what is joined."""
    joined = ["▁t", "he", "▁the", "in", "▁a", "er", "▁w", "ing", "▁in", "▁water", "ter", "at", "wa"]
    letters = list("▁abcdefghinrstw.12")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *joined, *letters]
    tokens += ["[INST]"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(joined) + len(letters)), 4]
    scores = [0.0] * 259 + [-float(n) for n in range(len(joined) + len(letters))] + [0.0]
    return {
        f"{K}model": "llama",
        f"{K}tokens": tokens,
        f"{K}scores": scores,
        f"{K}token_type": kinds,
        f"{K}bos_token_id": 1,
        f"{K}eos_token_id": 2,
        f"{K}unknown_token_id": 0,
    }


def by_score(metadata, text: str) -> list[str]:
    """What llama.cpp does, slowly: the best neighbours are joined, the leftmost of equals."""
    of_piece = zip(metadata[f"{K}tokens"], metadata[f"{K}scores"], metadata[f"{K}token_type"])
    scores = {token: score for token, score, kind in of_piece if kind == 1}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (scores[a + b], -i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in scores
        ]
        if not pairs:
            break
        place = -max(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        byte
        for part in parts
        for byte in ([part] if part in scores else [f"<0x{b:02X}>" for b in part.encode()])
    ]


def test_pieces_are_joined_by_their_scores():
    metadata, rng = pieces(), random.Random(0)
    tokenizer = tokenizer_from_gguf(metadata)
    texts = ["the water is in", "", "é→", "thethethe  a", "winging"]
    texts += ["".join(rng.choices("the wating.1", k=rng.randint(1, 20))) for _ in range(200)]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        expected = by_score(metadata, text) if text else []
        assert tokenizer.convert_ids_to_tokens(ids) == expected, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a")[0] == 1  # llama.cpp begins with <s> unless the file says no
    spelled = token_bytes(tokenizer)
    assert spelled[:3] == [b"", b"", b""]
    assert spelled[3 + 0x41] == b"A"
    assert spelled[tokenizer.convert_tokens_to_ids("▁the")] == b" the"
    assert "[INST]" in tokenizer.tokenize("a[INST]the")


def test_without_a_prefix_the_first_space_is_the_texts_own():
    tokenizer = tokenizer_from_gguf({**pieces(), f"{K}add_space_prefix": False})
    assert tokenizer.tokenize("the") == ["t", "he"]
    for text in ("the", " the"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def byte_level(**changes):
    trained = train_tokenizer(["12 123 1234 a b"] * 3, 300)
    vocabulary = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    whole = ["12", "34", "123", "1234", "!!"]
    found = [*vocabulary, *(w for w in whole if w not in vocabulary)]
    made = {
        f"{K}model": "gpt2",
        f"{K}pre": "gpt-2",
        f"{K}tokens": found,
        f"{K}merges": ["1 2", "12 3", "123 4", "3 4", "! !"],
        f"{K}token_type": [3, 3, 3, *[1] * (len(found) - 3)],
        f"{K}eos_token_id": 2,
    }
    return {k: v for k, v in {**made, **changes}.items() if v is not None}


def test_words_are_cut_as_llama_cpp_cuts_them_by_default():
    """Its default: runs of three digits, punctuation by itself."""
    with pytest.warns(UserWarning, match=r"lacks tokenizer\.ggml\.pre"):
        silent = tokenizer_from_gguf(byte_level(**{f"{K}pre": None}))
    named = tokenizer_from_gguf(byte_level(**{f"{K}pre": "default"}))
    for tokenizer in (silent, named):
        assert tokenizer.tokenize("1234") == ["123", "4"]
        assert tokenizer.tokenize("a!!") == ["a", "!!"]
        assert tokenizer.tokenize(" !!") == ["Ġ", "!!"]
        assert tokenizer.decode(tokenizer.encode("a 1234\nb !!")) == "a 1234\nb !!"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{K}tokens": None}, r"lacks tokenizer\.ggml\.tokens"),
        ({f"{K}merges": None}, r"lacks tokenizer\.ggml\.merges"),
        ({f"{K}tokens": [1, 2]}, r"ggml\.tokens must be a list"),
        ({f"{K}tokens": []}, r"ggml\.tokens must hold at least one"),
        ({f"{K}merges": ["1 2", "123"]}, r"ggml\.merges \('123'\) must be of two parts"),
        ({f"{K}merges": ["q 9"]}, r"ggml\.tokens make no tokeniser"),
        ({f"{K}eos_token_id": 10**6}, r"ggml\.eos_token_id \(1000000\) must lie in \[0, "),
        ({f"{K}bos_token_id": "a"}, r"ggml\.bos_token_id \('a'\) must lie in"),
        ({f"{K}token_type": [1]}, r"ggml\.token_type \(1\) must be one for each token"),
        ({f"{K}pre": 3}, r"ggml\.pre 3 is not supported"),
        ({f"{K}model": "t5"}, r"ggml\.model 't5' is not supported"),
        ({f"{K}model": "llama"}, r"lacks tokenizer\.ggml\.scores"),
        ({"tokenizer.chat_template": 5}, r"chat_template \(5\) must be a string"),
    ],
)
def test_a_broken_field_is_named(changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        tokenizer_from_gguf(byte_level(**changes))
    assert "\n" not in str(raised.value)
