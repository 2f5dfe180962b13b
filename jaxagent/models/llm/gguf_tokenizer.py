"""The tokeniser that a GGUF file carries: byte-level BPE, or pieces of SentencePiece."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as tokenizer_models
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from jaxagent.models.llm.tokenizer import first_line, is_of_library, wrapped

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
# Each cuts what those before it left whole.
_DEFAULT_WORDS = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")
_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": _DEFAULT_WORDS,
    "llama-bpe": (_LLAMA3_WORDS,),
    "qwen2": (_QWEN2_WORDS,),
}
# Kinds of token.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_KEY = "tokenizer.ggml."


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The tokeniser that a GGUF file's metadata describes, with its chat template.

    Raises:
        ValueError: another kind of tokeniser, a way to split words that is not known, or a field
            that is missing or wrong; the field is named.
    """
    kind = metadata.get(f"{_KEY}model")
    makers = {"gpt2": _byte_level, "llama": _pieces}
    if kind not in makers:
        raise ValueError(
            f"{_KEY}model {kind!r} is not supported; supported: gpt2 (byte-level BPE), llama "
            "(SentencePiece)"
        )
    tokens = _list(metadata, "tokens", str)
    if not tokens:
        raise ValueError(f"{_KEY}tokens must hold at least one token")
    kinds = (
        _list(metadata, "token_type", int, len(tokens)) if f"{_KEY}token_type" in metadata else []
    )
    special = {role: _special(metadata, role, tokens) for role in _ROLES}
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"tokenizer.chat_template ({template!r:.60}) must be a string")
    try:
        tokenizer = makers[kind](metadata, tokens, kinds)
        named = [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, kinds)
            if token and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
        tokenizer.add_tokens(named)
        _surround(tokenizer, metadata, tokens, special, is_begun=kind == "llama")
        return wrapped(
            tokenizer,
            bos=special["bos"],
            eos=special["eos"],
            pad=special["padding"] or special["eos"],
            unk=special["unknown"],
            chat_template=template,
        )
    except BaseException as error:
        if not is_of_library(error) or (isinstance(error, ValueError) and _KEY in str(error)):
            raise
        raise ValueError(f"{_KEY}tokens make no tokeniser: {first_line(error)}") from None


_ROLES = ("bos", "eos", "padding", "unknown")


def _list(
    metadata: Mapping[str, Any], name: str, kind: type | tuple, length: int | None = None
) -> Any:
    values = metadata.get(f"{_KEY}{name}")
    if values is None:
        raise ValueError(f"the metadata lacks {_KEY}{name}")
    if not isinstance(values, list) or not all(isinstance(v, kind) for v in values):
        raise ValueError(
            f"{_KEY}{name} must be a list of {'strings' if kind is str else 'numbers'}"
        )
    if length is not None and len(values) != length:
        raise ValueError(f"{_KEY}{name} ({len(values)}) must be one for each token ({length})")
    return values


def _special(metadata: Mapping[str, Any], role: str, tokens: Sequence[str]) -> str | None:
    index = metadata.get(f"{_KEY}{role}_token_id")
    if index is None:
        return None
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(tokens):
        raise ValueError(f"{_KEY}{role}_token_id ({index!r}) must lie in [0, {len(tokens) - 1}]")
    return tokens[index]


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]
) -> Tokenizer:
    merges = _list(metadata, "merges", str)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if wrong := next((m for m, p in zip(merges, pairs, strict=True) if len(p) != 2), None):
        raise ValueError(f"{_KEY}merges ({wrong!r:.60}) must be of two parts")
    split = metadata.get(f"{_KEY}pre")
    if split is None:
        split = "default"
        warnings.warn(
            f"the metadata lacks {_KEY}pre: words are cut as llama.cpp cuts them by default, which "
            "may not be how the model learnt them",
            stacklevel=4,
        )
    vocabulary = {token: place for place, token in enumerate(tokens)}
    model = tokenizer_models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=split == "llama-bpe")
    tokenizer = Tokenizer(model)
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _word_splitter(split)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word_splitter(split: str) -> Any:
    """How text is cut into words before merging; the names are those of llama.cpp."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "gpt-2":
        return words
    if split == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if not isinstance(split, str) or split not in _PATTERNS:
        raise ValueError(
            f"{_KEY}pre {split!r} is not supported; supported: gpt-2, smollm, "
            f"{', '.join(_PATTERNS)}"
        )
    cuts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in _PATTERNS[split]]
    return pre_tokenizers.Sequence([*cuts, byte_level])


def _pieces(metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """SentencePiece's BPE: of two neighbours those are joined whose piece has the highest score.

    The scores become an order of merges; what is no piece is spelled in bytes (Llama 2, Mistral).
    """
    scores = _list(metadata, "scores", (int, float), len(tokens))
    kinds = kinds or [_NORMAL] * len(tokens)
    normal = {t: s for t, s, k in zip(tokens, scores, kinds, strict=True) if k == _NORMAL}
    place = {token: number for number, token in enumerate(tokens)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in normal
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    merges.sort(key=lambda pair: (-normal[pair[0] + pair[1]], place[pair[0]], place[pair[1]]))
    unknown = _special(metadata, "unknown", tokens)
    if unknown is None:
        unknown = next((t for t, k in zip(tokens, kinds, strict=True) if k == _UNKNOWN), None)
    model = tokenizer_models.BPE(
        vocab=place, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    is_prefixed = metadata.get(f"{_KEY}add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    prefix = [normalizers.Prepend("▁")] if is_prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    strip = [decoders.Strip(content=" ", left=1, right=0)] if is_prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _surround(
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
    tokens: Sequence[str],
    special: Mapping[str, str | None],
    *,
    is_begun: bool,
) -> None:
    """Add the beginning and the end to what is encoded, where the file says so."""
    bos, eos = special["bos"], special["eos"]
    begin = [bos] if metadata.get(f"{_KEY}add_bos_token", is_begun) and bos else []
    end = [eos] if metadata.get(f"{_KEY}add_eos_token", False) and eos else []
    if begin or end:
        tokenizer.post_processor = TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *end, *begin, "$B", *end],
            special_tokens=[(token, tokens.index(token)) for token in {*begin, *end}],
        )
