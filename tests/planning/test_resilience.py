"""Back-off, circuit breaker, and the calls between them; no test waits."""

import random
import threading

import pytest

from jaxagent.planning.chat import ChatError, Message
from jaxagent.planning.serving.resilience import Backoff, CircuitBreaker, ResilientChat
from tests.planning.scripted import ScriptedChat

ASKED = [Message("user", "hello")]


class Clock:
    def __init__(self):
        self.now, self.slept = 100.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def failing(reason="server_error", retry_after=None):
    return ChatError(reason, "it failed", retry_after)


def resilient(clock, *replies, failures=10, **backoff):
    chat = ScriptedChat(*replies)
    breaker = CircuitBreaker(failures, 60.0, clock)
    wrapped = ResilientChat(
        chat, backoff=Backoff(**backoff), breaker=breaker, sleep=clock.sleep, seed=1
    )
    return wrapped, chat


def test_delays_grow_with_jitter_and_are_the_same_for_a_seed():
    backoff = Backoff(first=1.0, factor=2.0, longest=6.0)

    def delays(seed):
        chance = random.Random(seed)
        return [backoff.delay(n, chance, None) for n in range(5)]

    for seed in range(20):
        for delay, most in zip(delays(seed), (1, 2, 4, 6, 6)):
            assert most / 2 <= delay <= most
    assert delays(3) == delays(3) != delays(4)
    assert backoff.delay(10_000, random.Random(0), None) <= 6.0
    assert backoff.delay(0, random.Random(0), 17.0) == 17.0


def test_a_transient_failure_is_tried_again_after_a_while():
    clock = Clock()
    chat, inner = resilient(clock, failing(), failing("timeout"), "hi", first=1.0)
    assert chat.complete(ASKED, max_tokens=4, seed=2).text == "hi"
    assert inner.options[2]["seed"] == 2
    assert len(clock.slept) == 2
    assert 0.5 <= clock.slept[0] <= 1.0 <= clock.slept[1] <= 2.0
    assert chat.breaker.state == "closed"


@pytest.mark.parametrize("reason", ["wrong_key", "refused_request", "bad_response"])
def test_what_will_not_go_better_is_not_tried_again(reason):
    clock = Clock()
    chat, inner = resilient(clock, failing(reason))
    with pytest.raises(ChatError) as caught:
        chat.complete(ASKED, max_tokens=4)
    assert (caught.value.reason, len(inner.asked), clock.slept) == (reason, 1, [])


def test_attempts_are_bounded():
    clock = Clock()
    chat, inner = resilient(clock, failing(), attempts=3)
    with pytest.raises(ChatError, match="it failed"):
        chat.complete(ASKED, max_tokens=4)
    assert len(inner.asked) == 3


def test_the_endpoint_says_how_long_to_wait_within_reason():
    clock = Clock()
    chat, _ = resilient(clock, failing("rate_limited", 7.0), "hi", longest=20.0)
    chat.complete(ASKED, max_tokens=4)
    assert clock.slept == [7.0]
    chat, inner = resilient(clock, failing("rate_limited", 3600.0), "hi", longest=20.0)
    with pytest.raises(ChatError):
        chat.complete(ASKED, max_tokens=4)
    assert len(inner.asked) == 1


def test_the_breaker_opens_tries_once_and_closes():
    clock = Clock()
    breaker = CircuitBreaker(2, 30.0, clock)
    breaker.fail()
    breaker.succeed()
    breaker.fail()
    assert breaker.allow()  # a success in between: not two in a row
    breaker.fail()
    assert (breaker.state, breaker.allow()) == ("open", False)
    clock.now += 30.0
    assert breaker.state == "half-open"
    assert [breaker.allow(), breaker.allow()] == [True, False]  # a single trial
    breaker.fail()
    assert (breaker.state, breaker.allow()) == ("open", False)
    clock.now += 30.0
    assert breaker.allow()
    breaker.succeed()
    assert (breaker.state, breaker.allow(), breaker.allow()) == ("closed", True, True)


def test_a_probe_that_is_never_heard_of_again_is_given_up():
    clock = Clock()
    breaker = CircuitBreaker(1, 30.0, clock, probe_timeout=100.0)
    breaker.fail()
    clock.now += 30.0
    assert [breaker.allow(), breaker.allow()] == [True, False]
    clock.now += 99.0
    assert not breaker.allow()
    clock.now += 1.0
    assert [breaker.allow(), breaker.allow()] == [True, False]
    breaker.succeed()
    assert breaker.state == "closed"


def test_a_refused_request_is_not_ill_health():
    clock = Clock()
    chat, inner = resilient(clock, failing("refused_request"), failures=3)
    for _ in range(5):
        with pytest.raises(ChatError) as caught:
            chat.complete(ASKED, max_tokens=4)
        assert caught.value.reason == "refused_request"
    assert (len(inner.asked), chat.breaker.state) == (5, "closed")


def test_an_open_breaker_makes_no_call():
    clock = Clock()
    chat, inner = resilient(clock, failing(), failures=2, attempts=5)
    with pytest.raises(ChatError, match="it failed"):
        chat.complete(ASKED, max_tokens=4)
    assert len(inner.asked) == 2  # opened in the middle of the attempts
    with pytest.raises(ChatError) as caught:
        chat.complete(ASKED, max_tokens=4)
    assert (caught.value.reason, len(inner.asked)) == ("circuit_open", 2)
    clock.now += 60.0
    inner.replies = ["back"]
    assert chat.complete(ASKED, max_tokens=4).text == "back"


def test_a_wrong_key_opens_it_at_once():
    chat, _ = resilient(Clock(), failing("wrong_key"))
    with pytest.raises(ChatError):
        chat.complete(ASKED, max_tokens=4)
    assert chat.breaker.state == "open"


def test_after_stop_nothing_is_tried_again():
    clock = Clock()
    chat, inner = resilient(clock, failing(), "hi")
    chat.stop()
    with pytest.raises(ChatError) as caught:
        chat.complete(ASKED, max_tokens=4)
    assert (caught.value.reason, inner.asked) == ("stopped", [])


def test_stop_cuts_a_wait_short():
    chat = ResilientChat(ScriptedChat(failing()), backoff=Backoff(first=600.0, longest=600.0))
    errors, waiting, wait = [], threading.Event(), chat._sleep

    def sleep(seconds):
        assert seconds >= 300.0
        waiting.set()
        return wait(seconds)

    def call():
        with pytest.raises(ChatError) as caught:
            chat.complete(ASKED, max_tokens=4)
        errors.append(caught.value.reason)

    chat._sleep = sleep
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert waiting.wait(60)
    chat.stop()
    thread.join(60)
    assert errors == ["stopped"]


def test_an_interrupted_trial_does_not_lock_the_breaker():
    clock = Clock()
    chat, _ = resilient(clock, failing(), failures=1)
    with pytest.raises(ChatError):
        chat.complete(ASKED, max_tokens=4)
    clock.now += 60.0
    with pytest.raises(KeyboardInterrupt):
        ResilientChat(_Raises(), breaker=chat.breaker).complete(ASKED, max_tokens=4)
    clock.now += 60.0
    assert chat.breaker.allow()


class _Raises(ScriptedChat):
    def complete(self, messages, **options):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Backoff(attempts=0), r"attempts \(0\) must be at least 1"),
        (lambda: Backoff(first=3.0, longest=2.0), r"first \(3.0\), longest \(2.0\)"),
        (lambda: Backoff(factor=0.5), r"factor \(0.5\)"),
        (lambda: CircuitBreaker(0), r"failures \(0\) must be at least 1"),
        (lambda: CircuitBreaker(probe_timeout=0.0), r"probe_timeout \(0.0\) greater than 0"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
