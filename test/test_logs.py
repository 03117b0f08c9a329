"""SensorLog and Trajectory: what they accept, how they interpolate, and that files come back equal."""

from dataclasses import replace
from zipfile import ZIP_LZMA, ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory

START = 1_700_000_000_000_000_000


def trajectory(n=50, step_ns=10_000_000, rate=0.5):
    """A body that moves at 1 m/s along x and turns at ``rate`` rad/s."""
    stamp = START + np.arange(n) * step_ns
    t = (stamp - START) * 1e-9
    position = np.stack((t, np.zeros(n), np.zeros(n)), axis=1)
    orientation = Rotation.from_euler("z", rate * t[:, None]).as_quat()
    return Trajectory(stamp, position, orientation, np.tile([1.0, 0, 0], (n, 1)))


def log(n=40, **changes):
    rng = np.random.default_rng(0)
    values = {
        "stamp_ns": START + np.arange(n) * 2_000_000,
        "angular_velocity": rng.normal(size=(n, 3)),
        "linear_acceleration": rng.normal(size=(n, 3)),
        "joint_position": rng.normal(size=(n, 12)),
        "joint_velocity": rng.normal(size=(n, 12)),
        "joint_torque": rng.normal(size=(n, 12)),
        "torque_source": "pd_target",
        "robot": "go2",
    }
    return SensorLog(**(values | changes))


@given(st.integers(0, 480_000_000))
def test_resampling_is_exact_for_uniform_motion(offset_ns):
    resampled, mask = trajectory().resample(np.array([START + offset_ns]))
    assert mask.all()
    t = offset_ns * 1e-9
    np.testing.assert_allclose(resampled.position[0], [t, 0, 0], atol=1e-9)
    assert abs(resampled.rotation_world_body[0].as_rotvec()[2] - 0.5 * t) < 1e-8


def test_resampling_never_crosses_a_gap_and_never_extrapolates():
    whole = trajectory(n=101)
    holed = whole.select(np.abs(np.arange(101) - 50) > 20)
    wanted = START + np.arange(-5, 110) * 10_000_000
    resampled, mask = holed.resample(wanted, max_gap_s=0.1)
    reached = (wanted - START) // 10_000_000
    expected = (reached >= 0) & (reached <= 100) & ((reached <= 29) | (reached >= 71))
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(resampled.stamp_ns, wanted[expected])


def test_path_length_and_duration():
    assert trajectory(n=101).path_length_m == pytest.approx(1.0)
    assert trajectory(n=101).duration_s == pytest.approx(1.0)


def test_quaternions_are_normalised():
    base = trajectory(3)
    scaled = Trajectory(base.stamp_ns, base.position, 7 * base.orientation, base.velocity)
    np.testing.assert_allclose(scaled.orientation, base.orientation)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stamp_ns": np.array([3, 2] + [5] * 38)}, "strictly increase, but sample 1"),
        ({"stamp_ns": np.arange(40) * 0.002}, "integers"),
        ({"joint_position": np.zeros((40, 11))}, r"joint_position has shape \(40, 11\), expected \(40, 12\)"),
        ({"joint_torque": None}, "torque_source is 'pd_target' but joint_torque is absent"),
        ({"torque_source": "none"}, "torque_source is 'none' but joint_torque is present"),
        ({"torque_source": "guess"}, "'guess' is none of"),
        ({"contact": np.zeros((40, 3), bool)}, "contact has shape"),
    ],
)
def test_a_wrong_log_is_refused_by_name(change, message):
    with pytest.raises(TraceError, match=message):
        log(**change)


def test_a_zero_quaternion_is_refused():
    base = trajectory(3)
    with pytest.raises(TraceError, match="orientation 0 is not a quaternion"):
        Trajectory(base.stamp_ns, base.position, np.zeros((3, 4)), base.velocity)


@pytest.mark.parametrize("without", [(), ("joint_velocity",), ("joint_torque",)])
def test_a_log_comes_back_from_its_file_as_it_was(tmp_path, without):
    changes = dict.fromkeys(without)
    if "joint_torque" in without:
        changes["torque_source"] = "none"
    rng = np.random.default_rng(1)
    original = log(
        reference=trajectory(), contact=rng.random((40, 4)) > 0.5, foot_force=rng.normal(size=(40, 4, 3)), **changes
    )
    original.save(tmp_path / "sub" / "log.npz")
    copy = SensorLog.load(tmp_path / "sub" / "log.npz")
    for name in ("stamp_ns", "angular_velocity", "joint_velocity", "joint_torque", "contact", "foot_force"):
        np.testing.assert_array_equal(getattr(copy, name), getattr(original, name))
    assert (copy.robot, copy.torque_source, copy.contact_normal) == ("go2", original.torque_source, None)
    assert copy.reference is not None
    np.testing.assert_array_equal(copy.reference.position, original.reference.position)


def test_unreadable_files_are_refused_in_one_line(tmp_path):
    whole = tmp_path / "log.npz"
    log().save(whole)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole.read_bytes()[:500])
    other = tmp_path / "other.npz"
    np.savez(other, a=np.zeros(3))
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, stamp_ns=np.array([object()], dtype=object))
    single = tmp_path / "single.npz"
    with single.open("wb") as file:
        np.save(file, np.zeros(3))
    text = tmp_path / "text.npz"
    text.write_text("hello")
    arrays = dict(np.load(whole))
    encrypted, kneaded = tmp_path / "encrypted.npz", tmp_path / "kneaded.npz"
    data = bytearray(whole.read_bytes())
    directory = data.index(b"PK\1\2")
    for place in (6, directory + 8):
        data[place] |= 1
    encrypted.write_bytes(data)
    with ZipFile(whole) as source, ZipFile(kneaded, "w", ZIP_LZMA) as target:
        for item in source.infolist():
            target.writestr(item.filename, source.read(item.filename))
    data = bytearray(kneaded.read_bytes())
    data[60:80] = bytes(value ^ 0xFF for value in data[60:80])
    kneaded.write_bytes(data)
    half, words, narrow = tmp_path / "half.npz", tmp_path / "words.npz", tmp_path / "narrow.npz"
    np.savez(half, **arrays, reference_stamp_ns=np.arange(3), reference_velocity=np.zeros((3, 3)))
    np.savez(words, **{**arrays, "angular_velocity": np.array("fast")})
    np.savez(narrow, **{**arrays, "joint_position": np.zeros((40, 11))})
    for path, message in (
        (tmp_path / "none.npz", "no such file"),
        (cut, "cut.npz: not a .npz sensor log, or truncated"),
        (single, "not a .npz sensor log"),
        (text, "not a .npz sensor log"),
        (half, "of the reference, orientation, position are missing"),
        (words, "words.npz: sensor log: angular_velocity holds <U4, expected numbers"),
        (narrow, r"narrow.npz: sensor log: joint_position has shape \(40, 11\), expected \(40, 12\)"),
        (other, "unknown arrays a"),
        (pickled, "not a readable"),
        (encrypted, "encrypted.npz: not a readable"),
        (kneaded, "kneaded.npz: not a readable"),
    ):
        with pytest.raises(TraceError, match=message) as refusal:
            SensorLog.load(path)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e7])
@pytest.mark.parametrize("name", ["angular_velocity", "joint_position", "joint_torque"])
def test_numbers_that_no_sensor_says_are_refused_by_name_and_place(name, value):
    values = getattr(log(), name).copy()
    values[17, 1] = value
    with pytest.raises(TraceError, match=f"{name} of sample 17 is (NaN or infinite|beyond 1e\\+06)"):
        log(**{name: values})


def test_a_trajectory_is_finite_and_may_be_far_away():
    far = trajectory()
    position = far.position + [5e6, 0, 0]  # UTM northing
    assert replace(far, position=position).position[0, 0] > 4e6
    position[3, 2] = np.nan
    with pytest.raises(TraceError, match="trajectory: position of sample 3 is NaN"):
        replace(far, position=position)


def test_samples_are_the_rows():
    whole = log(joint_torque=None, torque_source="none")
    samples = list(whole)
    assert len(samples) == len(whole) == 40
    assert samples[7].stamp_ns == whole.stamp_ns[7]
    np.testing.assert_array_equal(samples[7].joint_position, whole.joint_position[7])
    assert samples[7].joint_torque is None
    assert whole.rate_hz == pytest.approx(500.0)


def test_select_cuts_every_array_and_keeps_the_reference():
    whole = log(reference=trajectory(), contact=np.ones((40, 4), bool))
    part = whole.select(slice(10, 20))
    assert len(part) == len(part.contact) == len(part.joint_torque) == 10
    assert len(part.reference) == 50
