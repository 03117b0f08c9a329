"""Coverage of the covariance: a true model covers what it should, one that is too sure does not."""

import numpy as np
import pytest
from scipy.stats import norm
from walks import QUICK, TRUTH

from trace_ros.evaluation.calibration import SIGMAS, judge, nominal, together
from trace_ros.evaluation.calibration_plot import plot_calibration


def test_true_model_covers_what_it_should(walks):
    """Errors drawn from a model, judged with it: the whole chain, from the process to the coverage."""
    judgement = judge(TRUTH, walks, QUICK)
    for row in judgement.rows():
        limit = 0.01 if row["of"] == "twist" else 0.06
        for sigma, share in zip(SIGMAS, row["coverage"], strict=True):
            assert share == pytest.approx(nominal(sigma), abs=limit), row
    assert judgement.joint()[0] == pytest.approx(nominal(1), abs=0.08)
    for measured, sigma in judgement.growth.values():
        np.testing.assert_allclose(measured, sigma, rtol=0.35)


def test_judgements_are_put_together(walks):
    whole, parts = judge(TRUTH, walks[:3], QUICK), [judge(TRUTH, [walk], QUICK) for walk in walks[:3]]
    assert together(parts).rows() == whole.rows()
    assert together(parts).joint() == whole.joint()
    assert not together(parts).growth


def test_a_model_that_is_too_sure_is_found_out(walks):
    sure = TRUTH.model_copy(update={"slow_share": (0.1, 0.1, 0.1), "fast_time": (0.01,) * 3, "yaw_rate": 0.0})
    judgement = judge(sure, walks, QUICK)
    row, _, off = judgement.worst()
    assert row["axis"] in "xyz"
    assert off < -0.3


def test_nominal_coverage():
    assert [nominal(sigma) for sigma in SIGMAS] == pytest.approx([norm.cdf(s) - norm.cdf(-s) for s in SIGMAS])


def test_picture_is_drawn(walks, tmp_path):
    plot_calibration(tmp_path / "sub" / "c.png", judge(TRUTH, walks[:4], QUICK), "title")
    assert (tmp_path / "sub" / "c.png").read_bytes().startswith(b"\x89PNG")
