"""Tokenisers: a small one trained from text, those of folders, and how a chat is encoded."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
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
    return wrapped(tokenizer, bos=START, eos=END, pad=PAD, chat_template=CHAT_TEMPLATE)


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
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise ValueError(
            f"{folder} has no tokeniser that can be read: {first_line(error)}"
        ) from None


def wrapped(
    tokenizer: Tokenizer,
    *,
    bos: str | None,
    eos: str | None,
    pad: str | None,
    chat_template: str | None,
    unk: str | None = None,
) -> PreTrainedTokenizerFast:
    """A tokeniser of the native library as transformers has it, its special tokens named."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token=unk,
        clean_up_tokenization_spaces=False,
    )
    if chat_template is not None:
        made.chat_template = chat_template
    return made


def is_of_library(error: BaseException) -> bool:
    """Whether an error is one that a native library reports a broken file by.

    `tokenizers` raises bare Exceptions, and panics, which are not even that.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """What an error says in its first line; its class where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    render: Callable[[list[dict[str, Any]]], str] | None = None,
) -> list[int]:
    """A conversation as the model was trained to read it, up to where its own turn begins.

    Control tokens come from the chat template alone: one that is spelled out in a message, such as
    `<|im_end|>`, is encoded as the plain text that it is there.

    Args:
        tokenizer: of the model; with a chat template.
        messages: role, content and what else the template reads.
        render: puts the messages into the chat template; None does no more than that.

    Returns:
        Token ids of the prompt.

    Raises:
        Exception: whatever the template raises for messages that it does not know.
    """
    added = {token: item.content for token, item in tokenizer.added_tokens_decoder.items()}
    special = _spelling(i.content for i in tokenizer.added_tokens_decoder.values() if i.special)
    every = _spelling(added.values())
    aliases = _Aliases(repr(messages))
    hidden = [
        # Reasoning and calls of tools, which a model's own turns may hold, are not special.
        aliases.hide(message, special if message.get("role") == "assistant" else every)
        for message in messages
    ]
    if render is None:
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}
        text = str(tokenizer.apply_chat_template(hidden, **options))
    else:
        text = render(hidden)
    if not aliases.of_character:
        return list(tokenizer.encode(text, add_special_tokens=False))
    ids: list[int] = []
    done = 0
    for found in [*every.finditer(text), None]:
        plain = text[done : found.start() if found else len(text)]
        ids += _encode_plain(tokenizer, plain, aliases, added.keys())
        if found:
            ids += tokenizer.encode(found[0], add_special_tokens=False)
            done = found.end()
    return ids


def _spelling(tokens: Iterable[str]) -> re.Pattern:
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


class _Aliases:
    """Characters of private use that stand for others while the template is at work.

    Args:
        text: in which none of them may occur.
    """

    def __init__(self, text: str) -> None:
        self._free = (chr(c) for c in range(0xF0000, 0xFFFFD) if chr(c) not in text)
        self.of_character: dict[str, str] = {}

    def hide(self, value: Any, tokens: re.Pattern) -> Any:
        """A message in which no text spells a token: its first character has an alias."""
        if isinstance(value, str):
            # Again, where what is left over spells another one.
            while tokens.search(value):
                value = tokens.sub(lambda found: self._alias(found[0][0]) + found[0][1:], value)
            return value
        if isinstance(value, Mapping):
            return {key: self.hide(each, tokens) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each, tokens) for each in value]
        return value

    def _alias(self, character: str) -> str:
        if character not in self.of_character:
            self.of_character[character] = next(self._free)
        return self.of_character[character]

    def show(self, text: str) -> str:
        """The text as it was."""
        return text.translate({ord(alias): c for c, alias in self.of_character.items()})


def _encode_plain(
    tokenizer: PreTrainedTokenizerBase, text: str, aliases: _Aliases, added: Collection[int]
) -> list[int]:
    """A text without control tokens, whatever it spells."""
    shown = aliases.show(text)
    ids = tokenizer.encode(shown, add_special_tokens=False, split_special_tokens=True)
    if not any(token in added for token in ids):
        return list(ids)
    # Tokens that were added without being special are found nevertheless: cut them apart.
    cuts = re.split(f"(?<=[{''.join(aliases.of_character.values())}])", text)
    return [
        token
        for part in map(aliases.show, cuts)
        for token in tokenizer.encode(part, add_special_tokens=False, split_special_tokens=True)
    ]


def text_before(tokenizer: Any) -> str:
    """What must stand before a text so that its first space is kept; "" for most.

    SentencePiece puts a space before a text and takes one away when it decodes: right for whole
    texts, not for what goes on from others. Behind a line end neither happens.
    """
    letter = tokenizer.encode("a", add_special_tokens=False)
    return "" if tokenizer.decode([*letter, *letter]) == "aa" else "\n"
