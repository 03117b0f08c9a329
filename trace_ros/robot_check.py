"""Whether a robot's files make sense: one verdict a subject, in plain words, from the YAML and the URDF alone.

`RobotDescription.load` refuses files that contradict each other. What is looked at here loads, and may still be wrong:
swapped legs, a foot's radius, masses, limits, a posture that does not stand, the IMU's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS
from trace_ros.robot import LEG_NAMES, RobotDescription
from trace_ros.urdf import MOVING, Urdf

FloatArray = NDArray[np.float64]
Level = Literal["ok", "warning", "fault"]

# What counts as equal: lengths (m), angles (rad), and parts of a whole.
_LENGTH, _ANGLE, _PART = 0.002, 0.02, 0.02
# An axis counts as that of a direction within 25 degrees.
_ALIGNED = np.cos(np.radians(25.0))
# Support: the centre of mass should be this far inside the feet (m).
_SUPPORT_MARGIN = 0.01
# A leg that is longer than this part of its full length is near its singularity.
_STRETCHED = 0.98
# Masses outside are taken for a slip of the pen (kg).
_PLAUSIBLE_MASS = (1.0, 500.0)


@dataclass(frozen=True)
class Verdict:
    """What was found: ``ok``; ``warning``: look at it; ``fault``: this will not work."""

    level: Level
    subject: str
    text: str


def check_robot(robot: RobotDescription) -> list[Verdict]:
    """All verdicts on a robot's YAML and URDF, in the order in which one would mend them."""
    model = robot.model
    checks = (
        _joints,
        _messages,
        _limits,
        _torque,
        _feet,
        _stance,
        _balance,
        _symmetry,
        _masses,
        _inertia,
        _tree,
        _shapes,
        _imu,
    )
    return [verdict for check in checks for verdict in check(robot, model)]


def _all_ok(verdicts: Iterable[Verdict], subject: str, text: str) -> Iterator[Verdict]:
    """The verdicts, or that all is well when there are none."""
    found = list(verdicts)
    yield from found or [Verdict("ok", subject, text)]


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _joints(robot: RobotDescription, _model: Urdf) -> Iterator[Verdict]:
    """Directions of the joints' axes: about x at the hip, about y at thigh and calf, alike on all legs."""
    _, _, angular = robot.kinematics.forward_and_jacobians(robot.nominal_joint_positions)
    signs: dict[str, dict[str, list[str]]] = {}
    for slot, part in enumerate(("hip", "thigh", "calf")):
        for leg, name in enumerate(LEG_NAMES):
            axis = angular[0, leg, :, slot]
            expected = 0 if slot == 0 else 1
            if abs(axis[expected]) < _ALIGNED:
                text = np.array2string(axis, precision=2, suppress_small=True)
                yield Verdict(
                    "warning",
                    "joint axes",
                    f"{robot.legs[name].joints[slot]} turns about {text} in the body, a {part} usually about "
                    f"{'xy'[expected]}: is this the {part} joint?",
                )
                return
            sign = f"{'+' if axis[expected] > 0 else '-'}{'xy'[expected]}"
            signs.setdefault(part, {}).setdefault(sign, []).append(name)
    for part, found in signs.items():
        if len(found) > 1:
            sides = _names(f"{sign} on {' '.join(legs)}" for sign, legs in found.items())
            yield Verdict(
                "warning",
                "joint axes",
                f"{part} turns about {sides}: right only if the robot's own joint messages are mirrored in this way",
            )
    if all(len(found) == 1 for found in signs.values()):
        yield Verdict("ok", "joint axes", _names(f"{part} {next(iter(found))}" for part, found in signs.items()))


def _messages(robot: RobotDescription, _model: Urdf) -> Iterator[Verdict]:
    """Names, signs and offsets of the joint states, where they are not the URDF's."""
    given = robot.joint_messages
    signs = [name for name, sign in given.sign.items() if sign < 0]
    parts = [
        *[f"{len(given.names)} other names"] * bool(given.names),
        *[f"other sign: {_names(signs)}"] * bool(signs),
        *[f"offsets: {_names(f'{name} {offset:+g} rad' for name, offset in given.offset.items())}"]
        * bool(given.offset),
    ]
    yield Verdict("ok", "joint states", "; ".join(parts) or "named and counted as in the URDF")


def _limits(robot: RobotDescription, _model: Urdf) -> Iterator[Verdict]:
    names, lower, upper = np.asarray(robot.joint_names), robot.kinematics.lower_limit, robot.kinematics.upper_limit
    nominal = robot.nominal_joint_positions

    def verdicts() -> Iterator[Verdict]:
        if (empty := lower >= upper).any():
            yield Verdict("fault", "joint limits", f"lower is not below upper: {_names(names[empty])}")
        if (outside := (nominal < lower) | (nominal > upper)).any():
            yield Verdict(
                "fault",
                "joint limits",
                f"nominal_joint_position lies outside the URDF's limits: {_names(names[outside])}",
            )
        if (unlimited := ~(np.isfinite(lower) & np.isfinite(upper))).any():
            yield Verdict("warning", "joint limits", f"the URDF has none for {_names(names[unlimited])}")

    room = float(np.minimum(nominal - lower, upper - nominal).min())
    yield from _all_ok(verdicts(), "joint limits", f"the nominal position keeps {room:.2f} rad from all of them")


def _torque(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    """Limits of YAML and URDF, and whether they carry the robot: J^T of a quarter of its weight on each foot."""
    limits = robot.torque_limits

    def verdicts() -> Iterator[Verdict]:
        for name, limit in zip(robot.joint_names, limits, strict=True):
            effort = model.joints[name].limit(model.path, "effort", 0.0)
            if effort > 0 and abs(effort - limit) > _PART * limit:
                yield Verdict(
                    "warning",
                    "torque limits",
                    f"{name}: {limit:g} N m in the robot file, {effort:g} in the URDF; the robot file's is used",
                )
                return

    needed = _standing_torque(robot)
    if (weak := np.flatnonzero(needed > limits)).size:
        names = _names(np.asarray(robot.joint_names)[weak])
        yield Verdict(
            "fault", "torque limits", f"too low to stand in the nominal position: {names} ({needed[weak[0]]:.1f} N m)"
        )
        return
    worst = int(np.argmax(needed / limits))
    sag = needed[worst] / robot.control.kp
    yield from _all_ok(
        verdicts(),
        "torque limits",
        f"standing takes {needed[worst]:.1f} of {limits[worst]:g} N m at {robot.joint_names[worst]}"
        f" ({sag:.2f} rad of give at kp {robot.control.kp:g})",
    )


def _standing_torque(robot: RobotDescription) -> FloatArray:
    """(12,) N m, absolute, with the weight shared evenly; the legs' own weight counts as the body's."""
    _, linear, _ = robot.kinematics.forward_and_jacobians(robot.nominal_joint_positions)
    force = np.array([0.0, 0.0, robot.mass * GRAVITY / LEGS])
    return np.abs(np.einsum("lij,i->lj", linear[0], force)).reshape(JOINTS)


def _feet(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    def verdicts() -> Iterator[Verdict]:
        for foot in robot.foot_links:
            shapes = model.links[foot].collisions
            if not shapes:
                yield Verdict(
                    "fault", "feet", f"{foot} has no collision shape: give it a sphere of foot_radius, not the calf"
                )
                return
            first = shapes[0]
            if first.kind != "sphere":
                yield Verdict("warning", "feet", f"{foot} is a {first.kind}: contact points are computed for a sphere")
                return
            if first.radius is not None and abs(first.radius - robot.foot_radius) > _PART * robot.foot_radius:
                yield Verdict(
                    "fault",
                    "feet",
                    f"{foot} is a sphere of {first.radius:g} m, foot_radius says {robot.foot_radius:g}",
                )
                return
            if (offset := float(np.linalg.norm(first.origin))) > _LENGTH:
                yield Verdict(
                    "fault",
                    "feet",
                    f"{foot}'s sphere is {offset:.3f} m off the link's origin: the origin must be the foot's centre",
                )
                return

    yield from _all_ok(verdicts(), "feet", f"spheres of {robot.foot_radius:g} m around the foot links' origins")


def _stance(robot: RobotDescription, _model: Urdf) -> Iterator[Verdict]:
    """Where the feet are in the nominal position: under the right corners, level, legs bent."""
    feet = robot.kinematics.forward(robot.nominal_joint_positions)[0]
    place = dict(zip(LEG_NAMES, feet, strict=True))

    def verdicts() -> Iterator[Verdict]:
        if (feet[:, 2] > 0).any():
            high = _names(leg for leg in LEG_NAMES if place[leg][2] > 0)
            yield Verdict("fault", "stance", f"feet above the body: {high}; z must point up, and the body's x ahead")
            return
        for one, other, axis, words in (
            *((f"F{side}", f"R{side}", 0, "ahead of") for side in "LR"),
            *((f"{end}L", f"{end}R", 1, "left of") for end in "FR"),
        ):
            if place[one][axis] <= place[other][axis]:
                yield Verdict(
                    "fault", "stance", f"foot {one} is not {words} foot {other}: legs swapped, or x not ahead"
                )
                return
        if (difference := float(np.ptp(feet[:, 2]))) > _LENGTH:
            lowest = LEG_NAMES[int(np.argmin(feet[:, 2]))]
            yield Verdict(
                "warning", "stance", f"feet are not level: {difference * 1e3:.0f} mm, {lowest} lowest; see the table"
            )
        reach = _extension(robot)
        if (long := reach > _STRETCHED).any():
            legs = _names(leg for leg, is_long in zip(LEG_NAMES, long, strict=True) if is_long)
            yield Verdict("warning", "stance", f"legs are stretched to {reach.max():.0%} ({legs}): bend the knees")

    yield from _all_ok(
        verdicts(),
        "stance",
        f"feet level, {robot.base_link} at {robot.standing_height:.4f} m, legs at {_extension(robot).max():.0%} of "
        "their length",
    )


def _extension(robot: RobotDescription) -> FloatArray:
    """(4,) distance from the thigh joint to the foot, as part of the most that the calf joint allows."""
    joints = np.tile(robot.nominal_joint_positions, (181, 1))
    joints[1:, 2::3] = np.linspace(-np.pi, np.pi, 180)[:, None]
    # A joint's column of the Jacobian is its axis crossed with the arm to the foot.
    _, linear, _ = robot.kinematics.forward_and_jacobians(joints)
    arm = np.linalg.norm(linear[..., 1], axis=-1)
    longest = arm[1:].max(axis=0)
    return np.asarray(arm[0] / np.maximum(longest, 1e-9))


def _balance(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    """Whether the centre of mass is over the feet in the nominal position."""
    if model.mass <= 0:
        return
    positions = dict(zip(robot.joint_names, robot.nominal_joint_positions, strict=True))
    centre = model.centre_of_mass(robot.base_link, positions)
    feet = dict(zip(LEG_NAMES, robot.kinematics.forward(robot.nominal_joint_positions)[0], strict=True))
    corners = [feet[leg][:2] for leg in ("FL", "RL", "RR", "FR")]  # seen from above, anticlockwise
    margin = min(_distance_inside(centre[:2], a, b) for a, b in zip(corners, [*corners[1:], corners[0]], strict=True))
    where = f"centre of mass at x {centre[0]:+.3f}, y {centre[1]:+.3f} m"
    if margin < 0:
        yield Verdict("fault", "balance", f"{where}: {-margin:.3f} m outside the feet, it falls over")
    elif margin < _SUPPORT_MARGIN:
        yield Verdict("warning", "balance", f"{where}: only {margin:.3f} m inside the feet")
    else:
        yield Verdict("ok", "balance", f"{where}, {margin:.3f} m inside the feet")


def _distance_inside(point: FloatArray, a: FloatArray, b: FloatArray) -> float:
    """Distance of a point to the left of the line from a to b (m)."""
    along = b - a
    return float((along[0] * (point[1] - a[1]) - along[1] * (point[0] - a[0])) / max(np.linalg.norm(along), 1e-9))


def _symmetry(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    """Left and right alike: places of the feet, and masses of the legs."""
    feet = dict(zip(LEG_NAMES, robot.kinematics.forward(robot.nominal_joint_positions)[0], strict=True))
    mass = {leg: _hanging_mass(model, robot.legs[leg].joints[0]) for leg in LEG_NAMES}
    pairs = (("FL", "FR"), ("RL", "RR"))

    def verdicts() -> Iterator[Verdict]:
        for left, right in pairs:
            mirrored = feet[right] * (1, -1, 1)
            if (apart := float(np.abs(feet[left] - mirrored).max())) > _LENGTH:
                yield Verdict("warning", "symmetry", f"{left} and {right} are not mirrored: {apart * 1e3:.0f} mm apart")
            if abs(mass[left] - mass[right]) > _PART * max(mass[left], mass[right]):  # type: ignore[index]
                yield Verdict(
                    "warning",
                    "symmetry",
                    f"leg {left} has {mass[left]:.3f} kg, {right} {mass[right]:.3f}",  # type: ignore[index]
                )

    front, rear = mass["FL"], mass["RL"]
    legs = (
        f"{front:.3f} kg a leg" if abs(front - rear) <= _PART * front else f"{front:.3f} kg in front, {rear:.3f} behind"
    )
    yield from _all_ok(verdicts(), "symmetry", f"left mirrors right, {legs}")


def _hanging_mass(model: Urdf, joint: str) -> float:
    """kg, of all that a joint carries."""
    link = model.joints[joint].child
    below = [name for name, above in model.joints.items() if above.parent == link]
    return model.links[link].mass + sum(_hanging_mass(model, name) for name in below)


def _masses(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    if model.mass <= 0:
        yield Verdict("fault", "mass", "no link has an <inertial>: fine for the estimator, simulation needs them")
        return

    def verdicts() -> Iterator[Verdict]:
        for name in robot.joint_names:
            link = model.joints[name].child
            if sum(model.links[part].mass for part in model.below(link)) <= 0:
                yield Verdict("fault", "mass", f"link {link} moves but has no mass")
                return
        if not _PLAUSIBLE_MASS[0] <= model.mass <= _PLAUSIBLE_MASS[1]:
            yield Verdict("warning", "mass", f"{model.mass:.3g} kg in all: are these kilograms?")

    base = sum(model.links[part].mass for part in model.below(robot.base_link))
    yield from _all_ok(verdicts(), "mass", f"{model.mass:.3f} kg, of which {base:.3f} {robot.base_link}")


def _inertia(_robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    """Positive, and no principal moment larger than the two others together: what a rigid body can have."""
    if model.mass <= 0:
        return

    def verdicts() -> Iterator[Verdict]:
        for link in model.links.values():
            moments = np.linalg.eigvalsh(link.inertia)
            if link.mass <= 0:
                continue
            if moments[0] <= 0:
                yield Verdict(
                    "fault", "inertia", f"{link.name}: not positive (smallest moment {moments[0]:.2g} kg m^2)"
                )
                return
            if moments[2] > (moments[0] + moments[1]) * 1.001:
                largest, rest = moments[2], moments[0] + moments[1]
                yield Verdict(
                    "fault", "inertia", f"{link.name}: no body has moments of {largest:.2g} > {rest:.2g} kg m^2 (A + B)"
                )
                return

    yield from _all_ok(verdicts(), "inertia", "possible for rigid bodies, all links")


def _tree(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    def verdicts() -> Iterator[Verdict]:
        extra = [name for name, joint in model.joints.items() if joint.kind in MOVING and name not in robot.joint_names]
        if extra:
            yield Verdict(
                "fault", "links", f"other moving joints: {_names(extra)}; make them fixed in a URDF for simulation"
            )
        if len(model.roots) != 1:
            yield Verdict("fault", "links", f"{len(model.roots)} links hang on no other: {_names(model.roots)}")
        elif robot.base_link not in model.roots:
            root = model.roots[0]
            level: Level = "warning" if model.links[root].mass <= 0 else "fault"
            yield Verdict(
                level,
                "links",
                f"base_link {robot.base_link} hangs on {root}: MuJoCo allows that without mass, RaiSim does not",
            )

    yield from _all_ok(verdicts(), "links", f"{robot.base_link} is the root, {JOINTS} joints move")


def _shapes(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    def verdicts() -> Iterator[Verdict]:
        if meshes := [link.name for link in model.links.values() if any(s.kind == "mesh" for s in link.collisions)]:
            yield Verdict("fault", "shapes", f"collision meshes on {_names(meshes)}: use boxes, cylinders and spheres")
        if not any(model.links[part].collisions for part in model.below(robot.base_link)):
            yield Verdict("warning", "shapes", f"{robot.base_link} has no collision shape: falls show by tilt only")

    count = sum(len(link.collisions) for link in model.links.values())
    yield from _all_ok(verdicts(), "shapes", f"{count} collision shapes, no meshes")


def _imu(robot: RobotDescription, model: Urdf) -> Iterator[Verdict]:
    """The robot file's mounting against an IMU link, where the URDF has one."""
    x, y, z = robot.imu.position
    stated = f"at x {x:g}, y {y:g}, z {z:g} m"
    candidates = [name for name in model.links if "imu" in name.lower()]
    if len(candidates) != 1:
        which = "no link" if not candidates else f"{len(candidates)} links"
        yield Verdict("ok", "IMU", f"{stated}; {which} named imu in the URDF to compare with")
        return
    try:
        rotation, position = model.pose(robot.base_link, candidates[0], {})
    except TraceError:
        yield Verdict("warning", "IMU", f"{candidates[0]} does not hang on {robot.base_link}")
        return
    apart = float(np.abs(position - robot.imu.position).max())
    turned = float(np.arccos(np.clip((np.trace(rotation.T @ robot.rotation_body_imu.as_matrix()) - 1) / 2, -1, 1)))
    if apart > _LENGTH or turned > _ANGLE:
        found = np.array2string(position, precision=4, suppress_small=True)
        yield Verdict(
            "warning", "IMU", f"{stated}, but the URDF's {candidates[0]} is at {found}, turned by {turned:.2f} rad"
        )
    else:
        yield Verdict("ok", "IMU", f"{stated}, where the URDF has {candidates[0]}")
