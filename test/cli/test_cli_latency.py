"""``trace latency``: its options; what is measured is tested with `trace_ros.evaluation` and `trace_ros.nodes`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import run_trace


def test_options_of_the_node_need_the_node(monkeypatch, capsys) -> None:
    outcome = run_trace(monkeypatch, capsys, "latency", "--estimator", "iekf_sr")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --estimator and --engine are for trace latency --node")


def test_without_ros_the_node_cannot_be_measured(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "trace_ros.nodes.node_latency", None)
    outcome = run_trace(monkeypatch, capsys, "latency", "--node", "--json", tmp_path / "out.json")
    assert outcome.code == 2
    assert "trace latency --node runs the ROS 2 node" in outcome.err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.ros
def test_the_node_is_measured_and_told(monkeypatch, capsys, tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    import json

    from trace_ros.nodes import node_latency, stages

    found = node_latency.NodeLatency(
        "iekf_sr", 100.0, 2.0, 200, 3, 1, 0, 0, 2, 0.4, 0.9, 5.0, 0.5, 0.12, 240.0, "p50 0.1", {"imu_gap": 1}
    )
    asked = []

    def measure(seconds, rate_hz, robot, parameters, on_progress):
        asked.append((seconds, rate_hz, robot, parameters))
        on_progress(seconds)
        return found

    monkeypatch.setattr(node_latency, "measure_node", measure)
    monkeypatch.setattr(stages, "measure_stages", lambda *_: dict.fromkeys(stages.STAGES, (20.0, 30.0)))
    out = tmp_path / "out.json"
    outcome = run_trace(
        *(monkeypatch, capsys, "latency", "--node", "--seconds", 2, "--rate", 100, "--estimator", "iekf_sr"),
        *("--json", out),
    )
    assert outcome.code == 0
    assert asked == [(2.0, 100.0, "go2", {"estimator": "iekf_sr", "engine": "torchscript", "model": None})]
    for text in ("0.400 ms", "0.900 ms", "200 (3)", "1, 0, 2", "12.0 %", "240 us", "1 imu_gap", "140.0"):
        assert text in outcome.out
    data = json.loads(out.read_text())
    assert data["node"] == found.to_dict()
    assert data["stages"]["step"] == {"p50_us": 20.0, "p99_us": 30.0}
