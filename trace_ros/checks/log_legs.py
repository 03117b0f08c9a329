"""Order and signs of the joints, and the IMU's heading in the body, by what standing feet tell.

A foot that stands gives the body's velocity, v = -(J dq + w x p). Those of all feet that stand agree, and change
little within a fifth of a second; feet in the air say anything. So the share of feet and times that agree on one
velocity (with a trend) is highest if joints and gyro are what they are taken for. Every swap, sign and mounting that
happens is tried, and one that fits significantly better is the cause. No contact sensor, torque or reference is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from trace_ros.checks.log_findings import FindingName, LogCheckSettings, LogReport
from trace_ros.checks.log_rest import moving_mask, windows
from trace_ros.geometry import so3_exp
from trace_ros.logs import JOINTS, LEGS, FloatArray, IntArray, SensorLog
from trace_ros.robot import LEG_NAMES, LegKinematics, RobotDescription

WINDOW = 0.2
"""s."""
_SAMPLES = 20
"""In a window, means of the log's."""
FEWEST_SAMPLES = 6
_MOST_WINDOWS = 150
FEWEST_WINDOWS = 12
_WIDTH = 0.1
"""m/s; feet agree that are as near."""
_ROUNDS = 8
_ALONG_Z = 0.8


@dataclass(frozen=True)
class Arrangement:
    """How joints and IMU may really be.

    Attributes:
        name: of the finding.
        text: in words, after "the legs fit better if".
        order: (12,) slot from which each joint's reading should be taken.
        sign: (12,) 1 or -1, of the readings.
        gyro: (3, 3) to be applied to the gyro.
        remedy: what to do.
    """

    name: FindingName
    text: str
    order: IntArray
    sign: FloatArray
    gyro: FloatArray
    remedy: str = ""


@dataclass(frozen=True)
class Strides:
    """Windows of a walk: W of n samples.

    Attributes:
        position, velocity: (W, n, 12) rad, rad/s.
        gyro: (W, n, 3) rad/s.
        interval: s between the n samples.
    """

    position: FloatArray
    velocity: FloatArray
    gyro: FloatArray
    interval: float

    @classmethod
    def at(cls, log: SensorLog, delays: Sequence[float]) -> Iterator[Strides]:
        """Those in which the robot moves, evenly chosen, with joints that were stamped so much later (s), for each of
        several delays."""
        moving = moving_mask(log)
        pieces = [piece for piece in windows(log, WINDOW) if moving[piece].all()]
        if len(pieces) > _MOST_WINDOWS:
            pieces = [pieces[k] for k in np.linspace(0, len(pieces) - 1, _MOST_WINDOWS).astype(int)]
        velocity = _joint_velocity(log)
        size = pieces[0].stop - pieces[0].start if pieces else _SAMPLES
        each = max(1, size // _SAMPLES)
        samples = size // each

        def means(values: FloatArray, delay: float = 0.0) -> FloatArray:
            rows = [
                _later(values, log.stamp_ns, piece, delay)[: samples * each].reshape(samples, each, -1).mean(axis=1)
                for piece in pieces
            ]
            return np.array(rows).reshape(len(pieces), samples, values.shape[1])

        gyro, interval = means(log.angular_velocity), WINDOW / size * each
        for delay in delays:
            yield cls(means(log.joint_position, delay), means(velocity, delay), gyro, interval)

    def __len__(self) -> int:
        return len(self.position)


def _joint_velocity(log: SensorLog) -> FloatArray:
    """(N, 12) as reported, and where it is not, the derivative of the positions, rad/s."""
    reported = log.joint_velocity
    if reported is not None and reported.any() and not np.isnan(reported).any():
        return reported
    derived = np.asarray(np.gradient(log.joint_position, (log.stamp_ns - log.stamp_ns[0]) * 1e-9, axis=0))
    if reported is None or not np.nan_to_num(reported).any():
        return derived
    return np.where(np.isnan(reported), derived, reported)


def _later(values: FloatArray, stamp_ns: IntArray, piece: slice, delay: float) -> FloatArray:
    """Rows of a piece as they are, or interpolated at stamps that are later by a delay, s; a log's last row is held."""
    if not delay:
        return values[piece]
    wanted = stamp_ns[piece] + round(delay * 1e9)
    after = np.clip(np.searchsorted(stamp_ns, wanted), 1, len(stamp_ns) - 1)
    span = stamp_ns[after] - stamp_ns[after - 1]
    weight = np.clip((wanted - stamp_ns[after - 1]) / span, 0.0, 1.0)[:, None]
    return np.asarray(values[after - 1] + weight * (values[after] - values[after - 1]))


def arrangements(robot: RobotDescription) -> Iterator[Arrangement]:
    """The one that is taken for true, and then all others that happen."""
    slots, plus, same = np.arange(JOINTS), np.ones(JOINTS), np.eye(3)
    yield Arrangement("legs_swapped", "", slots, plus, same)
    legs = slots.reshape(LEGS, 3)
    swaps = [(pair, f"{LEG_NAMES[pair[0]]} and {LEG_NAMES[pair[1]]} are swapped") for pair in combinations(range(4), 2)]
    orders: list[tuple[list[int], str]] = []
    for (first, second), text in swaps:
        order = list(range(LEGS))
        order[first], order[second] = second, first
        orders.append((order, f"legs {text}"))
    orders += [
        ([1, 0, 3, 2], "left and right legs are swapped (FL with FR, RL with RR)"),
        ([2, 3, 0, 1], "front and rear legs are swapped (FL with RL, FR with RR)"),
        ([3, 2, 1, 0], "legs are swapped across (FL with RR, FR with RL)"),
    ]
    for order, text in orders:
        remedy = "fill the joint states' names in the order of their values, or say under joint_messages.names which is"
        yield Arrangement("legs_swapped", text, legs[order].ravel(), plus, same, f"{remedy} which")
    for joint, name in enumerate(robot.joint_names):
        sign = plus.copy()
        sign[joint] = -1
        text = f"{name} counts the other way"
        remedy = f"joint_messages: {{sign: {{{name}: {-robot.joint_signs[joint]:+.0f}}}}} in the robot file"
        yield Arrangement("joint_sign", text, slots, sign, same, remedy)
    for angle in (90, -90, 180):
        turn = np.asarray(so3_exp(np.array([0.0, 0.0, np.radians(angle)])))
        text = f"the IMU is turned by {angle} degrees about z"
        remedy = (
            "turn the readings, or set the node's imu_mounting; another imu.rpy in the robot file needs a new model"
        )
        yield Arrangement("imu_turned", text, slots, plus, turn, remedy)
    for axis, name in enumerate("xyz"):
        mirror = np.eye(3)
        mirror[axis, axis] = -1
        text = f"the gyro's {name} counts the other way"
        yield Arrangement("gyro_sign", text, slots, plus, mirror, "turn the sign in the driver: right-handed axes")
    yield Arrangement(
        "gyro_sign", "the gyro counts all axes the other way", slots, plus, -same, "turn the signs in the driver"
    )


def agreement(
    kinematics: LegKinematics, strides: Strides, arrangement: Arrangement
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How well the feet agree in each window, if joints and IMU are arranged like that.

    Returns:
        (W,) share of feet and times that agree on one velocity, 0 to 1; (W, 4) the same of each leg; and (W, 3) that
        velocity, m/s, body frame.
    """
    position = (strides.position * arrangement.sign)[..., arrangement.order]
    velocity = (strides.velocity * arrangement.sign)[..., arrangement.order]
    gyro = strides.gyro @ arrangement.gyro.T
    count, samples = position.shape[:2]
    foot, jacobian, _ = kinematics.forward_and_jacobians(position.reshape(-1, JOINTS))
    moved = np.einsum("nlij,nlj->nli", jacobian, velocity.reshape(-1, LEGS, 3))
    body = -(moved + np.cross(gyro.reshape(-1, 1, 3), foot)).reshape(count, samples, LEGS, 3)
    # In the frame of the window's middle, so that a turning body does not make the velocity change.
    steps = np.cumsum(gyro, axis=1) * strides.interval
    told = np.einsum("wkij,wklj->wkli", so3_exp(steps - steps[:, samples // 2][:, None]), body)
    told = told.reshape(count, samples * LEGS, 3)
    basis = np.repeat(np.stack((np.ones(samples), np.linspace(-1, 1, samples)), axis=1), LEGS, axis=0)
    # A line through the mode: least squares with weights whose width shrinks from all that feet do to what standing
    # ones do (graduated, Blake and Zisserman 1987).
    line = np.zeros((count, 2, 3))
    line[:, 0] = np.median(told, axis=1)
    held = 1e-3 * samples * np.eye(2)
    for width in np.geomspace(1.0, _WIDTH, _ROUNDS):
        weight = _weights(told - basis @ line, float(width))
        normal = np.einsum("wi,ij,ik->wjk", weight, basis, basis) + held
        line = np.linalg.solve(normal, np.einsum("wi,ij,wic->wjc", weight, basis, told))
    weight = _weights(told - basis @ line, _WIDTH)
    return weight.mean(axis=1), weight.reshape(count, samples, LEGS).mean(axis=1), line[:, 0]


def _weights(difference: FloatArray, width: float) -> FloatArray:
    return np.asarray(np.exp(-0.5 * (difference**2).sum(axis=-1) / width**2))


def check_legs(
    log: SensorLog, robot: RobotDescription, report: LogReport, limits: LogCheckSettings, joint_delay: float = 0.0
) -> None:
    """Find swapped legs, reversed joints, and a gyro in other axes than the legs; its joints may be late (s)."""
    suspects: tuple[FindingName, ...] = ("gyro_units", "velocity_wrong", "velocity_zero")
    wrong = [name for name in suspects if report.is_fault(name)]
    if report.is_fault("gravity") and _lies(log):
        wrong.append("gravity")
    if wrong:
        report.fact("legs", f"order and signs are not judged before {', '.join(wrong)} is mended")
        return
    strides = next(Strides.at(log, [joint_delay]))
    if len(strides) < FEWEST_WINDOWS or strides.position.shape[1] < FEWEST_SAMPLES:
        report.fact("legs", "too little walking, or too few samples of it, to tell order and signs of the joints")
        return
    taken, *others = arrangements(robot)
    share, legs, speed = agreement(robot.kinematics, strides, taken)
    way = float(np.linalg.norm(speed[:, :2], axis=1).mean())
    report.values["legs"] = {"agreement": float(share.mean()), "each": legs.mean(axis=0).tolist(), "speed_mps": way}
    told = ", ".join(f"{leg} {part:.2f}" for leg, part in zip(LEG_NAMES, legs.mean(axis=0), strict=True))
    report.fact("legs", f"feet agree on one velocity for {share.mean():.2f} of the time ({told}); mean {way:.2f} m/s")
    better: list[tuple[float, float, Arrangement]] = []
    for other in others:
        gain = agreement(robot.kinematics, strides, other)[0] - share
        error = float(gain.std(ddof=1)) / np.sqrt(len(gain))
        if gain.mean() > 0 and gain.mean() > limits.leg_evidence * error:
            better.append((float(gain.mean()), float(gain.mean()) / error, other))
    if not better:
        return
    # Of several that fit better than what is taken for true, the best is the cause; the others share some of it.
    most, evidence, cause = max(better, key=lambda item: item[0])
    report.find(
        "fault",
        cause.name,
        "legs",
        f"{cause.text}: then the feet agree on the body's velocity for {share.mean() + most:.2f} of the time instead "
        f"of {share.mean():.2f} ({evidence:.1f} standard errors)",
        cause.remedy,
    )
    # Where the feet seem to be follows from it.
    report.findings = [
        finding for finding in report.findings if finding.level == "fault" or finding.name not in ("gravity", "feet")
    ]


def _lies(log: SensorLog) -> bool:
    """Whether gravity is far from the body's z axis, either way: the gyro is then in other axes too."""
    force = log.linear_acceleration.mean(axis=0)
    return bool(abs(force[2]) < _ALONG_Z * np.linalg.norm(force))
