"""Tokenisers: a small one trained from text, those of folders, and how a chat is encoded."""

from collections.abc import Iterable
from pathlib import Path

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
