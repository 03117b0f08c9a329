"""What a run tells where there is no terminal: lines with the loss terms and the rate, and TensorBoard scalars."""

from __future__ import annotations

import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trace_ros.training import monitor as monitors
from trace_ros.training.monitor import ConsoleMonitor


def test_lines_and_scalars(tmp_path, monkeypatch, capsys):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with ConsoleMonitor(tmp_path) as monitor:
        monitor.waiting(64, 128)
        for step in range(1, 201):
            clock[0] += 0.5
            loss = 1.0 if step <= 50 else 0.5
            monitor.step(step, 1000 * step, step / 200, {"total": loss, "foot": 0.25})
            if step == 60:
                clock[0] += 100.0  # validation: must not count as training time
                monitor.validated(step, {"velocity_rmse": 0.07})
    said = capsys.readouterr().err
    lines = said.splitlines()
    assert "64 of 128 rollouts simulated" in lines[0]
    training = [line for line in lines if "samples/s" in line]
    assert 1 <= len(training) <= 4  # one in thirty seconds
    assert "foot 0.25" in training[-1]
    assert all("2,000 samples/s" in line for line in training)
    assert any("step 60 held out: velocity_rmse 0.07" in line for line in lines)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"train/total", "train/foot", "train/samples_per_s", "validation/velocity_rmse"} <= set(
        events.Tags()["scalars"]
    )
    losses = [event.value for event in events.Scalars("train/total")]
    assert losses[1] == pytest.approx(1.0) and losses[-1] == pytest.approx(0.5)


def test_a_monitor_that_says_nothing(capsys):
    monitor = monitors.SilentMonitor()
    monitor.waiting(1, 2)
    monitor.step(1, 1, 0.1, {"total": 1.0})
    monitor.validated(1, {})
    monitor.note("nothing")
    assert capsys.readouterr() == ("", "")
