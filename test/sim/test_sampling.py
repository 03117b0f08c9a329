"""When samples are taken, and which arrive."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trace_ros.errors import TraceError
from trace_ros.sim.backend import PhysicsConfig
from trace_ros.sim.sampling import SamplingConfig, draw_schedule

PHYSICS = PhysicsConfig()
OFF = SamplingConfig(jitter_probability=0.0)


def received(schedule) -> np.ndarray:
    """Physics steps of the samples that arrive."""
    return schedule.steps[1:][schedule.arrives]


def test_all_off_is_the_nominal_grid():
    schedule = draw_schedule(999, 9999, PHYSICS, OFF, np.random.default_rng(0))
    assert schedule.rate_hz == 500
    assert schedule.arrives.all()
    assert schedule.steps.tolist() == list(range(999, 9999, 4))


@given(
    st.sampled_from([200, 250, 400, 500]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.tuples(st.integers(1, 5), st.integers(0, 5)),
    st.integers(11, 4000),
    st.integers(0, 2**32),
)
def test_instants_strictly_increase_and_gaps_are_bounded(rate, jitter, lost, burst, length, seed):
    fewest, most = burst[0], burst[0] + burst[1]
    config = SamplingConfig(
        rates={rate: 1.0}, jitter_probability=jitter, lost_probability=(lost, lost), lost_burst=(fewest, most)
    )
    schedule = draw_schedule(100, 100 + length, PHYSICS, config, np.random.default_rng(seed))
    stride = PHYSICS.rate_hz // rate
    assert schedule.rate_hz == rate
    assert len(schedule.arrives) == (length - 1) // stride
    assert schedule.steps[0] == 100
    assert schedule.steps[-1] < 100 + length
    assert np.abs(schedule.steps - np.arange(100, 100 + length, stride)[: len(schedule.steps)]).max() <= 1
    steps = received(schedule)
    assert steps[-1] == schedule.steps[-1]
    assert schedule.arrives[0]
    gaps = np.diff(steps)
    assert (gaps > 0).all()
    assert gaps.max(initial=0) <= (most + 1) * stride + 2
    # Without jitter a gap is a whole number of intervals: nothing or at least the shortest burst is lost, except
    # where the last sample, which always arrives, ends a burst early.
    if not jitter:
        missing = gaps[:-1] // stride - 1
        assert (gaps % stride == 0).all()
        interior = missing[1:]  # the first sample, which always arrives, may shorten the first burst
        assert ((interior == 0) | (interior >= fewest)).all()


def test_as_much_is_lost_as_configured():
    config = OFF.model_copy(update={"lost_probability": (0.02, 0.02), "lost_burst": (3, 3)})
    rng = np.random.default_rng(1)
    parts = [1 - draw_schedule(0, 40_000, PHYSICS, config, rng).arrives.mean() for _ in range(20)]
    # A burst begins 0.02 of the times that one can; three samples are lost, and one more arrives before the next.
    assert np.mean(parts) == pytest.approx(0.06 / 1.06, rel=0.1)


def test_losses_differ_between_rollouts():
    config = OFF.model_copy(update={"lost_probability": (0.0, 0.1)})
    rng = np.random.default_rng(2)
    parts = [1 - draw_schedule(0, 8000, PHYSICS, config, rng).arrives.mean() for _ in range(100)]
    assert min(parts) < 0.01
    assert max(parts) > 0.06
    assert np.mean(parts) == pytest.approx(0.05, abs=0.015)


def test_rates_are_drawn_by_weight():
    config = SamplingConfig(rates={500: 7.0, 400: 1.0, 250: 2.0, 300: 0.0})
    rng = np.random.default_rng(3)
    rates = [config.draw_rate(PHYSICS, rng) for _ in range(3000)]
    counts = {rate: rates.count(rate) / len(rates) for rate in set(rates)}
    assert counts == pytest.approx({500: 0.7, 400: 0.1, 250: 0.2}, abs=0.03)
    assert config.longest_stride(PHYSICS) == 8


def test_a_rate_that_does_not_divide_the_physics_rate_is_refused():
    config = SamplingConfig(rates={500: 1.0, 400: 0.5, 300: 0.0})
    with pytest.raises(TraceError, match=r"sampling\.rates: 400 Hz does not divide physics\.rate_hz 1000") as error:
        draw_schedule(0, 1000, PhysicsConfig(rate_hz=1000), config, np.random.default_rng(0))
    assert "\n" not in str(error.value)
    config.check_rates(PHYSICS)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("lost_probability", (-0.1, 0.1), "within 0 and 1"),
        ("lost_burst", (3, 2), "fewest <= most"),
        ("lost_burst", (0, 2), "1 <= fewest"),
        ("rates", {500: -1.0}, "greater than or equal to 0"),
        ("rates", {10: 1.0}, "greater than or equal to 50"),
    ],
)
def test_bad_values_are_refused(key, value, words):
    with pytest.raises(ValidationError, match=words):
        SamplingConfig(**{key: value})
