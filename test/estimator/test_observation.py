"""The layout of the 47 numbers and the ring buffer against a plain list."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_ros.estimator import observation as obs
from trace_ros.estimator.observation import ObservationWindow


def test_the_slices_tile_the_47_numbers():
    slices = (obs.GYRO, obs.ACCEL, obs.JOINT_POSITION, obs.JOINT_VELOCITY, obs.JOINT_TORQUE, obs.ROLL_PITCH,
              obs.VELOCITY_XY, obs.DT)  # fmt: skip
    indices = [index for part in slices for index in range(part.start, part.stop)]
    assert indices == list(range(obs.OBSERVATION_SIZE)) == list(range(47))
    assert obs.QUERY_CHANNELS == (0, 1, 2, 3, 4, 5, 42, 43, 44, 45, 46)


@given(st.lists(st.integers(1, 100), max_size=5))
def test_the_window_is_the_tail_of_what_was_appended(bursts):
    window, everything = ObservationWindow(), []
    for burst in bursts:
        for _ in range(burst):
            everything.append(len(everything))
            window.append(np.full(47, everything[-1], dtype=np.float32))
        tail = everything[-30:]
        assert window.view()[:, 5].tolist() == tail
        assert [row[0] for row in window] == tail
        assert (len(window), window.full) == (len(tail), len(everything) >= 30)
    window.clear()
    assert len(window) == 0
    assert not window.full
