"""References with everything that can be wrong with them, against the truth that they were made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from motions import IMU_POSITION, START_NS, Motion
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.references import ReferenceSettings, RigidOffset, clean_reference, disagrees, estimate_clock_offset, torn
from trace_ros.references.attitude import GyroAttitude

LOGS = {seed: Motion(seed).log() for seed in range(3)}
few = settings(max_examples=5, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
seeds = st.sampled_from(sorted(LOGS))
angle = st.floats(-0.5, 0.5)


def attitude(log: SensorLog) -> GyroAttitude:
    return GyroAttitude(log.stamp_ns, log.angular_velocity)


def off_truth(clean, motion: Motion) -> tuple[float, float]:
    """Root mean square of position (m) and angle (rad) after the best translation and yaw."""
    found = clean.trajectory()
    truth = motion.truth(found.stamp_ns)
    difference = truth.rotation_world_body * found.rotation_world_body.inv()
    yaw = Rotation.from_euler("z", difference.mean().as_euler("xyz")[2])
    place = yaw.apply(found.position)
    place += (truth.position - place).mean(axis=0)
    turned = (yaw * found.rotation_world_body).inv() * truth.rotation_world_body
    return (
        float(np.sqrt(((place - truth.position) ** 2).sum(axis=1).mean())),
        float(np.sqrt((turned.magnitude() ** 2).mean())),
    )


def test_the_gyro_alone_gives_the_attitude() -> None:
    log = Motion(0).log(noise=0.0)
    found = attitude(log)
    t = np.linspace(0.1, 19.0, 50)
    motion = Motion(0)
    truth = motion.rotation(np.zeros(1)).inv() * motion.rotation(t)
    assert (found.at(t).inv() * truth).magnitude().max() < 1e-3


@few
@given(seeds, st.floats(-1.5, 1.5), st.sampled_from([(10.0, 0.02, 0.005), (200.0, 0.002, 0.002), (30.0, 0.01, 0.01)]))
def test_the_clock_is_found_to_milliseconds(seed: int, late: float, kind: tuple[float, float, float]) -> None:
    rate, _, noise = kind
    reference = Motion(seed).reference(rate=rate, late=late, angle_noise=noise)
    clock = estimate_clock_offset(reference, attitude(LOGS[seed]))
    assert clock.reliable
    assert abs(clock.latency - late) < 0.008
    assert abs(clock.latency - late) < 5 * clock.sigma
    assert clock.sigma < 0.01


@few
@given(seeds, st.floats(-0.4, 0.4), angle, angle, st.floats(-3, 3))
def test_the_turn_of_its_body_is_found_with_the_clock(
    seed: int, late: float, roll: float, pitch: float, yaw: float
) -> None:
    turn = Rotation.from_euler("xyz", (roll, pitch, yaw))
    reference = Motion(seed).reference(late=late, turn=turn, world=Rotation.from_euler("z", 2.0))
    clock = estimate_clock_offset(reference, attitude(LOGS[seed]))
    error = (clock.rotation * turn.inv()).as_rotvec()
    assert np.linalg.norm(error) < 0.05
    assert error @ np.linalg.solve(clock.rotation_covariance, error) < 40
    assert abs(clock.latency - late) < 0.01


def test_clocks_of_different_epochs_meet() -> None:
    reference = Motion(1).reference(late=86_400.25)
    clean = clean_reference(reference, LOGS[1])
    assert clean.clock is not None
    assert abs(clean.clock.latency - 86_400.25) < 0.01
    assert off_truth(clean, Motion(1))[0] < 0.05


@few
@given(
    seeds,
    st.floats(-0.35, 0.35),
    st.tuples(st.floats(-0.3, 0.3), st.floats(-0.2, 0.2), st.floats(-0.2, 0.2)),
    st.tuples(angle, angle, angle),
    st.tuples(st.floats(-0.1, 0.1), st.floats(-0.1, 0.1), st.floats(-3, 3)),
)
def test_a_mocap_reference_becomes_the_truth(seed, late, place, turn, world) -> None:
    reference = Motion(seed).reference(
        rate=200.0,
        late=late,
        place=place,
        turn=Rotation.from_euler("xyz", turn),
        world=Rotation.from_euler("xyz", world),
        position_noise=0.002,
        angle_noise=0.002,
    )
    clean = clean_reference(reference, LOGS[seed], IMU_POSITION)
    position, orientation = off_truth(clean, Motion(seed))
    assert position < 0.03
    assert orientation < 0.02
    assert clean.segments.count == 1
    assert clean.valid.mean() > 0.97


@few
@given(seeds, st.floats(-0.35, 0.35), st.floats(-0.08, 0.08), st.floats(-0.08, 0.08))
def test_a_slow_noisy_reference_is_level_and_in_time(seed: int, late: float, roll: float, pitch: float) -> None:
    reference = Motion(seed).reference(late=late, world=Rotation.from_euler("xy", (roll, pitch)))
    clean = clean_reference(reference, LOGS[seed], IMU_POSITION)
    position, orientation = off_truth(clean, Motion(seed))
    assert position < 0.08  # 0.035 m of noise at the poses
    assert orientation < 0.03
    up = Rotation.from_euler("xy", (roll, pitch)).inv().apply((0.0, 0.0, 1.0))
    if np.arccos(up[2]) > 0.05:
        assert clean.levelled > 0.02
    velocity = np.gradient(Motion(seed).position((clean.stamp_ns - START_NS) * 1e-9), 0.005, axis=0)
    world = Rotation.from_quat(clean.orientation).apply(clean.velocity)
    speed = np.linalg.norm(velocity, axis=1)[clean.valid].mean()
    assert abs(np.linalg.norm(world, axis=1)[clean.valid].mean() - speed) < 0.2


def test_a_clean_reference_is_left_as_it_is() -> None:
    reference = Motion(0).reference(rate=200.0, position_noise=0.0, angle_noise=0.0)
    clean = clean_reference(reference, Motion(0).log(noise=0.3), IMU_POSITION)
    assert clean.offset == RigidOffset()
    assert clean.levelled == 0.0
    assert not clean.segments.cuts
    assert off_truth(clean, Motion(0))[0] < 0.005
    assert clean.to_dict()["pieces"] == 1


def test_what_is_given_is_taken() -> None:
    offset = RigidOffset(position=(0.2, -0.1, 0.05), rpy=(0.1, -0.05, 0.7))
    reference = Motion(2).reference(late=0.2, turn=offset.rotation, place=offset.position)
    clean = clean_reference(reference, LOGS[2], IMU_POSITION, ReferenceSettings(clock_offset=-0.2, offset=offset))
    np.testing.assert_allclose(clean.offset.position, offset.position)
    np.testing.assert_allclose(clean.offset.rpy, offset.rpy)
    position, orientation = off_truth(clean, Motion(2))
    assert position < 0.05
    assert orientation < 0.01


@few
@given(seeds, st.integers(30, 150), st.floats(0.35, 2.0), st.floats(0, 6.2), st.floats(0.4, 2.0))
def test_jumps_and_gaps_are_cut(seed: int, at: int, size: float, heading: float, gap: float) -> None:
    reference = Motion(seed).reference()
    jumped = reference.position.copy()
    jumped[at:] += size * np.array([np.cos(heading), np.sin(heading), 0.0])
    rows = np.arange(len(reference))
    hole = (rows > 170) & (rows <= 170 + round(gap * 10))
    spoiled = replace(reference, position=jumped).select(~hole)
    clean = clean_reference(spoiled, LOGS[seed], IMU_POSITION)
    kinds = {cut.kind: cut for cut in clean.segments.cuts}
    assert kinds.keys() >= {"gap", "jump"}
    assert abs(kinds["jump"].size - size) < 0.25
    t = (clean.stamp_ns - START_NS) * 1e-9
    assert abs(kinds["jump"].start - (0.013 + (at - 1) * 0.1)) < 0.02
    # Nothing is interpolated across, and the piece changes there.
    across = (t > kinds["jump"].start + 0.001) & (t < kinds["jump"].end - 0.001)
    assert not clean.valid[across].any()
    before, after = clean.segment[t < kinds["jump"].start - 0.05], clean.segment[t > kinds["jump"].end + 0.05]
    assert not set(before[before >= 0].tolist()) & set(after[after >= 0].tolist())
    assert not clean.valid[(t > kinds["gap"].start + 0.01) & (t < kinds["gap"].end - 0.01)].any()


def test_a_very_noisy_reference_still_shows_its_clock() -> None:
    clock = estimate_clock_offset(Motion(0).reference(late=0.3, angle_noise=0.04), attitude(LOGS[0]))
    assert clock.reliable
    assert abs(clock.latency - 0.3) < 0.02


def test_a_jump_of_the_heading_is_cut() -> None:
    reference = Motion(0).reference()
    rotation = reference.rotation_world_body
    turned = Rotation.concatenate((rotation[:90], Rotation.from_euler("z", 0.3) * rotation[90:]))
    clean = clean_reference(replace(reference, orientation=turned.as_quat()), LOGS[0], IMU_POSITION)
    (cut,) = [cut for cut in clean.segments.cuts if cut.kind == "jump"]
    assert abs(cut.angle - 0.3) < 0.05
    assert clean.segments.count == 2


def test_poses_that_are_stuck_are_dropped() -> None:
    reference = Motion(1).reference()
    position, orientation = reference.position.copy(), reference.orientation.copy()
    position[60:75], orientation[60:75] = position[60], orientation[60]
    clean = clean_reference(replace(reference, position=position, orientation=orientation), LOGS[1], IMU_POSITION)
    (cut,) = [cut for cut in clean.segments.cuts if cut.kind == "stuck"]
    assert abs(cut.size - 1.4) < 0.02
    t = (clean.stamp_ns - START_NS) * 1e-9
    assert not clean.valid[(t > cut.start) & (t < cut.end)].any()
    assert clean.valid.mean() > 0.85


def test_a_pause_of_the_imu_is_not_taken_for_rotation() -> None:
    log = LOGS[0]
    t = (log.stamp_ns - START_NS) * 1e-9
    torn = log.select((t < 8.0) | (t > 9.5))
    clock = estimate_clock_offset(Motion(0).reference(late=0.1), attitude(torn))
    assert abs(clock.latency - 0.1) < 0.01


@pytest.mark.parametrize(("degrees", "taken_out"), [(0.5, False), (1.0, False), (2.0, True)])
def test_a_turn_as_small_as_an_imus_own_is_left(degrees: float, taken_out: bool) -> None:
    turn = Rotation.from_rotvec(np.radians(degrees) * np.array((0.6, -0.48, 0.64)))
    clean = clean_reference(Motion(2).reference(turn=turn, rate=200.0, angle_noise=0.0), LOGS[2], IMU_POSITION)
    left = Rotation.from_euler("xyz", clean.offset.rpy).magnitude()
    assert left == pytest.approx(np.radians(degrees) if taken_out else 0.0, abs=2e-3)
    assert any("taken out" in note and "turned in the base" in note for note in clean.notes) == taken_out


def test_a_body_that_does_not_turn_shows_no_clock_and_says_so() -> None:
    log = LOGS[0]
    still = replace(log, angular_velocity=np.zeros_like(log.angular_velocity))
    reference = Motion(0).reference()
    level = np.tile((0.0, 0.0, 0.0, 1.0), (len(reference), 1))
    clean = clean_reference(replace(reference, orientation=level), still)
    assert clean.clock is None
    assert "hardly turns" in clean.notes[0]
    assert clean.to_dict()["clock_offset_s"] is None


@pytest.mark.parametrize("other", [5, 6, 7])
def test_another_motion_is_not_taken_for_this_one(other: int) -> None:
    clean = clean_reference(Motion(other).reference(), LOGS[0])
    assert clean.clock is None
    assert any("cannot be told" in note for note in clean.notes)


def cut_short(reference: Trajectory, count: int) -> Trajectory:
    return reference.select(slice(0, count))


def in_units(reference: Trajectory, unit: float) -> Trajectory:
    return replace(reference, position=reference.position / unit)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (cut_short(Motion(0).reference(), 3), "3 poses are too few"),
        (Motion(0).reference(rate=2.0), "too seldom"),
        (in_units(Motion(0).reference(), 0.01), r"moves at [\d.]+ m/s, .*must be in metres"),
        (in_units(Motion(0).reference(), 0.001), r"moves at [\d.]+ m/s, .*must be in metres"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(reference: Trajectory, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        clean_reference(reference, LOGS[0])
    assert "\n" not in str(caught.value)


def test_stamps_that_do_not_meet_by_the_given_offset_are_refused() -> None:
    with pytest.raises(TraceError, match="hardly overlap"):
        clean_reference(Motion(0).reference(), LOGS[0], settings=ReferenceSettings(clock_offset=5000.0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rate", "scale"), [(10.0, 1e12), (200.0, 1e14)])
def test_positions_that_are_no_motion_of_the_log_leave_no_nan(rate: float, scale: float) -> None:
    true = Motion(0).reference(rate=rate)
    wild = replace(true, position=true.position * scale)
    clean = clean_reference(wild, LOGS[0], settings=ReferenceSettings(max_speed=1e20))
    assert clean.inertial is not None
    assert np.isfinite(clean.inertial.tilt_sigma)
    assert clean.inertial.tilt_sigma > 0.3  # rad: it tells nothing
    assert "nan" not in " ".join(clean.notes)


def test_where_a_reference_turns_otherwise_than_the_gyro() -> None:
    reference = Motion(0).reference()
    good = clean_reference(reference, LOGS[0])
    assert not disagrees(good, LOGS[0]).any()
    mirrored = replace(reference, orientation=reference.orientation * np.array([1.0, 1.0, -1.0, 1.0]))
    bad = clean_reference(mirrored, LOGS[0], settings=ReferenceSettings(clock_offset=0.0))
    assert disagrees(bad, LOGS[0]).mean() > 0.5
    # Turned away little by little: no jump, but no motion of this robot either.
    seconds = (reference.stamp_ns - reference.stamp_ns[0]) * 1e-9
    away = Rotation.from_rotvec(np.outer(np.interp(seconds, [5.0, 9.0], [0.0, 6.0]), (0.0, 0.0, 1.0)))
    turned = replace(reference, orientation=(away * reference.rotation_world_body).as_quat())
    found = clean_reference(turned, LOGS[0], settings=ReferenceSettings(jump_angle=3.0))
    off = disagrees(found, LOGS[0])
    time = (LOGS[0].stamp_ns - LOGS[0].stamp_ns[0]) * 1e-9
    assert off[(time > 5.5) & (time < 8.5)].all() and not off[(time < 3.5) | (time > 10.5)].any()


def test_stretches_between_jumps_are_told_from_gaps() -> None:
    reference = Motion(0).reference()
    half, kept = len(reference) // 2, np.ones(len(reference), dtype=bool)
    kept[half // 2 : half // 2 + 10] = False
    moved = reference.position + np.where(np.arange(len(reference)) >= half, 2.0, 0.0)[:, None]
    clean = clean_reference(replace(reference, position=moved).select(kept), LOGS[0])
    assert clean.segments.count == 3
    assert np.unique(clean.between_jumps).tolist() == [0, 1]
    assert 0.4 < clean.between_jumps.mean() < 0.6


def test_a_torn_reference_is_told() -> None:
    whole = replace(LOGS[0], reference=Motion(0).reference())
    assert torn(whole) is None and torn(replace(whole, reference=None)) is None
    late = replace(whole.reference, stamp_ns=whole.reference.stamp_ns + 300_000_000)
    assert torn(replace(whole, reference=late)) is None
    there = np.arange(len(whole.reference)) >= len(whole.reference) // 2
    jumped = replace(whole.reference, position=whole.reference.position + there[:, None] * np.array([0.0, 1.0, 0.0]))
    assert "jumps once, the furthest by 0.9" in torn(replace(whole, reference=jumped))
