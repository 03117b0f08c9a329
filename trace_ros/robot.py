"""A robot as the rest of the package knows it: one YAML file, one URDF, and the kinematics that follow from them.

Leg order FL, FR, RL, RR and joint order hip, thigh, calf hold everywhere inside the package; the YAML file says which
URDF joint and link fills each slot, so that every border (ROS message, bag, policy) can map by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import skew
from trace_ros.logs import JOINTS, LEGS
from trace_ros.resources import config_directory, read_yaml_on_base
from trace_ros.urdf import Urdf, UrdfJoint

FloatArray = NDArray[np.float64]
LegName = Literal["FL", "FR", "RL", "RR"]
LEG_NAMES: tuple[LegName, ...] = ("FL", "FR", "RL", "RR")
Triple = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0)]


def _all_four(value: Triple | dict[LegName, Triple]) -> Triple | dict[LegName, Triple]:
    if isinstance(value, dict) and (missing := [leg for leg in LEG_NAMES if leg not in value]):
        raise ValueError(f"legs {', '.join(missing)} are missing (give one triple, or one for each of FL, FR, RL, RR)")
    return value


def _file_name(value: str) -> str:
    if not value or value.startswith(".") or "/" in value or not value.isprintable():
        raise ValueError(f"{value!r} cannot name files and folders")
    return value


PerLeg = Annotated[Triple | dict[LegName, Triple], AfterValidator(_all_four)]
"""(hip, thigh, calf), the same for all legs or for each leg by its name."""

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def describe_validation_error(error: ValidationError) -> str:
    """One line for a pydantic error: the first faulty key with its path, and how many more there are."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "file"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}{more}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}{more}"


def every_joint(value: PerLeg) -> FloatArray:
    """(12,) in package order, of numbers that are one triple for all legs or one for each leg."""
    triples = [value[leg] if isinstance(value, dict) else value for leg in LEG_NAMES]
    return np.asarray(triples, dtype=float).reshape(JOINTS)


class LegDescription(BaseModel):
    """Names of one leg in the URDF: joints from the body outwards, and the link whose origin is the foot's centre."""

    model_config = _STRICT
    joints: tuple[str, str, str]
    foot_link: str


class ImuMounting(BaseModel):
    """Pose of the IMU in the body frame: metres, and roll, pitch, yaw in rad (fixed axes)."""

    model_config = _STRICT
    position: Triple = (0.0, 0.0, 0.0)
    rpy: Triple = (0.0, 0.0, 0.0)


class JointMessages(BaseModel):
    """How the robot's joint states differ from the URDF, by name of the URDF's joint.

    Attributes:
        names: how the joint states call a joint, where not as the URDF does.
        sign: -1 for a joint that the joint states count the other way round: position, velocity and effort.
        offset: rad, added to the position after the sign: ``URDF angle = sign * reported + offset``.
    """

    model_config = _STRICT
    names: dict[str, Annotated[str, Field(min_length=1)]] = {}
    sign: dict[str, Literal[-1, 1]] = {}
    offset: dict[str, Annotated[float, Field(ge=-2 * np.pi, le=2 * np.pi)]] = {}


class JointControl(BaseModel):
    """The joint controller on the robot: PD gains and torque limits (hip, thigh, calf)."""

    model_config = _STRICT
    kp: Positive
    kd: Annotated[float, Field(ge=0)]
    torque_limit: tuple[Positive, Positive, Positive]


class StationaryThresholds(BaseModel):
    """When the robot counts as standing still (the ZUPT-inspired clamp of the paper); all must hold for ``dwell``.

    Attributes:
        angular_velocity: largest norm of the gyro reading, rad/s.
        joint_velocity: largest absolute joint velocity, rad/s.
        acceleration: largest deviation of the specific force's norm from gravity, m/s^2.
        dwell: s; the conditions must have held this long without a break.
        smoothing: s; time constant of a low-pass on the readings before they are compared, 0 without. It decides how
            noisy sensors may be: 0.02 s takes white noise at 500 Hz down to a fifth.
        gyro_bias_memory: s of standing still over which the gyro's bias is averaged; 0 leaves the gyro as it is.
    """

    model_config = _STRICT
    angular_velocity: Positive = 0.05
    joint_velocity: Positive = 0.3
    acceleration: Positive = 0.5
    dwell: Annotated[float, Field(ge=0, le=3600)] = 0.1
    smoothing: Annotated[float, Field(ge=0, le=3600)] = 0.02
    gyro_bias_memory: Annotated[float, Field(ge=0, le=86400)] = 20.0


class RobotDescription(BaseModel):
    """Everything that the package knows of a robot (``config/robots/<name>.yaml`` and its URDF).

    Attributes:
        name: if not given, the stem of the file, or of its base; checkpoints carry it.
        urdf: path of the URDF, relative to the YAML file that names it.
        base_link: link whose motion is estimated.
        legs: the four legs by name.
        foot_radius: m, radius of the spherical foot around the foot link's origin.
        nominal_joint_position: rad, (hip, thigh, calf) of a standing leg; by leg where the legs differ.
        control: gains and limits of the joint controller.
        imu: mounting of the IMU in the body frame.
        joint_messages: how the robot's joint states differ from the URDF.
        stationary: thresholds of the stationary clamp.
        policy: policy file (relative to the YAML file that names it) that walks this robot in simulation, or None.
        other_policies: further policy files and the share of the rollouts that each walks; ``policy`` walks the rest,
            and all courses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ignored_types=(cached_property,))
    name: Annotated[str, AfterValidator(_file_name)]
    urdf: Path
    base_link: str = "base_link"
    legs: dict[LegName, LegDescription]
    foot_radius: Positive
    nominal_joint_position: PerLeg
    control: JointControl
    imu: ImuMounting = ImuMounting()
    joint_messages: JointMessages = JointMessages()
    stationary: StationaryThresholds = StationaryThresholds()
    policy: Path | None = None
    other_policies: dict[Path, Annotated[float, Field(gt=0, lt=1)]] = {}

    @model_validator(mode="after")
    def _policies_share_the_rollouts(self) -> RobotDescription:
        if self.other_policies and self.policy is None:
            raise ValueError("other_policies: there is no policy that walks the rest; name one as policy")
        if (whole := sum(self.other_policies.values())) >= 1:
            raise ValueError(f"other_policies: their shares must leave some to policy, and add up to {whole:g}")
        if self.policy in self.other_policies:
            raise ValueError(f"other_policies: {self.policy} is policy already, which walks what the others leave")
        return self

    @model_validator(mode="after")
    def _names_are_complete_and_unique(self) -> RobotDescription:
        if missing := [leg for leg in LEG_NAMES if leg not in self.legs]:
            raise ValueError(f"legs {', '.join(missing)} are missing (needs FL, FR, RL, RR)")
        names = [*self.joint_names, *self.foot_links]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named more than once: {', '.join(repeated)}")
        messages = self.joint_messages
        for key, given in (("names", messages.names), ("sign", messages.sign), ("offset", messages.offset)):
            if unknown := [name for name in given if name not in self.joint_names]:
                raise ValueError(f"joint_messages.{key}: no joint of the legs: {', '.join(unknown)}")
        reported = self.reported_joint_names
        if repeated := sorted({name for name in reported if reported.count(name) > 1}):
            raise ValueError(f"joint_messages.names: two joints are called {', '.join(repeated)}")
        return self

    @classmethod
    def load(cls, robot: str | Path) -> RobotDescription:
        """Load by name (``config/robots/<name>.yaml``) or from the path of a YAML file.

        A file may stand on another robot's: ``base: go2``, or the path of a file, and only what differs. It has that
        robot's name, and so its models, unless it gives another ``name``.

        Raises:
            TraceError: unknown robot (lists the known ones), unreadable file, unknown or bad key, or a URDF that
                lacks a joint or link that the YAML names.
        """
        path = Path(robot)
        shipped = config_directory() / "robots"
        if path.suffix not in (".yaml", ".yml"):
            path = shipped / f"{robot}.yaml"
            if not path.is_file():
                known = ", ".join(available_robots()) or "none"
                raise TraceError(
                    f"unknown robot {str(robot)!r}: known are {known}; or give the path of a robot's YAML file"
                )
        data = read_yaml_on_base(path, shipped, _placed)
        if not isinstance(data, dict):
            raise TraceError(f"{path}: expected keys and values, found {type(data).__name__}")
        try:
            description = cls.model_validate(data)
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error
        _ = description.kinematics  # a URDF that does not fit must fail here, not at the first step
        return description

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The 12 joint names in package order (FL, FR, RL, RR; hip, thigh, calf)."""
        return tuple(joint for leg in LEG_NAMES for joint in self.legs[leg].joints)

    @property
    def reported_joint_names(self) -> tuple[str, ...]:
        """The 12 names in the robot's joint states, in package order."""
        return tuple(self.joint_messages.names.get(name, name) for name in self.joint_names)

    def reported_joint(self, slot: int) -> str:
        """How the joint states tell one of the 12 joints, as a term: ``-FL_calf_joint +0.05 rad``."""
        sign, offset = self.joint_signs[slot], self.joint_offsets[slot]
        shift = f" {offset:+g} rad" if offset else ""
        return f"{'-' if sign < 0 else ''}{self.reported_joint_names[slot]}{shift}"

    @property
    def joint_signs(self) -> FloatArray:
        """(12,) 1 or -1: ``URDF angle = sign * reported + offset``."""
        return np.array([float(self.joint_messages.sign.get(name, 1)) for name in self.joint_names])

    @property
    def joint_offsets(self) -> FloatArray:
        """(12,) rad: ``URDF angle = sign * reported + offset``."""
        return np.array([self.joint_messages.offset.get(name, 0.0) for name in self.joint_names])

    @property
    def foot_links(self) -> tuple[str, ...]:
        """The four foot links in package order."""
        return tuple(self.legs[leg].foot_link for leg in LEG_NAMES)

    @property
    def nominal_joint_positions(self) -> FloatArray:
        """(12,) rad."""
        return every_joint(self.nominal_joint_position)

    @property
    def torque_limits(self) -> FloatArray:
        """(12,) N m."""
        return np.tile(np.asarray(self.control.torque_limit), LEGS)

    @property
    def rotation_body_imu(self) -> Rotation:
        """Takes IMU vectors to the body frame."""
        return Rotation.from_euler("xyz", self.imu.rpy)

    @cached_property
    def model(self) -> Urdf:
        """The URDF's links and joints."""
        return Urdf.read(self.urdf)

    @property
    def mass(self) -> float:
        """kg, of all links in the URDF."""
        return self.model.mass

    @property
    def standing_height(self) -> float:
        """m, of the base link's origin above level ground in the nominal position."""
        feet = self.kinematics.forward(self.nominal_joint_positions)[0]
        return self.foot_radius - float(feet[:, 2].min())

    @cached_property
    def kinematics(self) -> LegKinematics:
        """Kinematics of the four legs, read from the URDF."""
        return LegKinematics.from_urdf(self.model, self.base_link, self.joint_names, self.foot_links)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over what a trained network depends on: leg kinematics, foot radius and IMU mounting.

        Gains, limits and thresholds may be tuned without invalidating a checkpoint. Lengths are rounded to a
        micrometre, so that the digits do not depend on the machine's arithmetic.
        """
        essence = {
            "feet": np.round(self.kinematics.forward(np.linspace(-0.5, 0.5, JOINTS)[None])[0] + 0.0, 6).tolist(),
            "foot_radius": round(self.foot_radius, 6),
            "imu": [round(value, 6) for value in (*self.imu.position, *self.imu.rpy)],
        }
        return hashlib.sha256(json.dumps(essence, sort_keys=True).encode()).hexdigest()[:16]


def _placed(path: Path, own: dict[str, Any]) -> dict[str, Any]:
    """A robot file's keys, with paths that no longer depend on where it lies, and the name that it gives."""
    try:
        paths: dict[str, Any] = {
            key: str(_beside(path, own[key])) for key in ("urdf", "policy") if isinstance(own.get(key), str)
        }
        if isinstance(others := own.get("other_policies"), dict):
            resolved = {str(_beside(path, str(file))): share for file, share in others.items()}
            if len(resolved) < len(others):
                raise TraceError(f"{path}: other_policies names one file twice")
            paths["other_policies"] = resolved
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a zero byte
        raise TraceError(f"{path}: names a file that cannot be ({error})") from error
    return ({} if "base" in own else {"name": path.stem}) | own | paths


def _beside(path: Path, name: str) -> Path:
    """The file that a robot file names: beside it, or, where that is a link and there is none, beside what it links to,
    as its base is."""
    found = (path.parent / name).resolve()
    return found if found.exists() or not path.is_symlink() else (path.resolve().parent / name).resolve()


def available_robots() -> list[str]:
    """Names of the robots that ship with the package."""
    files = (config_directory() / "robots").glob("*.yaml")
    return sorted(path.stem for path in files if not path.stem.endswith("_policy"))


@dataclass(frozen=True)
class _ChainLink:
    """One URDF joint on the way from the body to a foot; ``joint`` is the slot among the 12, or None when fixed."""

    translation: FloatArray
    rotation: FloatArray
    axis: FloatArray
    joint: int | None


class LegKinematics:
    """Forward kinematics and geometric Jacobians of the four feet, vectorised over samples, in the body frame."""

    def __init__(self, chains: Sequence[Sequence[_ChainLink]], lower: FloatArray, upper: FloatArray) -> None:
        self._chains = chains
        self.lower_limit = lower
        """(12,) rad."""
        self.upper_limit = upper
        """(12,) rad."""

    @classmethod
    def from_urdf(
        cls, model: Urdf, base_link: str, joint_names: Sequence[str], foot_links: Sequence[str]
    ) -> LegKinematics:
        """Read the four chains from ``base_link`` to each foot link.

        Raises:
            TraceError: a name is missing, or a chain holds other moving joints than its three.
        """
        urdf = model.path
        if missing := [name for name in joint_names if name not in model.joints]:
            raise TraceError(
                f"{urdf}: joints {', '.join(missing)} are missing; it has {', '.join(sorted(model.joints))}"
            )
        if missing := [name for name in (base_link, *foot_links) if name not in model.links]:
            raise TraceError(f"{urdf}: links {', '.join(missing)} are missing; it has {', '.join(sorted(model.links))}")
        slots = {name: index for index, name in enumerate(joint_names)}
        chains = []
        for leg, foot in enumerate(foot_links):
            chain = [_chain_link(urdf, joint, slots) for joint in model.chain(base_link, foot)]
            moving = [piece.joint for piece in chain if piece.joint is not None]
            if moving != [3 * leg, 3 * leg + 1, 3 * leg + 2]:
                names = [joint_names[slot] for slot in moving]
                raise TraceError(
                    f"{urdf}: the chain to {foot} moves by {names}, expected {list(joint_names[3 * leg : 3 * leg + 3])}"
                )
            chains.append(chain)
        lower = np.array([model.joints[name].limit(urdf, "lower", -np.inf) for name in joint_names])
        upper = np.array([model.joints[name].limit(urdf, "upper", np.inf) for name in joint_names])
        return cls(chains, lower, upper)

    def forward(self, joint_position: FloatArray) -> FloatArray:
        """Foot-centre positions in the body frame (m). ``(N, 12) rad -> (N, 4, 3)``."""
        return self.forward_and_jacobians(joint_position)[0]

    def forward_and_jacobians(self, joint_position: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Foot-centre positions and geometric Jacobians of the foot links, in the body frame.

        Args:
            joint_position: (N, 12) rad.

        Returns:
            position (N, 4, 3) m; linear Jacobian (N, 4, 3, 3) and angular Jacobian (N, 4, 3, 3), whose last axis runs
            over the leg's three joints: ``v_foot = J_v dq_leg`` and ``w_foot = J_w dq_leg`` relative to the body.
        """
        q = np.atleast_2d(np.asarray(joint_position, dtype=float))
        n = q.shape[0]
        position = np.zeros((n, LEGS, 3))
        linear = np.zeros((n, LEGS, 3, 3))
        angular = np.zeros((n, LEGS, 3, 3))
        for leg, chain in enumerate(self._chains):
            rotation = np.broadcast_to(np.eye(3), (n, 3, 3))
            origin = np.zeros((n, 3))
            origins, axes = [], []
            for piece in chain:
                origin = origin + rotation @ piece.translation
                rotation = rotation @ piece.rotation
                if piece.joint is not None:
                    origins.append(origin)
                    axes.append(rotation @ piece.axis)
                    rotation = rotation @ _rotation_about(piece.axis, q[:, piece.joint])
            position[:, leg] = origin
            for joint, (at, axis) in enumerate(zip(origins, axes, strict=True)):
                linear[:, leg, :, joint] = np.cross(axis, origin - at)
                angular[:, leg, :, joint] = axis
        return position, linear, angular


def _rotation_about(axis: FloatArray, angle: FloatArray) -> FloatArray:
    """Rodrigues' formula for one unit axis and many angles. ``(3,), (N,) -> (N, 3, 3)``."""
    hat = skew(axis)
    return np.eye(3) + np.sin(angle)[:, None, None] * hat + (1 - np.cos(angle))[:, None, None] * (hat @ hat)


def _chain_link(urdf: Path, joint: UrdfJoint, slots: dict[str, int]) -> _ChainLink:
    if joint.kind == "fixed":
        return _ChainLink(joint.translation, joint.rotation, joint.axis, None)
    if joint.kind not in ("revolute", "continuous"):
        raise TraceError(
            f"{urdf}: joint {joint.name} is {joint.kind}; legs may hold revolute, continuous and fixed joints"
        )
    if joint.name not in slots:
        raise TraceError(f"{urdf}: joint {joint.name} moves a leg but the robot file does not name it")
    return _ChainLink(joint.translation, joint.rotation, joint.axis, slots[joint.name])
