"""The two sides of `benchmarks.generation`, each in a process of its own.

    python -m benchmarks.generation_sides {ours,transformers} FOLDER THREADS

reads one task a line from standard input, as JSON, and answers each with one line of JSON:
seconds, the tokens that were said, and the process's peak memory so far.
"""

import dataclasses
import inspect
import json
import os
import pathlib
import re
import resource
import sys
import time
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much each task does."""

    prompt: int = 512
    """Tokens that are read in the task `prefill`."""
    context: int = 128
    """Tokens that stand before what is said in the decoding tasks."""
    new_tokens: int = 64
    train_batch: int = 4
    train_length: int = 128
    turns: int = 30
    first_observation: int = 150
    observation: int = 24
    reply: int = 6
    candidates: int = 200
    candidate_prompt: int = 300


TINY = Sizes(
    prompt=64,
    context=16,
    new_tokens=12,
    train_batch=2,
    train_length=32,
    turns=4,
    first_observation=20,
    observation=8,
    reply=4,
    candidates=12,
    candidate_prompt=30,
)


def random_tokens(count: int, vocab_size: int, seed: int) -> list[int]:
    """Ids that are no special tokens."""
    return np.random.default_rng(seed).integers(300, vocab_size, size=count).tolist()


def candidate_tokens(sizes: Sizes, vocab_size: int) -> list[list[int]]:
    """Commands of one to nine tokens that share beginnings, as admissible commands do."""
    rng = np.random.default_rng(7)
    verbs = [random_tokens(int(n), vocab_size, 100 + v) for v, n in enumerate((1, 2, 2, 3, 1, 2))]
    things = [random_tokens(int(rng.integers(1, 4)), vocab_size, 200 + t) for t in range(60)]
    made: dict[tuple[int, ...], None] = {}
    while len(made) < sizes.candidates:
        words = [verbs[rng.integers(len(verbs))], things[rng.integers(len(things))]]
        if rng.random() < 0.5:
            words.append(things[rng.integers(len(things))])
        made[tuple(token for word in words for token in word)] = None
    return [list(candidate) for candidate in made]


class Ours:
    """This project's model and generator."""

    def __init__(self, folder: str, threads: int) -> None:
        import jax

        from jaxagent.models.llm.generate import Generator
        from jaxagent.models.llm.load import load_model

        self._jax = jax
        self._generator = Generator(load_model(folder))
        self._model_config = self._generator.model.config
        self._vocab_size = self._model_config.vocab_size
        self._train = None

    def _config(self, new_tokens: int) -> Any:
        from jaxagent.models.llm.sampling import SamplingConfig

        return SamplingConfig(max_new_tokens=new_tokens, stop_tokens=())

    def prefill(self, sizes: Sizes) -> tuple[float, list[int]]:
        """Read a prompt and say one token."""
        prompt = random_tokens(sizes.prompt, self._vocab_size, 0)
        session = self._generator.session()
        begin = time.perf_counter()
        (reply,) = session.generate([prompt], self._config(1))
        return time.perf_counter() - begin, reply.tokens.tolist()

    def decode(
        self, sizes: Sizes, batch: int, constraint: str | None = None
    ) -> tuple[float, list[int]]:
        """Seconds of all tokens but the first, which reading the prompt ends with."""
        automaton = self._constraint(constraint, sizes) if constraint else None
        rows = self._generator.rows(batch)
        config = self._config(sizes.new_tokens)
        if automaton:
            config = dataclasses.replace(config, stop_tokens=None)
        prompts = [random_tokens(sizes.context, self._vocab_size, b) for b in range(batch)]
        rows.start(
            {b: self._generator.request(p, config, automaton) for b, p in enumerate(prompts)}
        )
        begin = time.perf_counter()
        rows.step(sizes.new_tokens - 1)
        seconds = time.perf_counter() - begin
        tokens = [token for reply in rows.replies if reply for token in reply.tokens]
        return seconds * batch * (sizes.new_tokens - 1) / (len(tokens) - batch), tokens

    def _constraint(self, kind: str, sizes: Sizes) -> Any:
        """Long enough that as many tokens are said as without it."""
        from jaxagent.models.llm.constrain import determinise

        end = self._generator.end_token
        if kind == "json":
            items = {"type": "string"}
            return self._generator.json_schema(
                {"type": "array", "items": items, "minItems": sizes.new_tokens // 4}
            )
        edges: list[dict[int, list[int]]] = [{} for _ in range(sizes.new_tokens + 1)]
        for place in range(sizes.new_tokens):
            for token in random_tokens(30, self._vocab_size, place):
                edges[place][token] = [place + 1]
        return determinise(edges, [0], [sizes.new_tokens], end_token=end)

    def train(self, sizes: Sizes) -> tuple[float, list[int]]:
        """One step of AdamW on the cross-entropy of every token; ends generation, since the
        parameters change in place, as the peer's do."""
        import jax
        import optax

        from jaxagent.models.llm.scoring import token_log_probs

        config = self._model_config
        if self._train is None:
            optimiser = optax.adamw(1e-5, weight_decay=0.01)

            def loss(params: Any, tokens: Any) -> Any:
                logs = token_log_probs(config, {"params": params}, tokens)
                return -logs[:, 1:].mean()

            def step(params: Any, state: Any, tokens: Any) -> Any:
                value, gradient = jax.value_and_grad(loss)(params, tokens)
                updates, state = optimiser.update(gradient, state, params)
                return optax.apply_updates(params, updates), state, value

            params = self._generator.model.params
            del self._generator
            self._train = (jax.jit(step, donate_argnums=(0, 1)), [params, optimiser.init(params)])
        step, state = self._train
        tokens = np.array(
            [
                random_tokens(sizes.train_length, self._vocab_size, b)
                for b in range(sizes.train_batch)
            ]
        )
        begin = time.perf_counter()
        *state[:], value = step(*state, tokens)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - begin
        return seconds, [round(1000 * float(value))]

    def episode(self, sizes: Sizes, keep_cache: bool) -> tuple[float, list[int]]:
        """An agent's turns; its history stays in the cache unless told otherwise."""
        history = random_tokens(sizes.first_observation, self._vocab_size, 0)
        session, said = self._generator.session(), []
        begin = time.perf_counter()
        for turn in range(sizes.turns):
            if not keep_cache:
                session = self._generator.session()
            (reply,) = session.generate([history], self._config(sizes.reply))
            said += reply.tokens.tolist()
            observation = random_tokens(sizes.observation, self._vocab_size, 1 + turn)
            history = history + reply.tokens.tolist() + observation
        return time.perf_counter() - begin, said

    def score(self, sizes: Sizes) -> tuple[float, list[int]]:
        """Candidates of one prompt."""
        prompt = random_tokens(sizes.candidate_prompt, self._vocab_size, 0)
        candidates = candidate_tokens(sizes, self._vocab_size)
        begin = time.perf_counter()
        scores = self._generator.score(prompt, candidates)
        return time.perf_counter() - begin, [int(np.argmax(scores.log_prob))]


class Transformers:
    """PyTorch, through Hugging Face transformers: loops over its forward call, without the
    bookkeeping of its `generate`, which would only cost it time."""

    def __init__(self, folder: str, threads: int) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        import transformers

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.eval()
        # For the memory: who plans reads and writes text, and ours has its own.
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._vocab_size = self._model.config.vocab_size
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._optimiser: Any = None

    def _read(self, tokens: list[list[int]], cache: Any = None) -> tuple[list[int], Any]:
        """The likeliest next token of each row, and the cache."""
        with self._torch.inference_mode():
            out = self._model(
                input_ids=self._torch.tensor(tokens),
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_name: cache},
            )
            return out.logits[:, -1].argmax(-1).tolist(), out[self._cache_name]

    def prefill(self, sizes: Sizes) -> tuple[float, list[int]]:
        """Read a prompt and say one token."""
        prompt = random_tokens(sizes.prompt, self._vocab_size, 0)
        begin = time.perf_counter()
        tokens, _ = self._read([prompt])
        return time.perf_counter() - begin, tokens

    def decode(
        self, sizes: Sizes, batch: int, constraint: str | None = None
    ) -> tuple[float, list[int]]:
        """Seconds of all tokens but the first, which reading the prompt ends with."""
        prompts = [random_tokens(sizes.context, self._vocab_size, b) for b in range(batch)]
        tokens, cache = self._read(prompts)
        said = [[token] for token in tokens]
        begin = time.perf_counter()
        for _ in range(sizes.new_tokens - 1):
            tokens, cache = self._read([[token] for token in tokens], cache)
            for row, token in zip(said, tokens, strict=True):
                row.append(token)
        return time.perf_counter() - begin, [token for row in said for token in row]

    def train(self, sizes: Sizes) -> tuple[float, list[int]]:
        """One step of AdamW on the cross-entropy of every token."""
        torch = self._torch
        if self._optimiser is None:
            self._model.train()
            self._optimiser = torch.optim.AdamW(
                self._model.parameters(), lr=1e-5, weight_decay=0.01
            )
        tokens = torch.tensor(
            [
                random_tokens(sizes.train_length, self._vocab_size, b)
                for b in range(sizes.train_batch)
            ]
        )
        begin = time.perf_counter()
        self._optimiser.zero_grad()
        loss = self._model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self._optimiser.step()
        return time.perf_counter() - begin, [round(1000 * loss.item())]

    def episode(self, sizes: Sizes, keep_cache: bool) -> tuple[float, list[int]]:
        """An agent's turns; each reads the whole history, or what is new of it."""
        history = random_tokens(sizes.first_observation, self._vocab_size, 0)
        said: list[int] = []
        cache, read = None, 0
        begin = time.perf_counter()
        for turn in range(sizes.turns):
            if not keep_cache:
                cache, read = None, 0
            (token,), cache = self._read([history[read:]], cache)
            reply = [token]
            for _ in range(sizes.reply - 1):
                (token,), cache = self._read([[token]], cache)
                reply.append(token)
            said += reply
            read = len(history) + len(reply) - 1
            observation = random_tokens(sizes.observation, self._vocab_size, 1 + turn)
            history = history + reply + observation
        return time.perf_counter() - begin, said


SIDES = {"ours": Ours, "transformers": Transformers}


def peak_memory() -> int:
    """Bytes of this process that were ever resident at once."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts what the parent had when it forked into ru_maxrss, and that holds a model too.
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(peak) * 1024


def main() -> int:
    """Answer tasks until standard input ends."""
    side, folder, threads = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):  # not on macOS; XLA takes as many threads as it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    answers = sys.stdout
    sys.stdout = sys.stderr  # nothing else may stand between the answers
    runner = SIDES[side](folder, int(threads))
    print(json.dumps({"memory": peak_memory()}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        seconds, said = getattr(runner, task["task"])(Sizes(**task["sizes"]), **task["options"])
        report = {"seconds": seconds, "said": said, "memory": peak_memory()}
        print(json.dumps(report), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
