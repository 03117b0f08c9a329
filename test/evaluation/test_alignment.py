import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from trajectories import disturb, moved, stamps, walk

from trace_ros.errors import TraceError
from trace_ros.evaluation.alignment import MODE_DESCRIPTIONS, align
from trace_ros.logs import Trajectory

TRUTH = walk(8.0, 100.0)


@given(yaw=st.floats(-3.1, 3.1), shift=st.tuples(*[st.floats(-50, 50)] * 3))
@settings(max_examples=30, deadline=None)
def test_yaw_and_translation_are_undone_by_every_mode_but_none(yaw, shift):
    elsewhere = moved(TRUTH, Rotation.from_euler("z", yaw), np.array(shift))
    for mode in ("posyaw", "posyawsingle", "se3", "se3single"):
        aligned = align(elsewhere, TRUTH, mode).apply(elsewhere)
        np.testing.assert_allclose(aligned.position, TRUTH.position, atol=1e-9)
        turn = aligned.rotation_world_body * TRUTH.rotation_world_body.inv()
        assert turn.magnitude().max() < 1e-9
    assert align(elsewhere, TRUTH, "none").apply(elsewhere).position == pytest.approx(elsewhere.position)


def test_tilt_is_undone_by_the_six_degree_modes_only():
    tilted = moved(TRUTH, Rotation.from_euler("x", 0.1), np.zeros(3))
    for mode in ("se3", "se3single"):
        np.testing.assert_allclose(align(tilted, TRUTH, mode).apply(tilted).position, TRUTH.position, atol=1e-9)
    for mode in ("posyaw", "posyawsingle"):
        alignment = align(tilted, TRUTH, mode)
        np.testing.assert_allclose(alignment.rotation[2], [0, 0, 1], atol=1e-12)
        assert np.abs(alignment.apply(tilted).position - TRUTH.position).max() > 0.05


def test_posyaw_is_the_optimum_over_yaw():
    estimate = disturb(TRUTH)
    best = align(estimate, TRUTH, "posyaw")

    def cost(yaw: float) -> float:
        rotation = Rotation.from_euler("z", yaw)
        a = TRUTH.position - TRUTH.position.mean(axis=0)
        return float(np.sum((a - rotation.apply(estimate.position - estimate.position.mean(axis=0))) ** 2))

    found = np.arctan2(best.rotation[1, 0], best.rotation[0, 0])
    assert cost(found) < min(cost(found - 1e-4), cost(found + 1e-4))


def test_standing_still_takes_the_yaw_from_orientations():
    stamp = stamps(2.0)
    rng = np.random.default_rng(1)
    upright = np.tile([0.0, 0.0, 0.0, 1.0], (stamp.size, 1))
    still = Trajectory(stamp, rng.normal(scale=1e-4, size=(stamp.size, 3)), upright, np.zeros((stamp.size, 3)))
    estimate = moved(still, Rotation.from_euler("z", 0.7), np.array([3.0, 2.0, 1.0]))
    estimate = Trajectory(
        stamp, rng.permutation(estimate.position), estimate.orientation, estimate.velocity
    )  # positions say nothing about heading any more
    alignment = align(estimate, still, "posyaw")
    np.testing.assert_allclose(alignment.rotation, Rotation.from_euler("z", -0.7).as_matrix(), atol=1e-9)
    assert "orientations" in alignment.note


def test_se3_refuses_a_straight_line():
    stamp = stamps(2.0)
    line = np.linspace(0, 1, stamp.size)[:, None] * [1.0, 0.0, 0.0]
    straight = Trajectory(stamp, line, np.tile([0.0, 0, 0, 1], (stamp.size, 1)), np.zeros((stamp.size, 3)))
    with pytest.raises(TraceError, match="posyaw"):
        align(straight, straight, "se3")


def test_unequal_or_no_poses_are_refused():
    with pytest.raises(TraceError, match="as many"):
        align(TRUTH.select(slice(0, 5)), TRUTH)
    with pytest.raises(TraceError, match="as many"):
        align(TRUTH.select(slice(0, 0)), TRUTH.select(slice(0, 0)))


def test_every_mode_has_a_description():
    assert set(MODE_DESCRIPTIONS) == {"none", "posyaw", "posyawsingle", "se3", "se3single"}
