"""How far a reply has come: a small automaton over tokens, as tables for the device."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxagent.models.llm.words import Tokenizer, WordTokenizer
from jaxagent.text import KEEP, SWITCH, TextFormat


class ReplyGrammar(NamedTuple):
    """A reply is over when `end` is reached. Nonsense moves on as well: it ends, and is refused.

    Attributes:
        following: [S, V] the state after a token.
        permitted: [S, V] tokens that a well-formed reply may go on with.
        is_command: [S] whether the next token belongs to the command.
        start: where a reply begins.
        end: where it is over.
        subgoal_tokens: a reply has so many before its command, at most.
        command_tokens: so many tokens are enough for every command of the benchmark's games.
    """

    following: np.ndarray
    permitted: np.ndarray
    is_command: np.ndarray
    start: int
    end: int
    subgoal_tokens: int
    command_tokens: int

    @property
    def max_tokens(self) -> int:
        """A reply is cut off after so many."""
        return self.subgoal_tokens + self.command_tokens


def reply_grammar(style: TextFormat, tokenizer: Tokenizer) -> ReplyGrammar:
    """The grammar of a format's replies in the tokens of a tokeniser.

    Args:
        style: the format.
        tokenizer: a `WordTokenizer` for formats of words, any for formats of lines.

    Raises:
        ValueError: a word that the format needs has no token of its own.
    """
    if style.command_arity is not None:
        if not isinstance(tokenizer, WordTokenizer):
            raise ValueError(f"format {style.name} needs a tokeniser of words and things")
        return _word_grammar(
            style.hierarchical, style.command_arity, style.subgoal_arity or {}, tokenizer
        )
    return _line_grammar(style.hierarchical, tokenizer)


# States of the formats of words, in the order in which a reply goes through them.
_ASK, _AIM, _AIM_ONE, _AIM_TWO, _VERB, _ONE, _TWO, _END = range(8)


def _word_grammar(
    hierarchical: bool,
    command_arity: Mapping[str, int],
    subgoal_arity: Mapping[str, int],
    tokenizer: WordTokenizer,
) -> ReplyGrammar:
    size = tokenizer.vocab_size
    following = np.zeros((8, size), np.int32)
    permitted = np.zeros((8, size), bool)
    after = {_ASK: _VERB, _AIM: _VERB, _AIM_ONE: _VERB, _AIM_TWO: _AIM_ONE,
             _VERB: _END, _ONE: _END, _TWO: _ONE, _END: _END}  # fmt: skip
    for state, target in after.items():
        following[state] = target
    keep, switch = tokenizer.ids_of([KEEP, SWITCH])
    following[_ASK, switch] = _AIM
    permitted[_ASK, [keep, switch]] = True
    for state, arities in ((_AIM, subgoal_arity), (_VERB, command_arity)):
        more = {_AIM: (_VERB, _AIM_ONE, _AIM_TWO), _VERB: (_END, _ONE, _TWO)}[state]
        for token, arity in zip(tokenizer.ids_of(arities), arities.values()):
            following[state, token] = more[arity]
            permitted[state, token] = True
    for state in (_AIM_ONE, _AIM_TWO, _ONE, _TWO):
        permitted[state, tokenizer.things()] = True
    is_command = np.isin(np.arange(8), (_VERB, _ONE, _TWO))
    start = _ASK if hierarchical else _VERB
    return ReplyGrammar(following, permitted, is_command, start, _END, 4 if hierarchical else 0, 3)


def _line_grammar(hierarchical: bool, tokenizer: Tokenizer) -> ReplyGrammar:
    size = tokenizer.vocab_size
    breaks = np.array(["\n" in tokenizer.decode([token]) for token in range(size)])
    if not breaks.any():
        raise ValueError("the tokeniser has no token for the end of a line")
    following = np.repeat(np.arange(3)[:, None], size, axis=1)
    following[:2, breaks] += 1
    # Where a language model ends its turn, its reply is over as well.
    following[:, list(getattr(tokenizer, "end_tokens", ()))] = 2
    permitted = np.ones((3, size), bool)
    is_command = np.array([False, True, False])
    start, subgoal_tokens = (0, 24) if hierarchical else (1, 0)
    return ReplyGrammar(following, permitted, is_command, start, 2, subgoal_tokens, 24)
