"""The height that the feet show: right on slopes, whatever the network says, and harmless where they show nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.spatial.transform import Rotation

from trace_ros.estimator.height import (
    NOTHING_OWED,
    STEEPEST,
    HeightByFeet,
    HeightSettings,
    HeightState,
    Walked,
    climb_rates,
)

DT = 0.002
STRIDE_S = 0.4
CORNERS = np.array([[0.2, 0.15], [0.2, -0.15], [-0.2, 0.15], [-0.2, -0.15]])
EVERY = HeightSettings()


def trot(seconds, speed=0.5, slope=0.0, heading=0.0, sink=0.0, tall=None, roll_pitch=(0.0, 0.0), side=0.0):
    """A body that trots over a plane: feet (N, 4, 3) m in its frame, attention (N, 4), rotation (N, 3, 3) and true
    position (N, 3).

    Args:
        speed, side: m/s, ahead and to the left; slope: of the plane along the world's x axis.
        sink: m, how deep a foot is when it lifts off again.
        tall: (N,) m above the plane.
    """
    n = round(seconds / DT)
    time = DT * np.arange(n)
    ahead = np.array([math.cos(heading), math.sin(heading)])
    left = np.array([-ahead[1], ahead[0]])
    way = speed * ahead + side * left
    height = np.full(n, 0.3) if tall is None else tall
    body = np.column_stack((time[:, None] * way, slope * time * way[0] + height))
    rotation = Rotation.from_euler("ZYX", [heading, roll_pitch[1], roll_pitch[0]])
    feet, attention = np.zeros((n, 4, 3)), np.zeros((n, 4))
    for leg, corner in enumerate(CORNERS):
        phase = (time / STRIDE_S + (0.5 if leg in (1, 2) else 0.0)) % 1.0
        stands = phase < 0.55
        behind = time - np.where(stands, phase - 0.275, 0.0) * STRIDE_S
        place = behind[:, None] * way + corner[0] * ahead + corner[1] * left
        feet[:, leg] = np.column_stack((place, slope * place[:, 0] - sink * phase + np.where(stands, 0.0, 0.08)))
        attention[:, leg] = np.where(stands, 0.2, 0.001)
    seen = np.einsum("ji,nkj->nki", rotation.as_matrix(), feet - body[:, None])
    return seen, attention, np.broadcast_to(rotation.as_matrix(), (n, 3, 3)), body


def heights(walk, off=0.0, settings=EVERY):
    """Of the network, off by some m/s upward, and by the feet: (N,) each, less the true one."""
    feet, attention, rotation, body = walk
    moved = np.diff(body, axis=0, prepend=body[:1])
    moved[1:, 2] += off * DT
    rate, _ = climb_rates(settings, Walked(feet, attention, rotation, moved, np.full(len(body), DT)))
    risen = body[:, 2] - body[0, 2]
    network = np.cumsum(moved[:, 2])
    return network - risen, network + np.cumsum(rate * DT) - risen


@pytest.mark.parametrize("slope", [0.0, 0.25, -0.4])
@pytest.mark.parametrize("heading", [0.0, 1.1, math.pi])
def test_a_network_that_drifts_is_held_to_the_ground(slope, heading):
    network, by_feet = heights(trot(30.0, slope=slope, heading=heading), off=0.03)
    assert network[-1] == pytest.approx(0.9, abs=1e-3)
    # What it drifts by until its own height no longer counts, and no more.
    assert abs(by_feet[5000:] - 0.03 * (EVERY.time + EVERY.stride)).max() < 0.002
    assert abs(by_feet).max() < 0.05


@pytest.mark.parametrize("level", [(0.0, 0.02), (0.03, 0.0), (-0.02, 0.015)])
def test_feet_that_are_not_level_in_the_body_are_levelled(level):
    """A robot whose encoders have other zeros in front: every ground is tilted alike in its body."""
    feet, attention, rotation, body = trot(20.0, side=0.3, heading=0.7, slope=0.1)
    seen = Rotation.from_euler("xyz", (*level, 0.0)).inv().apply(feet.reshape(-1, 3)).reshape(feet.shape)
    _, tilted = heights((seen, attention, rotation, body))
    # The tilt times the way walked: pitch ahead, roll to the left.
    assert tilted[-1] == pytest.approx(20.0 * (0.5 * level[1] - 0.3 * level[0]), rel=0.25)
    _, levelled = heights((seen, attention, rotation, body), settings=HeightSettings(level=level))
    assert abs(levelled).max() < 0.01


def test_feet_that_sink_in_hardly_matter():
    _, by_feet = heights(trot(30.0, sink=0.05))
    # By the velocities of the feet that stand, the body would rise by this. What is left is that those which stand
    # longest are both deepest and furthest behind.
    assert abs(by_feet[-500:].mean() - by_feet[2500:3000].mean()) < 0.025 * 25.0 * 0.05 / STRIDE_S


def test_sideways_and_leaning_all_the_same():
    _, by_feet = heights(trot(20.0, speed=0.1, side=0.4, slope=0.2, heading=0.8, roll_pitch=(0.15, -0.2)), off=-0.03)
    assert abs(by_feet[-1] + 0.03 * (EVERY.time + EVERY.stride)) < 0.003


def test_a_body_that_lowers_itself_over_its_feet_sinks():
    tall = 0.3 - 0.2 * np.clip((DT * np.arange(10_000) - 5.0) / 5.0, 0.0, 1.0)
    _, by_feet = heights(trot(20.0, speed=0.0, tall=tall))
    assert abs(by_feet).max() < 0.02


def test_what_goes_on_for_less_than_a_second_is_the_networks():
    feet, attention, rotation, body = trot(10.0)
    moved = np.diff(body, axis=0, prepend=body[:1])
    bounce = 0.05 * np.sin(2 * math.pi * 3.0 * DT * np.arange(len(body)))
    moved[:, 2] += np.diff(bounce, prepend=0.0)
    feet = feet - np.stack((np.zeros_like(bounce), np.zeros_like(bounce), bounce), axis=1)[:, None]
    rate, _ = climb_rates(EVERY, Walked(feet, attention, rotation, moved, np.full(len(body), DT)))
    assert abs(np.cumsum(rate * DT)).max() < 0.01


def test_without_feet_the_network_is_followed():
    feet, attention, rotation, body = trot(5.0, slope=0.1)
    _, by_feet = heights((feet, np.zeros_like(attention), rotation, np.zeros_like(body)))
    assert abs(by_feet).max() == 0.0


@pytest.mark.parametrize("degrees", [65, 90, 180])
def test_of_a_robot_that_has_fallen_over_the_network_is_followed(degrees):
    feet, attention, _, body = trot(5.0)
    lying = np.broadcast_to(Rotation.from_euler("x", degrees, degrees=True).as_matrix(), (len(body), 3, 3))
    network, by_feet = heights((feet, attention, lying, body), off=0.05)
    np.testing.assert_array_equal(by_feet, network)


def test_a_robot_that_rolls_over_and_stands_up_again_goes_on():
    feet, attention, _, body = trot(30.0)
    roll = np.interp(DT * np.arange(len(body)), [0, 10, 11, 13, 14, 30], [0, 0, np.pi, np.pi, 2 * np.pi, 2 * np.pi])
    turned = Rotation.from_euler("x", roll[:, None]).as_matrix()
    # The feet stay under a body that rolls: what they show meanwhile means nothing.
    _, by_feet = heights((feet, attention, turned, body), off=0.03)
    fallen = 0.03 * 4.0
    assert abs(by_feet[-1]) < 0.045 + fallen + 0.01


def test_steeper_than_anything_stays_finite():
    feet, attention, _, body = trot(5.0)
    leaning = np.broadcast_to(Rotation.from_euler("y", 58, degrees=True).as_matrix(), (len(body), 3, 3))
    _, by_feet = heights((feet, attention, leaning, body))
    assert np.isfinite(by_feet).all()
    assert abs(np.diff(by_feet[1000:])).max() < STEEPEST * 0.5 * DT + 0.5 * DT


def test_the_first_step_corrects_nothing_by_itself():
    feet, attention, rotation, body = trot(0.1)
    height = HeightByFeet(EVERY)
    standing = (0.0, 0.0, 0.0)
    quaternion = tuple(Rotation.from_matrix(rotation[0]).as_quat())
    assert height.climb_rate(feet[0].ravel().tolist(), attention[0].tolist(), quaternion, standing, DT) == 0.0
    assert len(body) == 50


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 60),
    restarts=st.sets(st.integers(1, 59), max_size=4),
    time=st.floats(0.05, 20.0),
    stride=st.floats(0.05, 5.0),
    level=st.tuples(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2)),
)
def test_whole_runs_as_step_by_step(seed, count, restarts, time, stride, level):
    rng = np.random.default_rng(seed)
    how = HeightSettings(time=time, stride=stride, level=level)
    feet, attention = rng.normal(scale=0.3, size=(count, 4, 3)), rng.uniform(size=(count, 4)) ** 3
    # Most are upright, some are not.
    rotation = Rotation.from_rotvec(rng.normal(scale=0.6, size=(count, 3)))
    moved, dt = rng.normal(scale=0.01, size=(count, 3)), rng.uniform(1e-3, 0.02, count)
    edges = [0, *sorted(edge for edge in restarts if edge < count), count]
    state, parts = NOTHING_OWED, []
    for begin, end in itertools.pairwise(edges):
        part = slice(begin, end)
        rate, state = climb_rates(
            how, Walked(feet[part], attention[part], rotation[part].as_matrix(), moved[part], dt[part]), state
        )
        parts.append(rate)
    together = np.concatenate(parts)
    height, quaternion = HeightByFeet(how), rotation.as_quat()
    for row in range(count):
        if row in edges:
            height.restart()
        one = height.climb_rate(
            feet[row].ravel().tolist(), attention[row].tolist(), tuple(quaternion[row]), tuple(moved[row]), dt[row]
        )
        assert one == pytest.approx(together[row], abs=1e-9, rel=1e-7)


def test_a_new_pose_owes_nothing():
    feet, attention, rotation, body = trot(3.0)
    height = HeightByFeet(EVERY)
    quaternion = tuple(Rotation.from_matrix(rotation[0]).as_quat())

    def go(rows):
        told = [(feet[row].ravel().tolist(), attention[row].tolist(), quaternion) for row in rows]
        return [height.climb_rate(*one, (0.001, 0.0, 0.0002), DT) for one in told]

    first = go(range(500))
    assert min(first[-100:]) < -0.03
    height.restart()
    assert go([500])[0] < -0.03
    height.reset()
    assert go(range(500)) == first
    assert len(body) == 1500


def test_of_no_steps_nothing_is_told():
    shapes = np.zeros((0, 4, 3)), np.zeros((0, 4)), np.zeros((0, 3, 3)), np.zeros((0, 3)), np.zeros(0)
    state = HeightState(0.5, np.ones(3))
    rate, after = climb_rates(EVERY, Walked(*shapes), state)
    assert (rate.shape, after) == ((0,), state)


def test_missing_samples_do_not_bring_the_drift_back():
    """A third of each second is missing: the network's drift is taken away all the same."""
    feet, attention, rotation, body = trot(30.0)
    moved = np.diff(body, axis=0, prepend=body[:1])
    moved[:, 2] += 0.03 * DT
    state, rise = NOTHING_OWED, 0.0
    for begin in range(0, len(body), 500):
        part = slice(begin, begin + 350)
        rate, state = climb_rates(
            EVERY, Walked(feet[part], attention[part], rotation[part], moved[part], np.full(350, DT)), state
        )
        rise += float(moved[part, 2].sum() + rate.sum() * DT)
    assert abs(rise) < 0.06


@pytest.mark.parametrize(
    "values",
    [
        {"time": 0.0},
        {"time": math.inf},
        {"stride": -1.0},
        {"tau": 1.0},
        {"level": (0.0, 0.3)},
        {"level": (math.nan, 0.0)},
    ],
)
def test_settings_that_make_no_sense_are_refused(values):
    with pytest.raises(ValidationError):
        HeightSettings(**values)
