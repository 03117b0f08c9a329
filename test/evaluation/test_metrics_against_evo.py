"""Our metrics must equal evo's, which the field trusts. evo is GPL: a tool of the tests, never a dependency."""

import numpy as np
import pytest
from trajectories import disturb, walk

from trace_ros.evaluation.alignment import align
from trace_ros.evaluation.metrics import MetricSettings, Statistics, evaluate, relative_errors

TRUTH = walk(25.0, 200.0)
ESTIMATE = disturb(TRUTH, seed=3)


@pytest.fixture(scope="module")
def evo(tmp_path_factory):
    # Importing evo writes its settings to the home directory.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        metrics = pytest.importorskip("evo.core.metrics")
        trajectory = pytest.importorskip("evo.core.trajectory")
        units = pytest.importorskip("evo.core.units")
        yield metrics, trajectory, units


def to_evo(trajectory_module, trajectory):
    return trajectory_module.PoseTrajectory3D(
        positions_xyz=trajectory.position,
        orientations_quat_wxyz=np.roll(trajectory.orientation, 1, axis=1),
        timestamps=(trajectory.stamp_ns - trajectory.stamp_ns[0]) * 1e-9,
    )


@pytest.mark.parametrize("mode", ["posyaw", "se3", "se3single", "posyawsingle", "none"])
def test_absolute_error(evo, mode):
    metrics, trajectory, _ = evo
    ours = evaluate(ESTIMATE, TRUTH, MetricSettings(alignment=mode, warm_up_samples=0))
    reference = to_evo(trajectory, TRUTH)
    if mode in ("se3", "se3single"):  # evo has these two itself
        estimate = to_evo(trajectory, ESTIMATE)
        if mode == "se3":
            estimate.align(reference)
        else:
            estimate.align_origin(reference)
    else:
        estimate = to_evo(trajectory, align(ESTIMATE, TRUTH, mode).apply(ESTIMATE))
    for relation, value in (
        (metrics.PoseRelation.translation_part, ours.ate_position_m),
        (metrics.PoseRelation.rotation_angle_rad, ours.ate_orientation_rad),
    ):
        theirs = metrics.APE(relation)
        theirs.process_data((reference, estimate))
        assert value == pytest.approx(theirs.get_statistic(metrics.StatisticsType.rmse), abs=1e-9)
        assert value > 1e-3


def test_relative_error(evo):
    metrics, trajectory, units = evo
    ours = relative_errors(ESTIMATE, TRUTH, 10.0)
    pair = (to_evo(trajectory, TRUTH), to_evo(trajectory, ESTIMATE))
    for relation, errors in (
        (metrics.PoseRelation.translation_part, ours.position),
        (metrics.PoseRelation.rotation_angle_rad, ours.orientation),
    ):
        theirs = metrics.RPE(relation, delta=2000, delta_unit=units.Unit.frames, all_pairs=True)
        theirs.process_data(pair)
        np.testing.assert_allclose(errors, theirs.error, atol=1e-9)
        statistics = Statistics.of(errors)
        assert statistics.mean == pytest.approx(theirs.get_statistic(metrics.StatisticsType.mean), abs=1e-9)
        assert statistics.std == pytest.approx(theirs.get_statistic(metrics.StatisticsType.std), abs=1e-9)
        assert statistics.p90 == pytest.approx(np.percentile(theirs.error, 90), abs=1e-9)
