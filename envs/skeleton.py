"""The shape of a Brax environment's bodies, for drawing."""

# MuJoCo is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

import mujoco
import numpy as np

from envs.brax_env import BraxSimulator
from jaxagent.types import Skeleton

_CAPSULE, _SPHERE = int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_SPHERE)
_PLANE = int(mujoco.mjtGeom.mjGEOM_PLANE)


def skeleton(simulator: BraxSimulator, pose: np.ndarray) -> Skeleton:
    """Place every geometry of the model along a sequence of poses.

    Spheres and capsules are exact; boxes, cylinders and ellipsoids become their long axis.

    Args:
        simulator: the environment that was played.
        pose: [L, Q] generalised coordinates.
    """
    model = simulator.brax.sys.mj_model
    data = mujoco.MjData(model)
    drawn = [g for g in range(model.ngeom) if model.geom_type[g] != _PLANE]
    radius, half = zip(*(_thickness(model, g) for g in drawn))
    frames = np.empty((len(pose), len(drawn), 2, 3), np.float32)
    for frame, q in enumerate(pose):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        for i, g in enumerate(drawn):
            along = data.geom_xmat[g].reshape(3, 3) @ half[i]
            frames[frame, i] = data.geom_xpos[g] - along, data.geom_xpos[g] + along
    return Skeleton(frames, np.array(radius, np.float32), simulator.control_seconds)


def _thickness(model, geom: int) -> tuple[float, np.ndarray]:
    """Radius, and half the axis in the geometry's own frame."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == _SPHERE:
        return float(size[0]), np.zeros(3)
    if kind == _CAPSULE:
        return float(size[0]), np.array([0.0, 0.0, size[1]])
    longest = int(np.argmax(size))
    axis = np.zeros(3)
    axis[longest] = size[longest]
    others = [s for i, s in enumerate(size) if i != longest and s > 0]
    return float(min(others, default=size[longest])), axis
