"""Pictures of a manager's course: the body from one side, and the paths from above."""

import math
import pathlib
from typing import Any

import numpy as np

from envs.brax_env import BraxSimulator
from envs.course import Course
from envs.skeleton import skeleton
from jaxagent.training.plots import plot_paths
from jaxagent.training.render import write_gif, write_html
from jaxagent.training.trainer import Evaluation
from jaxagent.types import Simulator

PATHS_DRAWN = 24


def picture(folder: pathlib.Path, simulator: Simulator, evaluation: Evaluation, title: str) -> None:
    """Write rollout.gif, rollout.html and paths.png of an evaluation's first seed."""
    body: Any = simulator
    while not isinstance(body, BraxSimulator) and hasattr(body, "simulator"):
        body = body.simulator
    if isinstance(body, BraxSimulator):
        poses = np.asarray(evaluation.pose)[0, 0, : int(evaluation.episode_length[0, 0])]
        # Of a manager's decision there are as many as the skill has made steps.
        drawn = skeleton(body, poses.reshape(-1, poses.shape[-1]))
        write_gif(folder / "rollout.gif", drawn, title)
        write_html(folder / "rollout.html", drawn, title)
    draw_paths(folder / "paths.png", evaluation, title)


def draw_paths(path: pathlib.Path, evaluation: Evaluation, title: str) -> None:
    """The paths of an evaluation's first seed from above; walls are rows of small circles."""
    course = Course(BraxSimulator("ant"))
    paths = np.asarray(evaluation.path)[0, :PATHS_DRAWN]
    marks = [(*course.target, course.radius)]
    for x0, y0, x1, y1 in course.walls:
        for share in np.linspace(0.0, 1.0, 2 + round(5 * math.dist((x0, y0), (x1, y1)))):
            marks.append((x0 + share * (x1 - x0), y0 + share * (y1 - y0), 0.05))
    plot_paths(path, paths, marks, title)
