"""Tokenisers: a small one trained from text, and the one that a GGUF file carries."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as tokenizer_models
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from jaxagent.models.llm.tensor_files import read_json_object

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_CONTROL, _USER_DEFINED = 3, 4  # kinds of token in GGUF


def train_tokenizer(texts: Iterable[str], vocab_size: int = 2048) -> PreTrainedTokenizerFast:
    """A byte-level BPE with a chat template, learnt from the texts (Sennrich et al. 2016).

    Every string can be encoded, whatever the texts were: all 256 bytes are tokens.

    Args:
        texts: what the model will read and write; a few hundred kilobytes are plenty.
        vocab_size: an upper bound, special tokens included; short texts yield fewer.

    Raises:
        ValueError: vocab_size leaves no room for the bytes and the special tokens.
    """
    special = [PAD, START, END]
    if vocab_size < 256 + len(special):
        raise ValueError(f"vocab_size must be at least {256 + len(special)}, found {vocab_size}")
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer, bos=START, eos=END, pad=PAD, chat_template=CHAT_TEMPLATE)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokeniser of a Hugging Face folder.

    Where the folder names no class of its own, `tokenizer.json` is the whole truth: AutoTokenizer
    would cut words as the architecture's first models did (Qwen2's, for one), whatever it says.

    Raises:
        ValueError: the folder has no tokeniser that transformers can read.
    """
    described = folder / "tokenizer_config.json"
    name = read_json_object(described).get("tokenizer_class") if described.is_file() else None
    plain = name in ("TokenizersBackend", "PreTrainedTokenizerFast")
    try:
        if plain:
            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        # Imported only here: it imports PyTorch where that is installed, 5 s and 200 MB.
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{folder} has no tokeniser that can be read: {first}") from None


def tokenizer_from_gguf(metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The byte-level BPE that a GGUF file's metadata describes, with its chat template.

    Raises:
        ValueError: another kind of tokeniser, or a way to split words that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(
            f"tokenizer.ggml.model {kind!r} is not supported; supported: gpt2 (byte-level BPE)"
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    split = metadata.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    ignore_merges = split == "llama-bpe"
    try:
        model = tokenizer_models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)
    except Exception as error:  # the only class that the package raises
        raise ValueError(f"the metadata's tokeniser is broken: {error}") from None
    tokenizer = Tokenizer(model)
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _word_splitter(split)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )

    def named(role: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{role}_token_id")
        return None if index is None else tokens[index]

    bos, eos = named("bos"), named("eos")
    if metadata.get("tokenizer.ggml.add_bos_token") and bos is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", bos, "$B"],
            special_tokens=[(bos, tokens.index(bos))],
        )
    template = metadata.get("tokenizer.chat_template")
    return _wrap(tokenizer, bos=bos, eos=eos, pad=named("padding") or eos, chat_template=template)


def _word_splitter(split: str) -> Any:
    """How text is cut into words before merging; the names are those of llama.cpp."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if split in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return pre_tokenizers.Sequence([digits, words])
    patterns = {"llama-bpe": _LLAMA3_WORDS, "qwen2": _QWEN2_WORDS}
    if split not in patterns:
        raise ValueError(
            f"tokenizer.ggml.pre {split!r} is not supported; supported: default, gpt-2, smollm, "
            f"{', '.join(patterns)}"
        )
    words = pre_tokenizers.Split(Regex(patterns[split]), behavior="isolated")
    return pre_tokenizers.Sequence([words, byte_level])


def _wrap(
    tokenizer: Tokenizer,
    *,
    bos: str | None,
    eos: str | None,
    pad: str | None,
    chat_template: str | None,
) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
    )
    if chat_template is not None:
        wrapped.chat_template = chat_template
    return wrapped
