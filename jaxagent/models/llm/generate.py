"""Generation with a language model: batches, sessions that are never re-read, scores.

generator = Generator(load_model("smollm2-135m"))
generator.generate(["Once upon a time"], SamplingConfig(max_new_tokens=20))
session = generator.session()           # of an agent: its history stays in the cache
session.generate([history], config, generator.string_set(admissible_commands))
generator.score(prompt, candidates)     # all candidates at once
"""

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jaxagent.models.llm.batching import Batcher
from jaxagent.models.llm.constrain import Automaton, Packer, bucket
from jaxagent.models.llm.constrain_json import json_schema
from jaxagent.models.llm.constrain_text import (
    Rule,
    encode,
    encode_following,
    string_set,
    verb_object_grammar,
)
from jaxagent.models.llm.constrain_tokens import TokenBytes, token_bytes
from jaxagent.models.llm.generate_reply import Completion, Prompt, Request
from jaxagent.models.llm.generate_rows import RowBatch
from jaxagent.models.llm.generate_steps import CAPACITY
from jaxagent.models.llm.generate_weights import Weights, lay_out
from jaxagent.models.llm.load import LanguageModel
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.models.llm.scoring import CandidateScores, candidate_tree

GREEDY = SamplingConfig()

# With stop strings the host looks at the text this often, in tokens.
_STOP_INTERVAL = 8


class Generator:
    """A language model that says things.

    Args:
        model: configuration, parameters and tokeniser. New parameters may be put in with
            `update`; nothing is compiled again.
        lora: low-rank terms beside the parameters.
    """

    def __init__(self, model: LanguageModel, *, lora: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self._packer = Packer(model.config.vocab_size)
        self.update(model.params, lora=lora)

    @property
    def end_token(self) -> int:
        """The end token that constraints and scores use: the tokeniser's, or the model's first.

        Raises:
            ValueError: there is none.
        """
        return self.end_tokens[0]

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a reply: the tokeniser's, and those that the model's files name.

        Raises:
            ValueError: there are none.
        """
        own = cast(int | None, self.model.tokenizer.eos_token_id)
        known = (() if own is None else (int(own),)) + tuple(self.model.end_tokens)
        if not known:
            raise ValueError(f"the tokeniser of {self.model.name} has no end token (eos_token)")
        return tuple(dict.fromkeys(known))

    def update(self, params: Mapping[str, Any], *, lora: Mapping[str, Any] | None = None) -> None:
        """Say things with other parameters from now on.

        Sessions and batchers keep those that they began with, and so does what they have read.

        Args:
            params: of the same shapes.
            lora: low-rank terms; None removes them.
        """
        variables = {"params": params} | ({} if lora is None else {"lora": lora})
        self.weights: Weights = lay_out(variables)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt.

        Raises:
            ValueError: an id is not in the model's vocabulary, or the text is none.
        """
        if isinstance(prompt, str):
            prompt = encode(self.model.tokenizer, prompt)
        size, tokens = self.model.config.vocab_size, [int(token) for token in prompt]
        for token in tokens:
            if not 0 <= token < size:
                raise ValueError(f"token ({token}) must lie in [0, {size - 1}], the vocabulary")
        return tokens

    def warn_of_blank(self, prompt: Prompt) -> None:
        """Say so where a prompt ends within what the tokeniser would make one token.

        What follows is then read as the model never saw it, however it is written; and the last
        token of the prompt changes as soon as it has gone on.
        """
        if isinstance(prompt, str) and prompt.endswith(" ") and self._joins_blanks:
            warnings.warn(
                "the prompt ends with a blank, which this tokeniser joins to the word after it: "
                "end the prompt before the blank, and let what follows begin with it",
                stacklevel=4,
            )

    @functools.cached_property
    def _joins_blanks(self) -> bool:
        tokenizer = self.model.tokenizer
        return encode(tokenizer, "> go") != encode(tokenizer, "> ") + encode(tokenizer, "go")

    def string_set(self, strings: Sequence[str]) -> Automaton:
        """A constraint: one of these strings; see `constrain_text.string_set`."""
        return string_set(self.model.tokenizer, strings, end_token=self.end_token)

    def verb_object_grammar(self, rules: Sequence[Rule]) -> Automaton:
        """A constraint: phrases in slots; see `constrain_text.verb_object_grammar`."""
        return verb_object_grammar(self.model.tokenizer, rules, end_token=self.end_token)

    def json_schema(self, schema: Mapping[str, Any]) -> Automaton:
        """A constraint: JSON of a schema; see `constrain_json.json_schema`."""
        tokenizer, spelled = self.model.tokenizer, self.token_bytes
        return json_schema(tokenizer, schema, end_token=self.end_token, spelled=spelled)

    @functools.cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of every token, which schemas need; read once.

        Raises:
            ValueError: the tokeniser is of an unknown kind.
        """
        # Ids beyond the model's vocabulary cannot be said.
        return TokenBytes(token_bytes(self.model.tokenizer)[: self.model.config.vocab_size])

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | Sequence[SamplingConfig] = GREEDY,
        constraint: Automaton | Sequence[Automaton | None] | None = None,
    ) -> list[Completion]:
        """Replies to a batch of prompts of any lengths.

        Args:
            prompts: equal ones are read once.
            sampling: of each prompt, or of all, whose rows then draw apart. Row 0 says what it says
                alone.
            constraint: of each prompt, or of all.

        Raises:
            ValueError: no prompts, or one of them cannot be answered (the lengths are named).
        """
        return self.session(len(prompts)).generate(prompts, sampling, constraint)

    def score(self, prompt: Prompt, candidates: Sequence[Prompt]) -> CandidateScores:
        """Log-probabilities of many candidates of one prompt, in one reading of each.

        Args:
            prompt: what they follow.
            candidates: in their own tokens, as `string_set` takes them.

        Raises:
            ValueError: there are no candidates, one is empty, or the context is too short (the
                lengths are named).
        """
        return self.session().score(prompt, candidates)

    def session(self, batch: int = 1) -> "Session":
        """Agents whose histories stay in the cache, one a row."""
        return Session(self, batch)

    def batcher(self, rows: int = 8) -> Batcher:
        """Requests that come and go, answered together; see `Batcher`."""
        return Batcher(self.rows(rows), self.request)

    def rows(self, batch: int) -> RowBatch:
        """What sessions and batchers stand on: rows of a batch, all idle."""
        return RowBatch(self.model, self.weights, batch, self._packer)

    def request(
        self, prompt: Prompt, sampling: SamplingConfig, constraint: Automaton | None = None
    ) -> Request:
        """A prompt with its settings, checked.

        Raises:
            ValueError: it cannot be answered (the lengths are named).
        """
        stops = sampling.stop_tokens
        if constraint is not None:
            stops = ()
        elif stops is None:
            stops = self.end_tokens
        self.warn_of_blank(prompt)
        size = self.model.config.vocab_size
        if constraint is not None and constraint.tokens.size and constraint.tokens.max() >= size:
            raise ValueError(
                f"constraint: token ({constraint.tokens.max()}) must lie in [0, {size - 1}], the "
                "vocabulary"
            )
        request = Request(self.encode(prompt), sampling, constraint, tuple(stops))
        request.check(self.model.config.max_positions)
        return request


class Session:
    """Rows whose prompts grow: what a row has read or said itself is not read again.

    A prompt goes on where its row's cache agrees with it, token by token; where it does not, the
    row goes back to the common beginning.

    Args:
        generator: whose parameters of now are used to the end.
        batch: number of rows.
    """

    def __init__(self, generator: Generator, batch: int = 1) -> None:
        if batch < 1:
            raise ValueError(f"a session needs at least one row, found {batch}")
        self._generator, self._batch = generator, batch
        self._rows = generator.rows(bucket(batch, smallest=1))
        self._turn = 0  # replies so far

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | Sequence[SamplingConfig] = GREEDY,
        constraint: Automaton | Sequence[Automaton | None] | None = None,
    ) -> list[Completion]:
        """The next reply of every row; see `Generator.generate`.

        Args:
            prompts: the whole history of each row.
            sampling: of each row, or of all, whose rows then draw apart. Turns draw apart in either
                case; the first is that of `Generator.generate`.
            constraint: of each row, or of all.

        Raises:
            ValueError: the prompts are not one for each row, or one cannot be answered.
        """
        if len(prompts) != self._batch:
            raise ValueError(f"prompts ({len(prompts)}) must be one for each row ({self._batch})")
        is_shared = isinstance(sampling, SamplingConfig)
        if isinstance(sampling, SamplingConfig):
            sampling = [sampling] * self._batch
        if constraint is None or isinstance(constraint, Automaton):
            constraint = [constraint] * self._batch
        asked = zip(prompts, sampling, constraint, strict=True)
        requests = {
            row: self._generator.request(*each)._replace(row=row * is_shared, turn=self._turn)
            for row, each in enumerate(asked)
        }
        self._rows.start(requests)
        self._turn += 1
        has_stops = any(r.sampling.stop_strings for r in requests.values())
        while self._rows.running:
            self._rows.step(_STOP_INTERVAL if has_stops else CAPACITY)
        return [reply.completion() for reply in self._rows.replies[: self._batch] if reply]

    def score(self, prompt: Prompt, candidates: Sequence[Prompt]) -> CandidateScores:
        """Log-probabilities of candidates; the prompt is read as far as it is new.

        Args:
            prompt: the whole history.
            candidates: see `Generator.score`.

        Raises:
            ValueError: see `Generator.score`; or the session has more than one row.
        """
        if self._batch != 1:
            raise ValueError(f"score needs a session of one row, found {self._batch}")
        generator = self._generator
        generator.warn_of_blank(prompt)
        tokenizer = generator.model.tokenizer
        tree = candidate_tree(
            [
                encode_following(tokenizer, c) if isinstance(c, str) else generator.encode(c)
                for c in candidates
            ]
        )
        return self._rows.score(generator.encode(prompt), tree, generator.end_token)
