"""Configurations that were written for a robot of one size, made to fit another.

Forces, masses, torques and the heights of obstacles in a simulation config suit a robot of a certain mass and height:
a push of 100 N topples a small robot and is nothing to a large one. `RobotSize` says for which robot the numbers were
chosen; `fit_to_robot` scales them: forces and masses with the robot's mass, lengths with its standing height, torques
with both. Times, speeds, angles, friction coefficients and whatever is a factor already stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.sim.ranges import STRICT

Positive = Annotated[float, Field(gt=0)]


class RobotSize(BaseModel):
    """The robot that a configuration's numbers were chosen for.

    Attributes:
        mass: kg.
        standing_height: m, of the base link's origin above the ground (`RobotDescription.standing_height`).
    """

    model_config = STRICT
    mass: Positive
    standing_height: Positive


_FORCE = _MASS = (1, 0)
_LENGTH = (0, 1)
_TORQUE = (1, 1)
_INERTIA = (1, 2)
SCALED: dict[str, tuple[int, int]] = {
    "contact_labels.on_force": _FORCE,
    "contact_labels.off_force": _FORCE,
    "randomization.dynamics.base_mass": _MASS,
    "randomization.dynamics.base_com_offset": _LENGTH,
    "randomization.dynamics.joint_friction": _TORQUE,
    "randomization.dynamics.joint_damping": _TORQUE,
    "randomization.dynamics.armature": _INERTIA,
    "randomization.push.force": _FORCE,
    "randomization.push.torque": _TORQUE,
    "randomization.push.longer.*.force": _FORCE,
    "randomization.push.longer.*.torque": _TORQUE,
    "sensors.torque_noise": _TORQUE,
    "terrain.perlin.amplitude": _LENGTH,
    "terrain.perlin.wavelength": _LENGTH,
    "terrain.perlin.cell": _LENGTH,
    "terrain.discrete.height": _LENGTH,
    "terrain.discrete.size": _LENGTH,
    "terrain.random_steps.height": _LENGTH,
    "terrain.random_steps.size": _LENGTH,
    "terrain.inclined_steps.height": _LENGTH,
    "terrain.inclined_steps.size": _LENGTH,
    "terrain.stairs.rise": _LENGTH,
    "terrain.stairs.tread": _LENGTH,
    "terrain.stairs.landing": _LENGTH,
}
"""Key of a simulation config or a course -> powers of the ratios of mass and of height that it is scaled by."""


SizedModel = TypeVar("SizedModel", bound=BaseModel)


def fit_to_robot(config: SizedModel, robot: RobotDescription) -> SizedModel:
    """The same configuration with every number of `SCALED` that it has made to fit a robot.

    Args:
        config: a model with ``sized_for``; where that is None, it comes back as it is.
        robot: whose mass and standing height count.

    Returns:
        A copy whose ``sized_for`` is None, so that nothing is scaled twice.

    Raises:
        TraceError: the robot's URDF has no masses.
    """
    size: RobotSize | None = getattr(config, "sized_for", None)
    if size is None:
        return config
    if robot.mass <= 0:
        raise TraceError(f"{robot.urdf}: no link has a mass: simulation needs them (<inertial> of each link)")
    # Rounded, so that the robot that the numbers were chosen for gets them unchanged.
    mass, height = round(robot.mass / size.mass, 3), round(robot.standing_height / size.standing_height, 3)
    data = config.model_dump()
    data["sized_for"] = None
    for key, (mass_power, height_power) in SCALED.items():
        _scale(data, key.split("."), mass**mass_power * height**height_power)
    return type(config).model_validate(data)


def _scale(data: Any, path: Sequence[str], factor: float) -> None:
    """Multiply what the path leads to in a dumped model; parts that the model does not have are passed over."""
    first, rest = path[0], path[1:]
    if first == "*":
        for element in data:
            _scale(element, rest, factor)
    elif isinstance(data, dict) and data.get(first) is not None:
        if rest:
            _scale(data[first], rest, factor)
        else:
            value = data[first]
            data[first] = [part * factor for part in value] if isinstance(value, (list, tuple)) else value * factor
