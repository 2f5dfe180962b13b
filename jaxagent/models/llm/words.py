"""A tokeniser for worlds of named things: one token a word, and one for each thing.

"drawer 3" is one token whose embedding is the sum of one for "drawer" and one for "3", so that
what is learnt of one drawer holds for all, and of every third thing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

FORMAT = "jaxagent.words.1"
PAD, UNKNOWN = "<pad>", "<unknown>"
FALLBACK_KIND = "thing"
_FALLBACK_NUMBERS = 8
_PIECES = re.compile(r"in/on|[A-Za-z][A-Za-z'-]*|[0-9]+|\n|[^\sA-Za-z0-9]")
_NUMBER = re.compile("[0-9]+")  # "²" and "٣" are digits to str.isdigit, and no numbers of things
_DIGITS = 9  # more make a number beyond all vocabularies


def words_of(text: str) -> list[str]:
    """The words, numbers, signs and ends of lines of a text, in order."""
    return _PIECES.findall(text)


class Tokenizer(Protocol):
    """What formats need of a tokeniser: text to ids and back, nothing added of its own."""

    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        ...


class SubwordTokenizer:
    """A Hugging Face tokeniser behind the same protocol, without special tokens.

    Args (of the constructor):
        tokenizer: the one that came with a model.
        vocab_size: V of the model, which may be more than the tokeniser uses.
        end_tokens: of the model, with which a reply is over.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, end_tokens: Sequence[int] = ()) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.end_tokens = tuple(end_tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of a text.

        Raises:
            ValueError: one of them is not in the model's vocabulary.
        """
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if ids and max(ids) >= self.vocab_size:
            raise ValueError(f"token ({max(ids)}) must lie in [0, {self.vocab_size - 1}]")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; those that the tokeniser does not use give nothing."""
        known = [int(number) for number in ids if number < len(self.tokenizer)]
        while known and known[-1] in self.end_tokens:
            known.pop()
        return self.tokenizer.decode(known)


def _as_number(digits: str) -> int:
    """The number, or one that is too high as well: Python refuses to read thousands of digits."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else 10**_DIGITS


class Factors(NamedTuple):
    """Of each token, its rows in the two tables whose sum is its embedding; number 0 is none."""

    stem: np.ndarray
    number: np.ndarray


def with_embedding(params: Mapping[str, Any], factors: Factors | None) -> dict[str, Any]:
    """Parameters as `Llama` reads them: the [V, D] table computed from its two factors.

        embedding[v] = stem[factors.stem[v]] + number[factors.number[v]]

    Args:
        params: with `stem` and `number` in place of `embedding`.
        factors: of the tokeniser; None returns the parameters as they are.
    """
    if factors is None:
        return dict(params)
    rest = {name: value for name, value in params.items() if name not in ("stem", "number")}
    return {**rest, "embedding": params["stem"][factors.stem] + params["number"][factors.number]}


class WordTokenizer:
    """Text to ids and back, without regard to blanks.

    Args (of the constructor):
        words: each becomes a token.
        kinds: kinds of things with the highest number that one of them bears; each kind becomes a
            token, and so does each of its things. Without kinds, names are two words.

    Raises (the constructor):
        ValueError: a word is also a kind, or a kind has no things.

    Attributes:
        vocab_size: V.
        factors: what embeddings are made of.
        missing: what had no token, how often, and as what it was read.
    """

    def __init__(self, words: Sequence[str], kinds: Mapping[str, int] | None = None) -> None:
        self.words, self.kinds = tuple(dict.fromkeys(words)), dict(kinds or {})
        if clash := set(self.words) & set(self.kinds):
            raise ValueError(f"{sorted(clash)} cannot be both words and kinds of things")
        for kind, highest in self.kinds.items():
            if highest < 1:
                raise ValueError(f"kinds: the highest number of {kind!r} ({highest}) must be >= 1")
        stems = [PAD, UNKNOWN, *self.words, *self.kinds]
        numbers = [0] * len(stems)
        self._tokens = list(stems)
        self._fallback = bool(self.kinds)
        things = {**self.kinds, FALLBACK_KIND: _FALLBACK_NUMBERS} if self.kinds else {}
        if self._fallback and FALLBACK_KIND not in self.kinds:
            stems.append(FALLBACK_KIND)
            self._tokens.append(FALLBACK_KIND)
            numbers.append(0)
        rows = {stem: row for row, stem in enumerate(stems)}
        stem_rows = list(range(len(stems)))
        for kind, highest in things.items():
            self._tokens += [f"{kind} {number}" for number in range(1, highest + 1)]
            stem_rows += [rows[kind]] * highest
            numbers += range(1, highest + 1)
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self._highest = things
        self.vocab_size = len(self._tokens)
        self.factors = Factors(np.array(stem_rows, np.int32), np.array(numbers, np.int32))
        self.pad_token_id = 0
        self.missing: Counter[tuple[str, str]] = Counter()

    def encode(self, text: str) -> list[int]:
        """Ids of a text's words and things.

        What has no token is counted in `missing` and read as the nearest that has: a thing whose
        number is too high as the last of its kind, a thing of an unknown kind as "thing", a word
        as <unknown>.
        """
        pieces = words_of(text)
        ids, place = [], 0
        while place < len(pieces):
            word = pieces[place]
            is_thing = (
                self._fallback
                and place + 1 < len(pieces)
                and _NUMBER.fullmatch(pieces[place + 1])
                and word not in self.words
            )
            if is_thing:
                ids.append(self._thing(word, _as_number(pieces[place + 1])))
                place += 2
            else:
                ids.append(self._word(word))
                place += 1
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The tokens with blanks between them.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        for number in ids:
            if not 0 <= number < self.vocab_size:
                raise ValueError(f"token ({number}) must lie in [0, {self.vocab_size - 1}]")
        return " ".join(self._tokens[int(number)] for number in ids)

    def ids_of(self, tokens: Iterable[str]) -> list[int]:
        """Ids of exact tokens ("drawer 3", "take").

        Raises:
            ValueError: one of them is none; named.
        """
        tokens = list(tokens)
        if unknown := [token for token in tokens if token not in self._ids]:
            raise ValueError(f"the vocabulary has no token {unknown[0]!r}")
        return [self._ids[token] for token in tokens]

    def things(self) -> list[int]:
        """Ids of all kinds and things."""
        kinds = {row for row, token in enumerate(self._tokens) if token in self._highest}
        return [token for token, row in enumerate(self.factors.stem) if int(row) in kinds]

    def describe_missing(self) -> str:
        """One line that names what had no token and the fallback used; "" if nothing lacked."""
        shown = [f"{name!r} as {read!r}" for (name, read), _ in self.missing.most_common(5)]
        if not shown:
            return ""
        more = f" and {len(self.missing) - 5} more" if len(self.missing) > 5 else ""
        return f"the vocabulary lacks what it read {', '.join(shown)}{more}"

    def to_dict(self) -> dict[str, Any]:
        """All that `from_dict` needs, for JSON."""
        return {"format": FORMAT, "words": list(self.words), "kinds": self.kinds}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "WordTokenizer":
        """The tokeniser that `to_dict` described.

        Raises:
            ValueError: the description is of another format.
        """
        if data.get("format") != FORMAT:
            raise ValueError(f"tokeniser format {data.get('format')!r} is not {FORMAT!r}")
        return cls(data["words"], data["kinds"])

    def _word(self, word: str) -> int:
        found = self._ids.get(word)
        if found is None:
            found = self._ids.get(word.lower(), 1)
            if found == 1 and word != UNKNOWN:
                self.missing[word, UNKNOWN] += 1
        return found

    def _thing(self, kind: str, number: int) -> int:
        name = f"{kind} {number}"
        found = self._ids.get(name)
        if found is None:
            near = kind if kind in self._highest else FALLBACK_KIND
            read = f"{near} {max(1, min(number, self._highest[near]))}"
            self.missing[name, read] += 1
            found = self._ids[read]
        return found
