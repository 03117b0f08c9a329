"""Whole runs on made-up logs: the loss falls, a resumed run equals an unbroken one, the base stays what it is."""

from __future__ import annotations

import hashlib

import pytest
import torch
from finetuning_logs import ROBOT, config, log, steady, track, untrained

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.training.finetuning import FineTuning, FineTuningPlan
from trace_ros.training.finetuning_method import FineTunedTrace
from trace_ros.training.finetuning_state import load_finetuning, weights_fingerprint
from trace_ros.training.finetuning_validation import closed_loop_error

torch.set_num_threads(1)


class Quiet:
    """Keeps the rows."""

    def __init__(self):
        self.rows, self.shares = [], []

    def working(self, epoch, share, _text):
        self.shares.append((epoch, share))

    def epoch(self, row):
        self.rows.append(row)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("base") / "trace.pt")


@pytest.fixture(scope="module")
def tracks(model):
    return [track(model, seed) for seed in range(3)]


def make(model, tracks, output, settings=None):
    plan = FineTuningPlan("go2", settings or config(), "trace finetune (test)", [])
    return FineTuning(plan, FineTunedTrace(model), tracks[:2], tracks[2:], output)


class StopAfter:
    def __init__(self, looks):
        self.left = looks

    def __call__(self):
        self.left -= 1
        return self.left < 0


def test_the_loss_falls_and_the_best_epoch_is_exported(model, tmp_path):
    before = hashlib.sha256(model.path.read_bytes()).hexdigest()
    settings = config(optimiser={"epochs": 3, "learning_rate": 2e-3, "batch": 3}, validation={"patience": 0})
    tracks = [track(model, made=steady(seed)) for seed in range(3)]
    run = make(model, tracks, tmp_path, settings).start()
    monitor = Quiet()
    assert run.run(monitor)
    assert run.finished and run.epoch == 3
    rows = run.history
    assert monitor.rows == rows and [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert rows[3]["total"] < 0.8 * rows[1]["total"]
    assert rows[1]["start"] > 0
    best = min(rows, key=lambda row: row["validation_position_m"])
    assert run.best_epoch == best["epoch"] > 0
    found = closed_loop_error(run.base, run.best_network(), tracks[2:], settings)
    assert found["position_m"] == pytest.approx(best["validation_position_m"], rel=1e-6)
    assert (max(share for _, share in monitor.shares), monitor.shares[0][0]) == (1.0, 0)

    frozen = {n: v for n, v in run.best_network().state_dict().items() if not n.startswith(("gru.", "head."))}
    for name, value in frozen.items():
        assert torch.equal(value, model.weights[name]), name
    moved = {n for n, v in run.best_network().state_dict().items() if not torch.equal(v, model.weights[n])}
    assert {name.split(".")[0] for name in moved} == {"gru", "head"}

    path = tmp_path / "trace.pt"
    card = run.card({"trace_ros": "test"})
    run.export(card, path)
    loaded = load_model(path)
    assert loaded.card.figures["finetuning"]["base"]["weights"] == weights_fingerprint(model.weights)
    assert loaded.card.training["finetuning"]["stride"] == 0.15
    assert loaded.card.initial["command"] == "none"
    assert (loaded.card.robot_fingerprint, loaded.card.rate_hz) == (ROBOT.fingerprint, 500.0)
    estimator = TraceEstimator(loaded, ROBOT)
    assert [estimator.step(sample) for sample in log(5, 40)][-1] is not None
    assert hashlib.sha256(model.path.read_bytes()).hexdigest() == before
    with pytest.raises(TraceError, match="is the base model"):
        run.export(card, model.path)


class Watched(FineTuning):
    """Keeps the weights after each update."""

    def _follow(self):
        super()._follow()
        self.seen = [*getattr(self, "seen", []), self.network.head[4].weight.detach().clone()]


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        (1000, lambda seen: sum(seen) / len(seen)),
        (2, lambda seen: (seen[0] + sum(2**n * weights for n, weights in enumerate(seen[1:]))) / 2 ** (len(seen) - 1)),
        (1, lambda seen: seen[-1]),
        (0, lambda seen: seen[-1]),
    ],
)
def test_what_is_judged_and_kept_is_the_mean_of_the_last_updates(model, tracks, tmp_path, average, expected):
    optimiser = {"epochs": 2, "learning_rate": 1e-3, "average": average}
    plan = FineTuningPlan("go2", config(optimiser=optimiser, validation={"patience": 0}), "trace finetune (test)", [])
    run = Watched(plan, FineTunedTrace(model), tracks[:2], tracks[2:], tmp_path).start()
    assert run.run(Quiet())
    assert len(run.seen) > 3 and not torch.equal(run.seen[0], run.seen[-1])
    averaged = load_finetuning(run.checkpoint_path)["average"]
    torch.testing.assert_close(averaged["head.4.weight"], expected(run.seen), rtol=1e-5, atol=1e-8)
    network = run.base.network()
    network.load_state_dict(averaged)
    found = closed_loop_error(run.base, network, tracks[2:], run.config)
    assert found["position_m"] == pytest.approx(run.history[2]["validation_position_m"], rel=1e-6)


def test_a_resumed_run_equals_an_unbroken_one(model, tracks, tmp_path):
    settings = config(optimiser={"batch": 5})
    whole = make(model, tracks, tmp_path / "whole", settings).start()
    assert whole.run(Quiet())
    broken = make(model, tracks, tmp_path / "broken", settings).start()
    assert not broken.run(Quiet(), StopAfter(3))  # in the second batch of the first epoch
    assert not broken.finished
    resumed = make(model, tracks, tmp_path / "broken", settings).resume()
    assert (resumed.epoch, resumed.updates) == (0, 3)
    assert not resumed.run(Quiet(), StopAfter(1))
    resumed = make(model, tracks, tmp_path / "broken", settings).resume()
    assert resumed.run(Quiet())
    assert resumed.history == whole.history
    assert (resumed.updates, resumed.samples) == (whole.updates, whole.samples)
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name]), name


def test_full_mode_moves_every_part(model, tracks, tmp_path):
    run = make(model, tracks, tmp_path, config(mode="full", optimiser={"epochs": 1})).start()
    run.run(Quiet())
    moved = {n for n, v in run.network.named_parameters() if not torch.equal(v, model.weights[n])}
    parts = {"convolution_1", "query_projection", "accel_token", "leg_token", "attention", "gru", "head"}
    assert parts <= {name.split(".")[0] for name in moved}


def test_the_pull_to_the_start_keeps_weights_there(model, tracks, tmp_path):
    distances = []
    for weight in (0.0, 1e3):
        settings = config(loss={"start": weight}, optimiser={"epochs": 1, "gradient_clip": 0.0})
        run = make(model, tracks, tmp_path / str(weight), settings).start()
        run.run(Quiet())
        distances.append(run.history[-1]["start"])
    assert distances[1] < 0.5 * distances[0]


def test_it_ends_when_nothing_gets_better(model, tracks, tmp_path):
    settings = config(optimiser={"epochs": 9, "learning_rate": 0.3}, validation={"patience": 2})
    run = make(model, tracks, tmp_path, settings).start()
    assert run.run(Quiet())
    assert run.epoch == run.best_epoch + 2 < 9
    if run.best_epoch == 0:
        assert weights_fingerprint(run.best_network().state_dict()) == weights_fingerprint(model.weights)


def test_a_folder_holds_one_run_of_one_model(model, tracks, tmp_path):
    run = make(model, tracks, tmp_path).start()
    run.run(Quiet(), StopAfter(0))
    with pytest.raises(TraceError, match="--resume"):
        make(model, tracks, tmp_path).start()
    state = load_finetuning(run.checkpoint_path)
    other = {**state, "base": "another"}
    torch.save(other, run.checkpoint_path)
    with pytest.raises(TraceError, match="not the model that"):
        make(model, tracks, tmp_path).resume()
    run.checkpoint_path.write_bytes(b"no archive")
    with pytest.raises(TraceError, match="truncated"):
        make(model, tracks, tmp_path).resume()
    with pytest.raises(TraceError, match="no such fine-tuning checkpoint; leave --resume out"):
        make(model, tracks, tmp_path / "elsewhere").resume()


def test_diverging_is_told(model, tracks, tmp_path):
    run = make(model, tracks, tmp_path).start()
    with torch.no_grad():
        run.network.get_parameter("head.4.bias").fill_(float("nan"))
    run.history.append({"epoch": 0.0, "validation_position_m": 1.0, "validation_rotation_rad": 1.0})
    with pytest.raises(TraceError, match="diverged in epoch 1"):
        run.run(Quiet())
