"""Constraints from given strings: a set of them, or a grammar of phrases.

Which tokenisation? The one that the tokeniser gives for the whole string, and no other. A string
then has exactly one way through the automaton, so the product of the renormalised probabilities
along it is the probability of the string, these probabilities sum to one over the set, and what
is said is tokenised as in training data. (`constrain_json`, whose language holds free text,
permits every tokenisation.)
"""

import itertools
from collections.abc import Sequence
from typing import Any

from jaxagent.models.llm.constrain import Automaton, determinise
from jaxagent.models.llm.tokenizer import text_before

Rule = Sequence[Sequence[str]]
"""Slots of a sentence, each a list of alternative phrases; a space joins them."""


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text as it stands: no special tokens around it.

    Raises:
        ValueError: the text holds half of a surrogate pair, which no tokeniser reads.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"text ({text!r}) holds half of a surrogate pair") from None
    return list(tokenizer.encode(text, add_special_tokens=False))


def encode_following(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text that follows another one: no space is put before it.

    Raises:
        ValueError: see `encode`.
    """
    before = text_before(tokenizer)
    return encode(tokenizer, before + text)[len(encode(tokenizer, before)) :]


def string_set(tokenizer: Any, strings: Sequence[str], *, end_token: int) -> Automaton:
    """The automaton (a trie) that permits exactly some strings, such as admissible commands.

    Args:
        tokenizer: of the model.
        strings: verbatim: one that is to follow the prompt after a space begins with it.
            Repetitions count once.
        end_token: follows a string that is also the beginning of another.

    Raises:
        ValueError: there are no strings, or one of them is empty, holds a special token (no text:
            decoding passes over it), or half of a surrogate pair.
    """
    if not len(strings):
        raise ValueError("strings must hold at least one string, found none")
    edges: list[dict[int, list[int]]] = [{}]
    finals, special = [], special_tokens(tokenizer)
    for number, text in enumerate(strings):
        if not text:
            raise ValueError(f"strings[{number}] must not be empty")
        state = 0
        for token in encode_following(tokenizer, text):
            _refuse_special(token, special, f"strings[{number}] ({text!r})")
            if token not in edges[state]:
                edges[state][token] = [len(edges)]
                edges.append({})
            state = edges[state][token][0]
        finals.append(state)
    return determinise(edges, [0], finals, end_token=end_token)


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Tokens that stand for no text, by id: decoding passes over them."""
    added = tokenizer.added_tokens_decoder
    return {token: item.content for token, item in added.items() if item.special}


def _refuse_special(token: int, special: dict[int, str], place: str) -> None:
    if token in special:
        raise ValueError(f"{place} must not hold a special token, found {special[token]!r}")


def verb_object_grammar(tokenizer: Any, rules: Sequence[Rule], *, end_token: int) -> Automaton:
    """The automaton that permits sentences such as "take apple 1 from desk 2".

    `[[["go to"], places], [["take"], things, ["from"], places]]` holds |places| +
    |things|·|places| sentences, in |places|·2 + |things| phrases.

    Args:
        tokenizer: of the model.
        rules: each a list of slots, each slot a list of phrases; verbatim, joined by a space.
        end_token: follows a sentence that is also the beginning of another.

    Raises:
        ValueError: there are no rules, a rule has no slots, a slot no phrases, a phrase is empty
            or holds a special token, or this tokeniser joins phrases across the space, so that a
            sentence is not its phrases' tokens one after another (use `string_set` on the
            sentences then).
    """
    _check(rules)
    special = special_tokens(tokenizer)
    edges: list[dict[int, list[int]]] = []
    starts, finals = [], []
    for rule in rules:
        node = _new(edges)
        starts.append(node)
        for tokens_of_slot in _slots(tokenizer, rule):
            following = _new(edges)
            for tokens in tokens_of_slot:
                for token in tokens:
                    _refuse_special(token, special, "a phrase")
                _add_path(edges, node, following, tokens)
            node = following
        finals.append(node)
    return determinise(edges, starts, finals, end_token=end_token)


def _check(rules: Sequence[Rule]) -> None:
    if not len(rules):
        raise ValueError("rules must hold at least one rule, found none")
    for r, rule in enumerate(rules):
        if not len(rule):
            raise ValueError(f"rules[{r}] must have at least one slot, found none")
        for s, slot in enumerate(rule):
            if not len(slot):
                raise ValueError(f"rules[{r}][{s}] must hold at least one phrase, found none")
            if not all(slot):
                raise ValueError(f"rules[{r}][{s}] must not hold an empty phrase")


def _slots(tokenizer: Any, rule: Rule) -> list[list[list[int]]]:
    """Tokens of each phrase, in the place where it stands in a sentence."""
    slots = [[encode_following(tokenizer, phrase) for phrase in rule[0]]]
    for before, slot in itertools.pairwise(rule):
        head = before[0]
        skip = len(encode_following(tokenizer, head))
        slots.append([encode_following(tokenizer, f"{head} {phrase}")[skip:] for phrase in slot])
    # Every phrase stands in one of these sentences; all sentences would be too many.
    for number in range(max(map(len, rule))):
        sentence = " ".join(slot[number % len(slot)] for slot in rule)
        pieces = [tokens[number % len(tokens)] for tokens in slots]
        if list(itertools.chain(*pieces)) != encode_following(tokenizer, sentence):
            raise ValueError(
                f"the tokeniser does not split {sentence!r} between its phrases: "
                "use string_set on whole sentences"
            )
    return slots


def _new(edges: list[dict[int, list[int]]]) -> int:
    edges.append({})
    return len(edges) - 1


def _add_path(edges: list[dict[int, list[int]]], node: int, end: int, tokens: list[int]) -> None:
    for token in tokens[:-1]:
        following = _new(edges)
        edges[node].setdefault(token, []).append(following)
        node = following
    edges[node].setdefault(tokens[-1], []).append(end)
