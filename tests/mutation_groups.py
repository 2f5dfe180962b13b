"""What is mutated, by what, and which tests judge it (see `tests/mutate.py`)."""

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OPERATORS: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
CALLS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "cummin": "cummax",
    "cummax": "cummin",
    "segment_min": "segment_max",
    "any": "all",
    "all": "any",
}
# Names of the same type, one of which is easily taken for the other: how parts are wired.
NAMES = {
    "target_critic_params": "critic_params",
    "next_observation": "observation",
    "next_features": "features",
    "next_achieved_goal": "achieved_goal",
    "next_body": "body",
    "terminated": "truncated",
    "truncated": "terminated",
    "episode_end": "terminated",
    "temperature_optimiser": "policy_optimiser",
}


class Group(NamedTuple):
    """Files that are mutated together.

    Attributes:
        folder: where they lie.
        tests: of every file, those that know it best, fastest first; what follows a "::" of a
            path is an expression for pytest's -k.
    """

    folder: str
    tests: Mapping[str, Sequence[str]]


PURE = ("jax.test_util", "jaxtyping", "beartype.door", "hypothesis.extra.numpy", "pytest")
OF_LOSSES = {
    name: [f"losses/test_{name}.py"]
    for name in (
        "advantages", "credit", "distributions", "divergence", "group", "guidance", "hae",
        "hindsight", "ppo", "preference", "sac", "schedules", "sources", "tokens",
    )
} | {
    "contract": [f"losses/test_{name}.py" for name in ("contract", "credit", "group")],
    "imitation": ["losses/test_tokens.py"],
    "segments": ["losses/test_credit.py"],
}  # fmt: skip
GROUPS = {
    "losses": Group("jaxagent/losses", OF_LOSSES),
    "agents": Group(
        "jaxagent/agents",
        {
            "behaviour_cloning": ["agents/test_behaviour_cloning.py"],
            "hierarchy": ["agents/test_hierarchy.py"],
            "hindsight": ["agents/test_hindsight.py"],
            "manager": ["agents/test_manager.py"],
            "planner": ["agents/test_planner.py"],
            "ppo": ["agents/test_ppo.py"],
            "ppo_config": ["agents/test_ppo.py::hyper_parameters"],
            "sac_config": ["agents/test_hindsight.py::refused", "agents/test_sac.py::fresh"],
            "sac_her": ["agents/test_sac.py"],
            "text_hierarchy": ["agents/test_text_hierarchy.py"],
        },
    ),
    "guidance": Group(
        "jaxagent/planning",
        {
            "guidance": ["planning/test_guidance.py", "planning/test_closed_paths.py"],
            "plan_guide": ["planning/test_plan_guide.py", "planning/test_changing_plans.py"],
            "device_plan": ["planning/test_guidance.py", "planning/test_changing_plans.py"],
            "plans": ["planning/test_plans.py"],
            "rules": ["planning/test_plans.py", "planning/test_parse.py"],
        },
    ),
    "replay": Group(
        "jaxagent",
        {
            "replay": ["test_replay.py", "agents/test_hindsight.py"],
            "rollout": ["agents/test_ppo.py::recorded or successor", "agents/test_ppo.py"],
        },
    ),
    "household": Group(
        "envs/household",
        {
            "engine": ["text/test_engine.py", "text/test_engine_properties.py"],
            "state": ["text/test_engine.py"],
            "goal": ["text/test_engine.py", "text/test_engine_properties.py"],
            "describe": ["text/test_engine.py", "text/test_wording.py"],
            "wording": ["text/test_wording.py", "text/test_engine.py"],
        },
    ),
}
