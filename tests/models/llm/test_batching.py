"""Requests that come and go say what each would have said alone."""

import numpy as np
import pytest

from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.sampling import SamplingConfig
from tests.models.llm.random_models import COMMANDS, random_model


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model())


def requests(generator, count: int) -> list[tuple]:
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        prompt = rng.integers(3, 300, size=rng.integers(1, 90)).tolist()
        config = SamplingConfig(
            max_new_tokens=int(rng.integers(1, 30)) if number % 3 else 24,
            temperature=float(number % 2),
            seed=number,
            stop_tokens=() if number % 3 else None,
        )
        constraint = None if number % 3 else generator.string_set(COMMANDS[number % 5 :])
        made.append((prompt, config, constraint))
    return made


def test_requests_that_come_and_go(generator):
    asked = requests(generator, 12)
    batcher, texts, completions, numbers = generator.batcher(rows=4), {}, {}, []
    most = 0
    for tick in range(1000):
        if tick % 3 == 0 and len(numbers) < len(asked):
            numbers.append(batcher.submit(*asked[len(numbers)]))
        for number, progress in batcher.step(1 + tick % 3).items():
            texts[number] = texts.get(number, "") + progress.text
            if progress.completion is not None:
                assert number not in completions
                assert progress.num_tokens == len(progress.completion.tokens)
                completions[number] = progress.completion
        most = max(most, batcher.num_running)
        if len(numbers) == len(asked) and not batcher.is_busy:
            break
    assert most > 1
    assert sorted(completions) == sorted(numbers) == list(range(12))
    for number, (prompt, config, constraint) in zip(numbers, asked, strict=True):
        (alone,) = generator.generate([prompt], config, constraint)
        assert completions[number].tokens.tolist() == alone.tokens.tolist()
        assert completions[number].finish_reason == alone.finish_reason
        np.testing.assert_allclose(
            completions[number].permitted_log_prob, alone.permitted_log_prob, atol=1e-4
        )
        assert texts[number] == completions[number].text == alone.text


def test_more_requests_than_rows_wait_their_turn(generator):
    batcher = generator.batcher(rows=4)
    config = SamplingConfig(max_new_tokens=4, stop_tokens=())
    numbers = [batcher.submit([5 + n], config) for n in range(10)]
    assert (batcher.num_waiting, batcher.num_running) == (10, 0)
    finished = []
    while batcher.is_busy:
        finished += [n for n, p in batcher.step().items() if p.completion]
        assert batcher.num_running <= 4
    assert finished == numbers
    assert batcher.step() == {}


def test_a_cancelled_request_is_forgotten(generator):
    batcher = generator.batcher(rows=1)
    config = SamplingConfig(max_new_tokens=20, stop_tokens=())
    first, second, third = (batcher.submit([5, 6, n], config) for n in (7, 8, 9))
    batcher.step(3)
    assert batcher.cancel(first)
    assert batcher.cancel(second)
    assert not batcher.cancel(second)
    assert not batcher.cancel(99)
    reports = {}
    while batcher.is_busy:
        for number, progress in batcher.step().items():
            reports[number] = progress
    assert set(reports) == {third}
    (alone,) = generator.generate([[5, 6, 9]], config)
    assert reports[third].completion.tokens.tolist() == alone.tokens.tolist()


def test_a_conversation_that_comes_back_is_not_read_again(generator):
    batcher = generator.batcher(rows=4)
    config = SamplingConfig(max_new_tokens=5, stop_tokens=())
    histories = [list(range(10 * n, 10 * n + 40)) for n in (1, 9, 17)]

    def play(order):
        numbers = {batcher.submit(histories[n], config): n for n in order}
        while batcher.is_busy:
            for number, progress in batcher.step().items():
                if progress.completion:
                    completion = progress.completion
                    histories[numbers[number]] += [*completion.tokens.tolist(), 3, 4]
                    yield completion.reused_length

    assert list(play([0, 1, 2])) == [0, 0, 0]
    # In another order each still finds its own row; the last token said is read with the rest.
    assert list(play([2, 0, 1])) == [44, 44, 44]


def test_text_comes_when_it_is_certain(generator):
    """No half characters, no beginnings of stop strings."""
    prompt = [5, 6, 7]
    for seed in range(30):
        free = SamplingConfig(max_new_tokens=40, temperature=1.5, stop_tokens=(), seed=seed)
        (whole,) = generator.generate([prompt], free)
        stop = whole.text[10:13]
        config = SamplingConfig(
            max_new_tokens=40, temperature=1.5, stop_tokens=(), seed=seed, stop_strings=(stop,)
        )
        batcher, text = generator.batcher(rows=1), ""
        batcher.submit(prompt, config)
        while batcher.is_busy:
            for progress in batcher.step().values():
                text += progress.text
                assert whole.text.startswith(text.rstrip("�"))
        assert text == whole.text[: whole.text.index(stop)]


def test_what_cannot_be_answered_is_refused_at_once(generator):
    batcher = generator.batcher()
    with pytest.raises(ValueError, match=r"prompt \(2000 tokens\)"):
        batcher.submit([5] * 2000, SamplingConfig())
    assert not batcher.is_busy
