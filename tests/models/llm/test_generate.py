"""What is said, with a cache and in batches, is what the model says token by token without."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm import generate_read, generate_rows, generate_steps
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_rows import PIECES, RowBatch, pieces
from jaxagent.models.llm.generate_weights import Weights
from jaxagent.models.llm.llama import Llama, init_params
from jaxagent.models.llm.lora import LoRA
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.models.llm.scoring import token_log_probs
from jaxagent.models.llm.tokenizer import train_tokenizer
from tests.models.llm.random_models import COMMANDS, log_probs_after, random_model

FREE = SamplingConfig(max_new_tokens=20, stop_tokens=())


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model())


def greedy(model, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Without a cache: everything is read again for every token."""
    tokens, logs = list(prompt), []
    for _ in range(count):
        after = log_probs_after(model, tokens)[-1]
        tokens.append(int(np.argmax(after)))
        logs.append(float(after[tokens[-1]]))
    return tokens[len(prompt) :], logs


def prompts_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 300, size=length).tolist() for length in lengths]


def test_a_batch_of_unequal_prompts_says_what_each_says_without_a_cache(generator):
    prompts = prompts_of([1, 5, 16, 17, 80])
    replies = generator.generate(prompts, FREE)
    for prompt, reply in zip(prompts, replies, strict=True):
        tokens, logs = greedy(generator.model, prompt, 20)
        assert reply.tokens.tolist() == tokens
        np.testing.assert_allclose(reply.log_prob, logs, atol=1e-4)
        assert np.array_equal(reply.permitted_log_prob, reply.log_prob)
        assert not reply.behaviour_log_prob.any()
        assert (reply.finish_reason, reply.prompt_length) == ("length", len(prompt))
        assert reply.text == generator.model.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def test_bfloat16_runs_and_agrees_with_itself():
    generator = Generator(random_model(dtype="bfloat16"))
    prompt = prompts_of([40])[0]
    (reply,) = generator.generate([prompt], FREE)
    whole = log_probs_after(generator.model, prompt + reply.tokens.tolist())[39:-1]
    own = whole[np.arange(20), reply.tokens]
    np.testing.assert_allclose(reply.log_prob, own, atol=0.3)


def test_a_session_never_reads_its_history_again(generator, monkeypatch):
    read = []
    original = RowBatch._feed

    def counted(self, cache, last, prompts, lengths):
        read.append(sum(map(len, prompts)))
        return original(self, cache, last, prompts, lengths)

    monkeypatch.setattr(RowBatch, "_feed", counted)
    session, history = generator.session(), prompts_of([100])[0]
    said_before = 0
    for turn in range(6):
        (reply,) = session.generate([history], dataclasses.replace(FREE, max_new_tokens=7))
        assert reply.tokens.tolist() == greedy(generator.model, history, 7)[0]
        if turn:
            # What is new: the last token said, which no step has read, and the observation.
            assert read[-1] == len(history) - said_before == 12
        said_before = len(history) + 6
        history = history + reply.tokens.tolist() + prompts_of([11], seed=turn)[0]
    assert reply.reused_length == reply.prompt_length - 12


def test_a_history_that_was_changed_is_read_from_the_change_on(generator):
    session, history = generator.session(), prompts_of([50])[0]
    session.generate([history], FREE)
    changed = history[:30] + [7, 8, 9] + history[30:]
    (reply,) = session.generate([changed], FREE)
    assert reply.reused_length == 30
    assert reply.tokens.tolist() == greedy(generator.model, changed, 20)[0]
    # The very same prompt: only its last token is read.
    (again,) = session.generate([changed], FREE)
    assert again.reused_length == len(changed) - 1
    assert again.tokens.tolist() == reply.tokens.tolist()
    # A shorter one.
    (shorter,) = session.generate([changed[:20]], FREE)
    assert shorter.reused_length == 19
    assert shorter.tokens.tolist() == greedy(generator.model, changed[:20], 20)[0]


def test_rows_of_a_session_go_their_own_ways(generator):
    session = generator.session(5)
    histories = prompts_of([10, 60, 33, 1, 2])
    for turn in range(3):
        replies = session.generate(histories, dataclasses.replace(FREE, max_new_tokens=5 + turn))
        for row, reply in enumerate(replies):
            assert reply.tokens.tolist() == greedy(generator.model, histories[row], 5 + turn)[0]
        histories = [
            h + r.tokens.tolist() + prompts_of([9 * (row + 1)], seed=turn)[0]
            for row, (h, r) in enumerate(zip(histories, replies, strict=True))
        ]


def test_a_long_session_compiles_a_handful_of_programs():
    steps = (generate_read.through_layer, generate_steps.say)
    # A configuration of its own: nothing is compiled for it yet.
    generator = Generator(random_model(max_positions=2000))
    before = np.array([step._cache_size() for step in steps])
    rng = np.random.default_rng(5)
    session, history = generator.session(), prompts_of([60])[0]
    for turn in range(30):
        commands = rng.choice(COMMANDS, size=rng.integers(2, 12), replace=False).tolist()
        constraint = generator.string_set(commands)
        config = SamplingConfig(max_new_tokens=24, temperature=1.0, seed=turn)
        (reply,) = session.generate([history], config, constraint)
        history += reply.tokens.tolist() + prompts_of([rng.integers(3, 50)], seed=turn)[0]
    assert len(history) > 800
    other = generator.session()
    for turn in range(5):
        other.generate([history[: 100 + 20 * turn]], config, constraint)
    compiled = np.array([step._cache_size() for step in steps]) - before
    # A few pieces of prompt, and single tokens, at each of three sizes of the cache.
    assert compiled[0] <= 3 * (len(PIECES) + 1)
    assert compiled[1] == 1


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33, 64, 65, 100, 256, 257, 1000])
def test_pieces_cover_what_is_to_be_read(count):
    sizes = pieces(count)
    assert set(sizes) <= set(PIECES)
    assert sum(sizes) >= count
    # Only the last is not full, and little is read in vain.
    assert sum(sizes[:-1]) < count or count == 0
    assert sum(sizes) - count < 64
    assert pieces(40, largest=20) == [16, 16, 16]
    assert pieces(5, largest=8) == [8]


def test_equal_prompts_draw_apart_and_are_read_once(generator, monkeypatch):
    sizes = []
    original = RowBatch._feed
    monkeypatch.setattr(
        RowBatch, "_feed", lambda *args: sizes.append(len(args[3])) or original(*args)
    )
    prompt = prompts_of([30])[0]
    config = dataclasses.replace(FREE, temperature=1.0, seed=11)
    group = generator.generate([prompt] * 8, config)
    assert sizes == [1]
    assert len({tuple(reply.tokens.tolist()) for reply in group}) == 8
    (alone,) = generator.generate([prompt], config)
    assert alone.tokens.tolist() == group[0].tokens.tolist()
    np.testing.assert_allclose(alone.behaviour_log_prob, group[0].behaviour_log_prob, atol=1e-4)


@pytest.mark.parametrize(
    ("arrangement", "tokens"),
    [("AAAAA", 50), ("AAAABBBB", 100), ("ABABABAB", 100), ("ABC", 150), ("AAB", 100), ("A", 50),
     ("AAAAAAAA", 50), ("AABBCCDD", 200), ("AABCDEFG", 350)],
)  # fmt: skip
def test_equal_prompts_are_read_once_in_any_arrangement(
    arrangement, tokens, generator, monkeypatch
):
    read, prefill = [], generate_rows.prefill

    def counted(config, weights, cache, last, tokens, count):
        read.append(int(count.sum()))
        return prefill(config, weights, cache, last, tokens, count)

    monkeypatch.setattr(generate_rows, "prefill", counted)
    by_name = dict(zip("ABCDEFG", prompts_of([50] * 7)))
    prompts = [by_name[name] for name in arrangement]
    session = generator.session(len(prompts))
    replies = session.generate(prompts, FREE)
    assert sum(read) == tokens
    alone = {name: generator.generate([by_name[name]], FREE)[0] for name in set(arrangement)}
    for name, reply in zip(arrangement, replies):
        assert reply.tokens.tolist() == alone[name].tokens.tolist()
        np.testing.assert_allclose(reply.log_prob, alone[name].log_prob, atol=1e-4)
    # And of a later turn: one row's own reply is known, for the others it is new.
    read.clear()
    longer = [*prompts[0], *replies[0].tokens.tolist(), 7, 8]
    later = session.generate([longer] * len(prompts), FREE)
    assert sum(read) == 3  # the last said token and two new ones
    assert len(said(later)) == 1


def said(replies):
    return {tuple(reply.tokens.tolist()) for reply in replies}


def test_seeds_rows_and_turns_draw_apart(generator):
    """So hot that the noise alone decides: what shares it would be the same, word for word."""
    hot = dataclasses.replace(FREE, temperature=1e6, max_new_tokens=8)
    prompts = prompts_of([12] * 4)
    groups = [
        generator.generate(prompts, dataclasses.replace(hot, seed=seed)) for seed in (0, 1, 2**32)
    ]
    assert len(said(reply for group in groups for reply in group)) == 12
    (again,) = generator.generate(prompts[:1], hot)
    assert said([again]) == said(groups[0][:1])
    # Turns, of a history that grows or stands still; and a session is the same every time.
    sessions = []
    for _ in range(2):
        session, history, turns = generator.session(), prompts[0], []
        for grows in (True, True, False, False):
            turns += session.generate([history], hot)
            history = [*history, *turns[-1].tokens.tolist()] if grows else history
        sessions.append(turns)
        assert len(said(turns)) == 4
    assert said(sessions[0]) == said(sessions[1])
    assert said(sessions[0][:1]) == said([again])


def test_turns_of_a_batcher_draw_apart_and_the_same_request_says_the_same(generator):
    hot = dataclasses.replace(FREE, temperature=1e6, max_new_tokens=8)
    batcher, (prompt, other) = generator.batcher(rows=2), prompts_of([12, 30])

    def ask(prompt, beside=()):
        number = batcher.submit(prompt, hot)
        for each in beside:
            batcher.submit(each, hot)
        while batcher.is_busy:
            done = batcher.step(8)
            if number in done and done[number].completion:
                reply = done[number].completion
        return reply.tokens.tolist()

    first = ask(prompt)
    second = ask([*prompt, *first])
    assert first != second
    assert ask(prompt, [other]) == first
    assert [first] == [generator.generate([prompt], hot)[0].tokens.tolist()]


def test_a_row_says_the_same_whoever_is_beside_it(generator):
    prompts = prompts_of([20, 45, 8, 9, 10])
    configs = [
        dataclasses.replace(FREE, temperature=0.9, top_p=0.9, seed=1),
        dataclasses.replace(FREE, temperature=1.3, top_k=20, seed=2, max_new_tokens=7),
        FREE,
        FREE,
        FREE,
    ]
    constraint = generator.string_set(COMMANDS)
    constraints = [None, constraint, None, None, None]
    configs[1] = dataclasses.replace(configs[1], stop_tokens=None, max_new_tokens=24)
    together = generator.generate(prompts, configs, constraints)
    for row in range(3):
        (alone,) = generator.generate([prompts[row]], configs[row], constraints[row])
        assert alone.tokens.tolist() == together[row].tokens.tolist()
        assert alone.text == together[row].text
        np.testing.assert_allclose(alone.log_prob, together[row].log_prob, atol=1e-4)
    assert together[1].text in COMMANDS


def test_log_probs_are_those_of_the_model(generator):
    prompt = prompts_of([25])[0]
    config = dataclasses.replace(FREE, temperature=0.8, seed=4)
    (reply,) = generator.generate([prompt], config)
    after = log_probs_after(generator.model, prompt + reply.tokens.tolist())[24:-1]
    places = (np.arange(20), reply.tokens)
    np.testing.assert_allclose(reply.log_prob, after[places], atol=1e-4)
    scaled = after.astype(np.float64) / 0.8
    drawn_from = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    np.testing.assert_allclose(reply.behaviour_log_prob, drawn_from[places], atol=1e-3)


def test_it_stops_at_tokens_strings_and_loops(generator):
    model, prompt = generator.model, prompts_of([25])[0]
    (whole,) = generator.generate([prompt], FREE)
    third = int(whole.tokens[2])
    place = whole.tokens.tolist().index(third)
    (stopped,) = generator.generate([prompt], dataclasses.replace(FREE, stop_tokens=(third,)))
    assert stopped.finish_reason == "end"
    assert stopped.tokens.tolist() == whole.tokens[: place + 1].tolist()
    assert stopped.text == model.tokenizer.decode(
        whole.tokens[:place], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    stop = whole.text[6:9]
    (cut,) = generator.generate([prompt], dataclasses.replace(FREE, stop_strings=("zzz", stop)))
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    # The tokens end with the one that completes it.
    decoded = [
        model.tokenizer.decode(cut.tokens[:n], clean_up_tokenization_spaces=False)
        for n in (len(cut.tokens) - 1, len(cut.tokens))
    ]
    assert [stop in text for text in decoded] == [False, True]
    assert len(cut.log_prob) == len(cut.tokens)


def test_a_loop_ends_the_reply(generator):
    """Greedy replies of a tiny model come round sooner or later."""
    config = SamplingConfig(max_new_tokens=200, stop_tokens=(), max_repeats=4)
    replies = generator.generate(prompts_of([5] * 8), config)
    ended = [reply for reply in replies if reply.finish_reason == "repetition"]
    assert ended
    for reply in ended:
        tokens = reply.tokens.tolist()
        assert any(tokens[-p:] * 4 == tokens[-4 * p :] for p in range(1, 17))
        # Not a token later than it could be seen.
        before = tokens[:-1]
        assert not any(before[-p:] * 4 == before[-4 * p :] for p in range(1, 17))


def test_a_session_goes_on_after_a_stop_string(generator):
    session, prompt = generator.session(), prompts_of([25])[0]
    (whole,) = generator.generate([prompt], FREE)
    (cut,) = session.generate([prompt], dataclasses.replace(FREE, stop_strings=(whole.text[3:5],)))
    history = prompt + cut.tokens.tolist() + [5, 6, 7]
    (reply,) = session.generate([history], FREE)
    assert reply.tokens.tolist() == greedy(generator.model, history, 20)[0]
    assert reply.reused_length >= len(prompt)


def test_ten_thousand_constrained_replies_are_all_inside():
    """Ten random models, a thousand random replies each, over forty sets side by side."""
    rng, inside, said = np.random.default_rng(0), 0, set()
    sizes = rng.integers(1, len(COMMANDS), size=40)
    sets = [rng.choice(COMMANDS, size=size, replace=False).tolist() for size in sizes]
    automata = [Generator(random_model()).string_set(s) for s in sets]
    for seed in range(10):
        generator = Generator(random_model(seed))
        chosen = rng.integers(0, len(sets), size=1000)
        configs = [
            SamplingConfig(max_new_tokens=24, temperature=float(t), seed=i)
            for i, t in enumerate(rng.uniform(0, 3, size=1000))
        ]
        prompts = [[int(token)] for token in rng.integers(3, 300, size=1000)]
        replies = generator.generate(prompts, configs, [automata[c] for c in chosen])
        inside += sum(r.text in sets[c] for r, c in zip(replies, chosen, strict=True))
        said |= {reply.text for reply in replies}
        assert all(reply.finish_reason == "end" for reply in replies)
    assert inside == 10_000
    assert said == set(COMMANDS)


def test_renormalised_probabilities_of_a_set_sum_to_one(generator):
    """Each command forced in turn: its probability as reported; together they are certain."""
    prompt, total = prompts_of([12])[0], 0.0
    commands = COMMANDS[:12]
    seen = {}
    for first in range(0, 128, 8):
        config = SamplingConfig(max_new_tokens=24, temperature=1.0, seed=first)
        constraint = generator.string_set(commands)
        for reply in generator.generate([prompt] * 8, config, constraint):
            seen[reply.text] = reply.permitted_log_prob.sum()
            np.testing.assert_allclose(
                reply.permitted_log_prob, reply.behaviour_log_prob, atol=1e-5
            )
            assert (reply.log_prob <= reply.permitted_log_prob + 1e-5).all()
    scores = generator.score(prompt, commands)
    for command, log_prob in zip(commands, scores.permitted_log_prob, strict=True):
        if command in seen:
            assert seen[command] == pytest.approx(log_prob, abs=1e-3)
            total += np.exp(log_prob)
    assert total > 0.9
    assert np.exp(scores.permitted_log_prob).sum() == pytest.approx(1.0, abs=1e-4)


def test_json_is_complete_however_small_the_budget(generator):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "null"}}},
        "required": ["a", "b"],
    }
    constraint = generator.json_schema(schema)
    shortest = int(constraint.distance[0])
    import json

    for budget in (shortest, shortest + 3, 60):
        configs = [
            SamplingConfig(max_new_tokens=budget, temperature=1.5, seed=seed) for seed in range(8)
        ]
        for reply in generator.generate(prompts_of([9]) * 8, configs, constraint):
            assert set(json.loads(reply.text)) == {"a", "b"}
            assert len(reply.tokens) <= budget
            assert reply.finish_reason == "end"


def test_parameters_that_nobody_speaks_with_any_more_can_be_donated():
    model = random_model(seed=2)
    params = jax.tree.map(jnp.copy, model.params)
    speaking = Generator(model._replace(params=params))
    speaking.generate(prompts_of([5]), FREE)
    address = params["layers"]["mlp"]["gate"]["kernel"].unsafe_buffer_pointer()
    del speaking
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)(params)
    assert doubled["layers"]["mlp"]["gate"]["kernel"].unsafe_buffer_pointer() == address


def test_one_program_of_all_layers_says_the_same(generator):
    """As on accelerators, where the layers are scanned."""
    whole = Generator(generator.model)
    whole.weights = Weights({"params": generator.model.params}, ())
    prompts, constraint = prompts_of([5, 40, 70]), generator.string_set(COMMANDS)
    config = SamplingConfig(max_new_tokens=24, temperature=1.0, seed=3)
    for constraints in (None, [constraint, None, constraint]):
        ours, theirs = (g.generate(prompts, config, constraints) for g in (generator, whole))
        for one, other in zip(ours, theirs, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_allclose(one.log_prob, other.log_prob, atol=1e-4)
            np.testing.assert_allclose(one.permitted_log_prob, other.permitted_log_prob, atol=1e-4)
    ours, theirs = (g.score(prompts[1], COMMANDS) for g in (generator, whole))
    np.testing.assert_allclose(ours.log_prob, theirs.log_prob, atol=1e-4)


def test_new_parameters_need_no_new_programs(generator):
    other = random_model(seed=1)
    prompt = prompts_of([20])[0]
    speaking = Generator(random_model())
    speaking.generate([prompt], FREE)
    compiled = generate_read.through_layer._cache_size()
    speaking.update(other.params)
    (reply,) = speaking.generate([prompt], FREE)
    assert reply.tokens.tolist() == greedy(other, prompt, 20)[0]
    assert generate_read.through_layer._cache_size() == compiled


def test_layers_are_views_of_the_parameters_and_adapters_go_along():
    model = random_model()
    lora = LoRA(rank=2, targets=("query", "down"))
    adapters = lora.init(model.config, jax.random.key(0))
    adapters = jax.tree.map(
        lambda x: x + 0.3 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), adapters
    )
    adapted = lora.variables(adapters)["lora"]
    generator = Generator(model, lora=adapted)
    stacked = model.params["layers"]["mlp"]["gate"]["kernel"]
    view = generator.weights.layers[1]["params"]["mlp"]["gate"]["kernel"]
    assert view.unsafe_buffer_pointer() == stacked.unsafe_buffer_pointer() + view.nbytes
    assert view.committed == stacked.committed
    prompt = prompts_of([20])[0]
    (reply,) = generator.generate([prompt], FREE)
    (plain,) = Generator(model).generate([prompt], FREE)
    assert reply.tokens.tolist() != plain.tokens.tolist()
    tokens = np.array([prompt + reply.tokens.tolist()])
    whole = token_log_probs(model.config, {"params": model.params, "lora": adapted}, tokens)
    np.testing.assert_allclose(reply.log_prob, whole[0, 20:], atol=1e-4)


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda g: g.generate([]), "at least one row, found 0"),
        (lambda g: g.generate([[]]), "at least one token"),
        (lambda g: g.generate([[5, 100_000]]), r"token \(100000\) must lie in \[0, 319\]"),
        (lambda g: g.generate([[-1]]), r"token \(-1\) must lie in \[0, 319\]"),
        (lambda g: g.score([5], [[6], [320]]), r"token \(320\) must lie in \[0, 319\]"),
        (lambda g: g.generate(["\ud800"]), "half of a surrogate pair"),
        (lambda g: g.generate([[5] * 1010], FREE), r"prompt \(1010 tokens\).*\(up to 20\).*1024"),
        (lambda g: g.session(2).generate([[5]]), r"prompts \(1\) must be one for each row \(2\)"),
        (lambda g: g.score([5] * 1022, ["go to desk 1"]), r"prompt \(1022 tokens\)"),
        (lambda g: g.score([5], []), "at least one candidate"),
        (lambda g: g.score([5], ["look", ""]), r"candidates\[1\] must not be empty"),
        (lambda g: g.session(2).score([5], ["look"]), "one row, found 2"),
        (
            lambda g: g.generate([[5]], SamplingConfig(max_new_tokens=1), g.string_set(["go to"])),
            r"max_new_tokens \(1\) must be at least",
        ),
        (
            lambda g: g.generate([[5]], SamplingConfig(stop_strings=("a",)), g.string_set(["a"])),
            "stop_strings .* cannot go with a constraint",
        ),
        (
            lambda g: g.generate([[5]], SamplingConfig(max_repeats=3), g.string_set(["a"])),
            "max_repeats .* cannot go with a constraint",
        ),
    ],
)
def test_what_cannot_be_answered_is_named(generator, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(generator)


def test_a_refused_prompt_leaves_a_session_as_it_was(generator):
    session, prompt = generator.session(), prompts_of([30])[0]
    session.generate([prompt], FREE)
    with pytest.raises(ValueError, match="must fit"):
        session.generate([prompt * 40], FREE)
    (reply,) = session.generate([prompt + [4, 5]], FREE)
    assert reply.reused_length == 30
    assert reply.tokens.tolist() == greedy(generator.model, prompt + [4, 5], 20)[0]


@pytest.mark.parametrize("token", [-1, 320, 10**6])
def test_ids_outside_the_vocabulary_are_refused(token, generator):
    size = generator.model.config.vocab_size
    model = Llama(generator.model.config)
    message = rf"token \({token}\) must lie in \[0, {size - 1}\]"
    variables, tokens = {"params": generator.model.params}, jnp.array([[1, token]])
    assert size <= 320
    with pytest.raises(ValueError, match=message):
        generator.generate([[1, token]], FREE)
    with pytest.raises(ValueError, match=message):
        generator.score([1, token], [[1]])
    with pytest.raises(ValueError, match=message):
        generator.score([1], [[1], [2, token]])
    with pytest.raises(ValueError, match=message):
        model.apply(variables, tokens)
    with pytest.raises(ValueError, match=message):
        token_log_probs(generator.model.config, variables, tokens)


def test_a_tokeniser_beyond_its_model_is_refused_where_it_says_so(generator):
    model = generator.model
    config = dataclasses.replace(model.config, vocab_size=40)
    small = Generator(model._replace(config=config, params=init_params(config, jax.random.key(0))))
    with pytest.raises(ValueError, match=r"token \(\d+\) must lie in \[0, 39\]"):
        small.generate(["go to desk"], FREE)
    automaton = generator.string_set(COMMANDS)
    with pytest.raises(ValueError, match=r"constraint: token \(\d+\) must lie in \[0, 39\]"):
        small.generate([[1, 2]], SamplingConfig(max_new_tokens=20), automaton)


def test_every_end_token_ends_a_reply(generator):
    (free,) = generator.generate([[5, 6, 7]], FREE)
    end = int(free.tokens[3])
    place = free.tokens.tolist().index(end)
    many = Generator(generator.model._replace(end_tokens=(end, 2)))
    assert many.end_tokens == (2, end) == (generator.end_token, end)
    (reply,) = many.generate([[5, 6, 7]], SamplingConfig(max_new_tokens=20))
    assert reply.finish_reason == "end"
    assert reply.tokens.tolist() == free.tokens.tolist()[: place + 1]
    said = generator.model.tokenizer.decode(free.tokens[:place], skip_special_tokens=True)
    assert reply.text == said
    batcher = many.batcher(rows=1)
    batcher.submit([5, 6, 7], SamplingConfig(max_new_tokens=20))
    (progress,) = batcher.step(64).values()
    assert progress.completion.tokens.tolist() == reply.tokens.tolist()


def test_a_prompt_that_ends_within_a_token_is_warned_of(generator):
    """The tokeniser has " go" and " desk": after a blank apart neither would be read as one."""
    tokenizer = train_tokenizer([f"> {command}" for command in COMMANDS] * 3, 290)
    assert len(tokenizer) <= generator.model.config.vocab_size
    generator = Generator(generator.model._replace(tokenizer=tokenizer))
    joined = generator.model.tokenizer.encode("> go")
    apart = [part for text in ("> ", "go") for part in generator.model.tokenizer.encode(text)]
    assert joined != apart
    with pytest.warns(UserWarning, match="end the prompt before the blank"):
        generator.generate(["You see a desk.\n> "], FREE)
    with pytest.warns(UserWarning, match="end the prompt before the blank"):
        generator.score("You see a desk.\n> ", ["go"])
    session, history = generator.session(), "You see a desk.\n>"
    commands = [f" {command}" for command in COMMANDS]
    (reply,) = session.generate([history], SamplingConfig(), generator.string_set(commands))
    history += f"{reply.text}\nNothing.\n>"
    (again,) = session.generate([history], SamplingConfig(), generator.string_set(commands))
    # All but the reply's last token, which is said and not read.
    first = len(generator.encode("You see a desk.\n>"))
    assert again.reused_length >= first + len(reply.tokens) - 2
