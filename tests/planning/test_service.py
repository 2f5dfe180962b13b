"""Guidance that never makes anybody wait: caches, routing, stand-ins, failures, and the end."""

import math
import subprocess
import sys
import threading
import time

import pytest

from jaxagent.planning.goal_planner import Attempt, Situation
from jaxagent.planning.serving.cache import AnswerCache
from jaxagent.planning.serving.predictor import NearestAnswer
from jaxagent.planning.serving.queries import PlanQueries
from jaxagent.planning.serving.router import Router, Source
from jaxagent.planning.serving.service import Advice, GuidanceService, ServiceSettings
from jaxagent.types import Plan, SubGoal

KIND = PlanQueries()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def at(x, y=0.0, task="corner", **fields):
    return Situation(task, (x, y), **fields)


def plan_to(x, y=0.0, source="test"):
    return Plan((SubGoal((x, y)),), source)


class Gate:
    """A source that answers when the test lets it."""

    def __init__(self, answer=lambda query: plan_to(query.position[0] + 10)):
        self.answer, self.asked, self.started = answer, [], threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def __call__(self, query):
        self.asked.append(query)
        self.started.release()
        assert self.open.acquire(timeout=60)
        return self.answer(query)


def at_once(query):
    return plan_to(query.position[0] + 10)


def until(condition, timeout=60.0):
    """Wait for what a thread does: its effect on the metrics is the only sign of it."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "the thread of a source did not come to its end"
        time.sleep(0.001)


def service(*sources, **options):
    router = Router(sources, **options.pop("router", {}))
    options.setdefault("predictor", NearestAnswer(KIND))
    return GuidanceService(KIND, router, **options)


def test_the_caller_gets_nothing_then_the_answer_and_is_never_kept():
    gate = Gate()
    with service(Source("slow", gate)) as guidance:
        assert guidance.ask(at(0.0)) == Advice(None, "none")
        assert guidance.ask(at(0.0)).is_stale  # still on its way, and not asked twice
        gate.started.acquire(timeout=60)
        gate.open.release()
        advice = guidance.wait(at(0.0), timeout=60)
        assert (advice.answer, advice.origin, advice.source) == (plan_to(10.0), "exact", "slow")
        assert not advice.is_stale
        metrics = guidance.metrics()
        assert len(gate.asked) == metrics["asked"] == metrics["answered"] == 1
        # The third may have found the answer already there.
        assert (metrics["queries"], metrics["none"] + metrics["hits_exact"]) == (3, 3)


def test_what_is_near_has_its_answer_and_what_is_a_little_farther_a_stand_in():
    gate = Gate()
    with service(Source("slow", gate)) as guidance:
        gate.open.release()
        guidance.wait(at(0.0), timeout=60)
        assert guidance.ask(at(0.3))[:2] == (plan_to(10.0), "bucket")
        advice = guidance.ask(at(2.0))
        assert advice[:2] == (plan_to(10.0), "predicted")
        assert advice.is_stale
        assert guidance.ask(at(9.0))[:2] == (plan_to(10.0), "last")
        assert guidance.ask(at(9.0, task="run")) == Advice(None, "none")
        metrics = guidance.metrics()
        assert (metrics["hits_bucket"], metrics["stale"], metrics["pending"]) == (1, 2, 3)
        for _ in range(3):
            gate.open.release()
        assert guidance.wait(at(2.0), timeout=60)[:2] == (plan_to(12.0), "exact")
        # Asked for 2 m, the predictor had said the plan of 0 m: two metres off.
        guidance.wait(at(9.0), timeout=60)
        assert guidance.metrics()["prediction_error"] == pytest.approx(2.0)


def test_answers_on_disk_serve_the_next_process_but_not_another_prompt(tmp_path):
    def run(version):
        source = Source("model", at_once, version=version)
        with service(source, cache=AnswerCache(folder=tmp_path)) as guidance:
            guidance.wait(at(0.0, heading=45.0), timeout=60)
            return guidance.metrics()["asked"]

    assert [run("prompt-1"), run("prompt-1"), run("prompt-2")] == [1, 0, 1]


def test_a_cached_answer_that_is_no_plan_is_asked_for_again(tmp_path, caplog):
    cache = AnswerCache(folder=tmp_path)
    cache.put(f"model||exact|{KIND.exact(at(0.0))}", {"sub_goals": [{"target": ["x", 1]}]})
    with service(Source("model", at_once), cache=cache) as guidance:
        assert guidance.wait(at(0.0), timeout=60).answer == plan_to(10.0)
    assert "cached answer ignored" in caplog.text


def broken(query):
    raise OSError("the endpoint is down")


def test_a_source_that_fails_hands_over_and_is_then_left_alone():
    clock = Clock()
    sources = (Source("model", broken, quality=2.0), Source("rule", at_once, quality=1.0))
    settings = ServiceSettings(failures=2, cooldown=30.0)
    with service(*sources, settings=settings, clock=clock) as guidance:
        for x in (0.0, 100.0, 200.0):
            advice = guidance.wait(at(x), timeout=60)
            assert (advice.answer, advice.source) == (plan_to(x + 10), "rule")
            assert not guidance.ask(at(x)).is_stale
        metrics = guidance.metrics()
        assert (metrics["asked"], metrics["failed"], metrics["answered"]) == (5, 2, 3)
        assert metrics["sources"]["model"]["breaker"] == "open"
        assert metrics["sources"]["model"]["latency"] == 1.0  # to fail fast is not to be fast
        assert guidance.ask(at(0.0)).source == "rule"
        # Back again: the rule's answers do not hide the model.
        clock.now = 31.0
        assert guidance.ask(at(0.0)).is_stale


def test_when_all_fail_the_question_is_given_up():
    with service(Source("a", broken), Source("b", lambda query: None)) as guidance:
        assert guidance.wait(at(0.0), timeout=60) == Advice(None, "none")
        metrics = guidance.metrics()
        assert (metrics["failed"], metrics["unanswered"], metrics["pending"]) == (2, 1, 0)


def test_a_slow_source_is_overtaken_and_its_late_answer_kept():
    clock, gate = Clock(), Gate(lambda query: plan_to(1.0, source="slow"))
    sources = (Source("slow", gate, quality=2.0), Source("rule", at_once, quality=1.0))
    with service(*sources, settings=ServiceSettings(timeout=5.0), clock=clock) as guidance:
        guidance.ask(at(0.0))
        gate.started.acquire(timeout=60)
        clock.now = 6.0
        advice = guidance.wait(at(0.0), timeout=60)
        metrics = guidance.metrics()
        assert (metrics["timeouts"], metrics["late"]) == (1, 0)
        assert metrics["sources"]["slow"]["latency"] == pytest.approx(1.0 + 0.3 * (6.0 - 1.0))
        assert advice.answer in (plan_to(10.0), None)
        gate.open.release()
        gate.open.release()
        guidance.wait(at(50.0), timeout=60)
        assert guidance.metrics()["late"] == 1
        assert guidance.ask(at(0.0)).answer == plan_to(1.0, source="slow")


def test_two_slow_sources_do_not_lock_a_breaker_that_is_half_open():
    """The answer of the first, which comes late, ends the query that was to try the second."""
    clock, first, second = Clock(), Gate(), Gate(lambda query: None)
    sources = (Source("first", first, quality=2.0), Source("second", second, quality=1.0))
    settings = ServiceSettings(timeout=5.0, failures=1, cooldown=30.0)
    with service(*sources, settings=settings, clock=clock) as guidance:

        def both_are_asked(x):
            guidance.ask(at(x))
            first.started.acquire(timeout=60)
            clock.now += 6.0  # the first is too slow
            guidance.ask(at(x))
            second.started.acquire(timeout=60)

        def is_idle(name):
            return guidance.metrics()["sources"][name]["waiting"] == 0

        both_are_asked(0.0)
        second.open.release()
        until(lambda: is_idle("second"))
        assert guidance.metrics()["sources"]["second"]["breaker"] == "open"
        first.open.release()
        until(lambda: is_idle("first"))
        clock.now = 40.0  # both are half-open: one query each decides
        both_are_asked(100.0)
        first.open.release()  # late; the query of the second is nobody's any more
        until(lambda: is_idle("first"))
        second.open.release()
        until(lambda: is_idle("second"))
        assert guidance.metrics()["sources"]["second"]["breaker"] == "half-open"
        clock.now = 80.0
        asked = guidance.metrics()["asked"]
        guidance.ask(at(200.0))
        clock.now += 6.0
        guidance.ask(at(200.0))
        # The first at once, and the second as soon as the first was too slow.
        assert guidance.metrics()["asked"] == asked + 2, "the second source is never tried again"
        first.open.release()
        second.open.release()


def test_a_job_that_was_taken_away_is_not_done_twice():
    clock, gate = Clock(), Gate()
    with service(Source("slow", gate), settings=ServiceSettings(timeout=5.0), clock=clock) as guide:
        guide.ask(at(0.0))
        guide.ask(at(50.0))
        gate.started.acquire(timeout=60)
        clock.now = 6.0
        guide.ask(at(0.3))  # expires both; nobody else is there to ask
        gate.open.release()
        gate.open.release()
        guide.wait(at(0.3), timeout=60)
        assert [query.position[0] for query in gate.asked] in ([0.0], [0.0, 0.3])


def test_queues_are_bounded():
    gate = Gate()
    with service(Source("slow", gate), settings=ServiceSettings(queue_length=2)) as guidance:
        for x in range(0, 500, 100):
            guidance.ask(at(float(x)))
        metrics = guidance.metrics()
        assert (metrics["asked"], metrics["dropped"], metrics["pending"]) == (2, 3, 2)
        for _ in range(2):
            gate.open.release()


def test_stand_ins_are_stale_and_answers_are_not():
    origins = ("exact", "bucket", "predicted", "last", "none")
    assert [Advice(None, origin).is_stale for origin in origins] == [False, False, True, True, True]


def test_many_threads_ask_at_once():
    errors, fresh = [], []

    def ask_many(guidance, offset):
        try:
            for n in range(200):
                x = float((n * 7 + offset) % 40) * 10
                advice = guidance.ask(at(x))
                # Ten metres apart no question shares a bucket with another.
                if not advice.is_stale:
                    assert advice == (plan_to(x + 10), "exact", "a")
                    fresh.append(x)
        except BaseException as error:
            errors.append(error)

    # Far enough apart that no queue changes their order: who is asked is then decided.
    sources = (Source("a", at_once, latency=0.0), Source("b", broken, quality=99.0, latency=0.0))
    with service(*sources, settings=ServiceSettings(queue_length=100)) as guidance:
        threads = [threading.Thread(target=ask_many, args=(guidance, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n in range(40):
            assert guidance.wait(at(n * 10.0), timeout=60).answer == plan_to(n * 10.0 + 10)
        ask_many(guidance, 0)
        metrics = guidance.metrics()
    assert errors == []
    assert len(fresh) >= 200  # the last asked of what was known
    assert metrics["pending"] == 0
    assert metrics["queries"] == 1040
    assert metrics["answered"] == 40  # however often a question is asked, it is asked once
    assert all(source["waiting"] == 0 for source in metrics["sources"].values())


def test_costs_add_up():
    with service(Source("model", at_once, cost=0.25)) as guidance:
        for x in (0.0, 0.0, 100.0):
            guidance.wait(at(x), timeout=60)
        assert guidance.metrics()["cost"] == 0.5


def test_the_router_weighs_quality_latency_cost_and_queue():
    small = Source("small", at_once, quality=1.0, latency=1.0)
    large = Source("large", at_once, quality=2.0, latency=10.0, cost=0.1)
    router = Router((small, large), latency_price=0.05, cost_price=2.0, smoothing=0.5)
    assert router.score(small, 0) == pytest.approx(1.0 - 0.05)
    assert router.score(large, 1) == pytest.approx(2.0 - 0.05 * 2 * 10.0 - 0.2)
    assert [s.name for s in router.rank({})] == ["large", "small"]
    assert [s.name for s in router.rank({"large": 1})] == ["small", "large"]
    router.observe("large", 30.0)
    assert router.latency("large") == 20.0
    assert [s.name for s in router.rank({})] == ["small", "large"]


def test_the_predictor_copies_the_nearest_of_its_task():
    nearest = NearestAnswer(KIND, farthest=3.0, capacity=2)
    assert nearest.predict(at(0.0)) is None
    nearest.learn(at(0.0), plan_to(1.0))
    nearest.learn(at(5.0), plan_to(2.0))
    assert nearest.mean_error is None  # neither was near the other
    assert nearest.predict(at(1.0)) == plan_to(1.0)
    assert nearest.predict(at(4.0)) == plan_to(2.0)
    assert nearest.predict(at(20.0)) is None
    assert nearest.predict(at(0.0, task="run")) is None
    nearest.learn(at(0.0), plan_to(4.0))
    assert nearest.mean_error == pytest.approx(3.0)
    assert nearest.predict(at(0.0)) == plan_to(4.0)  # the newer of two at one place


def test_questions_are_told_apart():
    tried = (Attempt(SubGoal((5.0, 5.0)), "no progress"),)
    one, other = at(0.0, heading=44.0), at(0.2, heading=-316.0)
    assert KIND.exact(one) != KIND.exact(other)
    assert KIND.bucket(one) == KIND.bucket(other)
    for different in (at(0.0), at(3.0, heading=44.0), at(0.0, heading=44.0, attempts=tried)):
        assert KIND.bucket(one) != KIND.bucket(different)


def test_plans_are_written_down_and_read_back():
    plan = Plan((SubGoal((1.5, -2.0), 0.5, -90.0), SubGoal((3.0, 4.0))), "m")
    assert KIND.load(KIND.dump(plan)) == plan
    nan = {"sub_goals": [{"target": [math.nan, 0], "radius": 1}], "source": "m"}
    for data in (None, [], {}, {"sub_goals": [], "source": "m"}, {"sub_goals": [1]}, nan):
        with pytest.raises(ValueError, match="not a plan"):
            KIND.load(data)


def test_ways_are_compared_along_their_length():
    straight = Plan((SubGoal((0.0, 0.0)), SubGoal((10.0, 0.0))), "a")
    more_points = Plan((SubGoal((0.0, 0.0)), SubGoal((3.0, 0.0)), SubGoal((10.0, 0.0))), "b")
    beside = Plan((SubGoal((0.0, 2.0)), SubGoal((10.0, 2.0))), "c")
    assert KIND.difference(straight, more_points) == pytest.approx(0.0, abs=1e-12)
    assert KIND.difference(straight, beside) == pytest.approx(2.0)


def test_after_the_end_nothing_is_asked():
    gate = Gate()
    guidance = service(Source("slow", gate))
    guidance.ask(at(0.0))
    gate.started.acquire(timeout=60)
    assert not guidance.close(timeout=0.0)  # it cannot be cut short
    gate.open.release()
    assert guidance.close(timeout=60)
    with pytest.raises(RuntimeError, match="closed"):
        guidance.ask(at(0.0))


def test_a_call_that_can_be_stopped_is():
    stopped = threading.Event()

    def until_stopped(query):
        stopped.wait(60)

    guidance = service(Source("slow", until_stopped, stop=stopped.set))
    guidance.ask(at(0.0))
    assert guidance.close()


def test_a_call_that_hangs_does_not_keep_the_process_alive():
    program = (
        "import threading\n"
        "from jaxagent.planning.goal_planner import Situation\n"
        "from jaxagent.planning.serving.queries import PlanQueries\n"
        "from jaxagent.planning.serving.router import Router, Source\n"
        "from jaxagent.planning.serving.service import GuidanceService\n"
        "begun = threading.Event()\n"
        "def hang(query):\n"
        "    begun.set()\n"
        "    threading.Event().wait(600)\n"
        "guidance = GuidanceService(PlanQueries(), Router([Source('s', hang)]))\n"
        "guidance.ask(Situation('t', (0.0, 0.0)))\n"
        "begun.wait(60)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Router([]), "at least one"),
        (lambda: Router([Source("a", at_once), Source("a", at_once)]), "each name once"),
        (lambda: Router([Source("a", at_once)], smoothing=0.0), r"smoothing \(0.0\)"),
        (lambda: Source("a", at_once, quality=math.nan), r"quality \(nan\) must be finite"),
        (lambda: Source("a", at_once, cost=-1.0), r"cost \(-1.0\) must be finite, at least 0"),
        (lambda: ServiceSettings(timeout=0.0), r"timeout \(0.0\) must be greater than 0"),
        (lambda: PlanQueries(metres=0.0), r"metres \(0.0\)"),
        (lambda: NearestAnswer(KIND, farthest=-1.0), r"farthest \(-1.0\)"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
