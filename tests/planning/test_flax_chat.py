"""A Flax model as a planner: random weights plan nonsense, but only white-listed nonsense."""

import copy
import json
import pathlib
import subprocess
import sys

import jax
import pytest

from jaxagent.planning.asking import AskSettings
from jaxagent.planning.chat import ChatError, Message
from jaxagent.planning.flax_chat import FlaxChat, fingerprint
from jaxagent.planning.goal_planner import GoalPlanner, GoalTask
from jaxagent.planning.rules import RulePlanner
from jaxagent.planning.subgoal_planner import SubGoalPlanner
from jaxagent.planning.text_agent import PlannerView, Result
from jaxagent.planning.text_agent import RulePlanner as TextRules
from tests.models.llm.random_models import piece_tokenizer, random_model

ROOT = pathlib.Path(__file__).parents[2]
PROMPT = "[system]\nplan\n[user]\n$task $observation\n[turn]\n$results $observation\n"
SCHEMA = {
    "type": "object",
    "properties": {"go": {"enum": ["desk", "table", "fridge"]}},
    "required": ["go"],
    "additionalProperties": False,
}
HELLO = [Message("user", "look at the desk")]


@pytest.fixture(scope="module")
def chat():
    return FlaxChat(random_model(max_positions=4096), context=4096)


def test_a_schema_is_kept_whatever_the_weights(chat):
    said = {
        chat.complete(HELLO, max_tokens=40, schema=SCHEMA, temperature=5.0, seed=seed).text
        for seed in range(12)
    }
    assert {json.loads(text)["go"] for text in said} == {"desk", "table", "fridge"}


def test_seeds_decide_and_greedy_needs_none(chat):
    def say(**options):
        return chat.complete(HELLO, max_tokens=8, **options).text

    assert say(seed=1) == say(seed=2)
    assert say(seed=1, temperature=2.0) == say(seed=1, temperature=2.0)
    assert len({say(seed=seed, temperature=2.0) for seed in range(4)}) > 1


def test_a_plan_by_random_weights_is_on_the_white_list(tmp_path, chat):
    (tmp_path / "short.txt").write_text("[user]\n$task $observation $history\n")
    planner = GoalPlanner(
        chat,
        GoalTask("wander", most=2),
        RulePlanner((1.0, 1.0)),
        settings=AskSettings(temperature=3.0, max_tokens=200),
        prompt=str(tmp_path / "short.txt"),
    )
    plans = {planner.plan("wander", (0.0, 0.0)) for _ in range(5)}
    assert planner.log.summary()["accepted_share"] == 1.0
    assert len(plans) > 1
    for plan in plans:
        assert plan.source == chat.name
        assert all(abs(x) <= 20 for goal in plan.sub_goals for x in goal.target)


def view(turn):
    return PlannerView(
        "put a apple in fridge",
        f"You see a apple {turn}, and a desk 1.",
        (),
        (Result("take apple", "done"),) * turn,
        ("go to fridge 1",),
    )


def test_an_episode_is_read_once(tmp_path):
    (tmp_path / "short.txt").write_text(PROMPT)
    chat = FlaxChat(random_model(max_positions=4096), context=2048, conversations=2)
    planners = [
        SubGoalPlanner(
            chat,
            TextRules(),
            prompt=str(tmp_path / "short.txt"),
            settings=AskSettings(max_tokens=48, history=50),
        )
        for _ in range(2)
    ]
    planners[1].propose(view(0)._replace(task="find the desk and all that is on it"))
    planners[0].propose(view(0))
    before, read = chat.reused_tokens, []
    for turn in range(1, 5):
        planners[0].propose(view(turn))
        prompt = planners[0].log.summary()["prompt_tokens"]
        read.append(prompt)
    # Of each prompt all but the last exchange stood in the cache, the other episode's too.
    new = (read[-1] - read[0]) - (chat.reused_tokens - before)
    assert chat.reused_tokens > before
    assert new < 0.35 * (read[-1] - read[0])
    assert planners[0].log.summary()["accepted_share"] == 1.0
    reused = chat.reused_tokens
    planners[1].propose(view(1)._replace(task="find the desk and all that is on it"))
    assert chat.reused_tokens > reused + 20


def test_what_cannot_be_answered_is_a_chat_error_and_the_next_question_is_not(chat):
    for messages, options in (
        ([Message("user", "desk " * 5000)], {}),
        (HELLO, {"schema": SCHEMA}),
        (HELLO, {"schema": {"type": "tuple"}}),
    ):
        with pytest.raises(ChatError) as caught:
            chat.complete(messages, max_tokens=2, **options)
        assert caught.value.reason == "refused_request"
    assert chat.complete(HELLO, max_tokens=2).usage.completion_tokens <= 2


def test_tokens_are_counted_exactly(chat):
    assert chat.count_tokens(HELLO) == chat.complete(HELLO, max_tokens=1).usage.prompt_tokens


def test_models_of_one_name_are_told_apart(chat):
    assert chat.name.startswith("random-")
    assert chat.name == FlaxChat(random_model(max_positions=4096)).name
    changed = jax.tree.map(lambda x: x * 1.001, random_model().params)
    assert fingerprint(changed) != fingerprint(random_model().params)


def test_a_process_ends_in_the_middle_of_a_reply():
    """A thread inside device code when the interpreter ends would abort the process."""
    program = (
        "import threading, time\n"
        "from tests.models.llm.random_models import random_model\n"
        "from jaxagent.planning.chat import Message\n"
        "from jaxagent.planning.flax_chat import FlaxChat\n"
        "from jaxagent.planning.goal_planner import Situation\n"
        "from jaxagent.planning.serving.queries import PlanQueries\n"
        "from jaxagent.planning.serving.router import Router, Source\n"
        "from jaxagent.planning.serving.service import GuidanceService\n"
        "chat = FlaxChat(random_model(max_positions=4096), context=4096)\n"
        "begun = threading.Event()\n"
        "def ask(query):\n"
        "    begun.set()\n"
        "    chat.complete([Message('user', 'look')], max_tokens=3500)\n"
        "source = Source('flax', ask, stop=chat.stop)\n"
        "guidance = GuidanceService(PlanQueries(), Router([source]))\n"
        "guidance.ask(Situation('t', (0.0, 0.0)))\n"
        "begun.wait(60)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_after_stop_nothing_is_said():
    chat = FlaxChat(random_model())
    chat.stop()
    with pytest.raises(ChatError) as caught:
        chat.complete(HELLO, max_tokens=4)
    assert caught.value.reason == "stopped"


def test_a_template_that_knows_no_system_is_refused():
    model = random_model()
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    with pytest.raises(ValueError, match=r"chat template of random refuses .* no system here"):
        FlaxChat(model._replace(tokenizer=tokenizer))


def test_a_model_that_cannot_chat_is_refused():
    model = random_model()._replace(tokenizer=piece_tokenizer())
    with pytest.raises(ValueError, match="tokeniser of random has no chat template"):
        FlaxChat(model)
    with pytest.raises(ValueError, match=r"context \(0\) and conversations \(1\)"):
        FlaxChat(random_model(), context=0)
