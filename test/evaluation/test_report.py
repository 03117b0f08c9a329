import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from trajectories import disturb, sensor_log, walk

from trace_ros.errors import TraceError
from trace_ros.evaluation.figures import (
    ReportSettings,
    intervals,
    report_figures,
    smoothed_attention,
    thinned,
)
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.report import metric_rows, write_report
from trace_ros.evaluation.runner import evaluate_odometry, evaluate_run

TRUTH = walk(14.0, 200.0)
LOG = sensor_log(TRUTH, simulated=True)


@pytest.fixture(scope="module")
def full():
    """An evaluation with everything in it."""
    evaluation = evaluate_odometry("stairs & <slope>", "trace", disturb(TRUTH), LOG)
    attention = np.random.default_rng(0).random((len(TRUTH), 6))
    attention /= attention.sum(axis=1, keepdims=True)
    standing = np.arange(len(TRUTH)) // 400 == 2
    return replace(evaluation, attention=attention, stationary=standing, step_time_s=np.full(len(TRUTH), 2e-4))


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.words += data + " "


def test_one_page_holds_everything_and_asks_for_nothing(tmp_path, full):
    files = write_report(tmp_path / "out", [full], MetricSettings(), title="go2 <demo>", command="trace report & more")
    text = files.page.read_text()
    page = Page(text)
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "data", "poster", "background"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert not re.match(r"\s*(https?:)?//", attributes.get("href") or "")
    # The browser is told to refuse any request, whatever a script may try.
    policy = next(
        a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "http" not in policy
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert text.count("plotly.js v") == 1  # the library is in there once
    assert sum(tag == "figure" for tag, _ in page.tags) == 6
    assert text.count("Plotly.newPlot(") >= 6
    for word in ("Top view", "Height", "Velocity", "Attention", "Error over time", "Error growth"):
        assert word in page.words
    for label, value in metric_rows(full.metrics):
        assert label in page.words
        assert value in page.words
    assert "alignment posyaw: position and yaw, all poses" in page.words
    assert "go2 <demo>" in page.words
    assert "stairs & <slope>" in page.words
    assert "trace report & more" in page.words
    assert "warm_up_samples" in page.words
    assert "numpy" in page.words
    assert files.page.stat().st_size < 8e6


def test_the_card_of_the_model_is_printed(tmp_path, estimator):
    evaluation = evaluate_run("log", sensor_log(walk(1.0)), estimator)
    files = write_report(tmp_path, [evaluation], model=estimator.model)
    words = Page(files.page.read_text()).words
    assert str(estimator.model.path) in words
    assert estimator.robot.fingerprint in words
    assert "none at all" in words  # the training command


def test_pictures_show_something(tmp_path, full):
    files = write_report(tmp_path, [full])
    assert [path.name for path in files.pictures] == ["trajectory.png", "velocity.png", "attention.png"]
    for path in files.pictures:
        with Image.open(path) as image:
            assert image.width >= 1200
            assert len(image.convert("RGB").getcolors(2**24)) > 50


def test_several_logs_share_a_page_and_have_pictures_of_their_own(tmp_path, full):
    plain = evaluate_odometry("stairs & <slope>", "/odom", disturb(TRUTH))
    files = write_report(tmp_path, [full, plain])
    names = [path.name for path in files.pictures]
    assert names == [
        "trajectory_stairs_slope.png",
        "velocity_stairs_slope.png",
        "attention_stairs_slope.png",
        "trajectory_stairs_slope_2.png",
        "velocity_stairs_slope_2.png",
    ]
    text = files.page.read_text()
    identifiers = [a["id"] for _, a in Page(text).tags if a.get("id")]
    assert len(identifiers) == len(set(identifiers))
    assert text.count("plotly.js v") == 1
    assert "no reference: the estimate alone" in text


def test_a_short_run_has_no_growth(full):
    short = walk(0.4)
    figures = report_figures(evaluate_odometry("short", "/odom", disturb(short), sensor_log(short)), ReportSettings())
    assert "Error growth" not in figures
    assert "Error growth" in report_figures(full, ReportSettings())


def test_curves_are_thinned_for_drawing_and_end_where_they_end(full):
    figures = report_figures(full, ReportSettings(max_points=100))
    for figure in figures.values():
        for trace in figure.data:
            if trace.name in ("estimate", "reference"):
                assert len(trace.x) <= 100
    last = figures["Top view"].data[1]
    np.testing.assert_allclose((last.x[-1], last.y[-1]), full.aligned.position[-1, :2], atol=1e-4)


def test_top_view_draws_the_aligned_estimate(full):
    figure = report_figures(full, ReportSettings())["Top view"]
    reference, estimate = figure.data[0], figure.data[1]
    assert (reference.name, estimate.name) == ("reference", "estimate")
    assert np.abs(np.array(reference.x)[10:] - np.array(estimate.x)[10:]).max() < 0.5
    assert figure.layout.yaxis.scaleanchor == "x"


def test_nothing_to_report_and_nowhere_to_write(tmp_path, full):
    with pytest.raises(TraceError, match="no evaluations"):
        write_report(tmp_path, [])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match="cannot be written"):
        write_report(tmp_path / "file", [full])


def test_helpers():
    np.testing.assert_array_equal(thinned(5, 10), range(5))
    assert thinned(1001, 11)[-1] == 1000
    assert thinned(0, 10).size == 0
    flags = np.array([1, 1, 0, 0, 1, 0, 1], dtype=bool)
    assert intervals(flags, np.arange(7.0)) == [(0.0, 1.0), (4.0, 4.0), (6.0, 6.0)]


def test_smoothing_keeps_the_sum(full):
    smooth = smoothed_attention(full, 0.1)
    np.testing.assert_allclose(smooth.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(smooth[100], full.attention[90:110].mean(axis=0), atol=1e-12)
