"""Files of others: none runs code, reaches a shell, or makes the reader take more memory than it holds."""

from __future__ import annotations

import ast
import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from trace_ros.bags.messages import decode_message
from trace_ros.bags.storage import typestore
from trace_ros.errors import TraceError
from trace_ros.estimator import checkpoint
from trace_ros.estimator.checkpoint import load_model
from trace_ros.logs import SensorLog
from trace_ros.resources import MAX_YAML_BYTES, read_yaml
from trace_ros.robot import RobotDescription
from trace_ros.urdf import Urdf

ROOT = Path(__file__).resolve().parents[1]


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Every call in what is installed or run: where, the call, and its dotted name."""
    for folder in ("trace_ros", "launch", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node, ast.unparse(node.func)


def argument(call: ast.Call, name: str) -> object:
    return next((getattr(k.value, "value", None) for k in call.keywords if k.arg == name), None)


def test_nothing_evaluates_text_or_unpickles_or_asks_a_shell() -> None:
    banned = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput", "yaml.load"}
    banned |= {"pickle.load", "pickle.loads", "yaml.unsafe_load", "yaml.full_load", "joblib.load", "marshal.loads"}
    seen = 0
    for where, call, name in calls():
        seen += 1
        assert name not in banned, where
        assert argument(call, "shell") is not True, where
        if name == "torch.load":
            assert argument(call, "weights_only") is True, where
        if name in ("np.load", "numpy.load"):
            assert argument(call, "allow_pickle") is False, where
    assert seen > 2000


def test_yaml_constructs_no_objects(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    path = tmp_path / "robot.yaml"
    path.write_text(f"urdf: !!python/object/apply:os.mkdir ['{trap}']\n")
    with pytest.raises(TraceError, match="not valid YAML"):
        RobotDescription.load(path)
    assert not trap.exists()


def test_yaml_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_YAML_BYTES + 1)
    with pytest.raises(TraceError, match="too many for a file of settings"):
        read_yaml(path)
    path.write_text("[" * 100_000)
    with pytest.raises(TraceError, match="not valid YAML"):
        read_yaml(path)
    levels = ["a0: &a0 [x, x]", *(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 30))]
    path.write_text("\n".join(levels))  # 9^29 elements if they were written out
    with pytest.raises(TraceError, match=r"unknown key|required"):
        RobotDescription.load(path)


def test_urdfs_have_no_entities_and_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "robot.urdf"
    path.write_text('<!DOCTYPE r [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><robot name="&b;"/>')
    with pytest.raises(TraceError, match="declares XML entities"):
        Urdf.read(path)
    path.write_text('<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/hostname">]><robot name="r">&a;</robot>')
    with pytest.raises(TraceError, match="declares XML entities"):
        Urdf.read(path)
    with path.open("wb") as file:
        file.truncate(20 * 1024**2)
    with pytest.raises(TraceError, match="too many for a URDF"):
        Urdf.read(path)


def npz_member(path: Path, header: bytes, content: bytes) -> None:
    """An .npz of one array with any header."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("stamp_ns.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)


def test_an_array_that_claims_more_than_it_holds_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    npz_member(path, b"{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }\n", b"\0" * 64)
    with pytest.raises(TraceError, match=r"stamp_ns.npy claims 8796093022208 bytes"):
        SensorLog.load(path)
    for header in (b"{'descr': '<i8', 'fortran_order': False, 'shape': (8,), 'x': __import__('os')}\n", b"nonsense\n"):
        npz_member(path, header, b"\0" * 64)
        with pytest.raises(TraceError, match="not a readable"):
            SensorLog.load(path)


def test_a_log_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.npz"
    np.savez_compressed(path, stamp_ns=np.zeros(200_000, dtype=np.int64))
    assert path.stat().st_size < 5000
    monkeypatch.setattr("trace_ros.logs.MAX_NPZ_BYTES", 1_000_000)
    with pytest.raises(TraceError, match="once unpacked are too many"):
        SensorLog.load(path)


def test_a_model_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace/constants.pkl", b"\0" * 10_000_000)
    monkeypatch.setattr(checkpoint, "MAX_BYTES", 1_000_000)
    assert path.stat().st_size < checkpoint.MAX_BYTES
    with pytest.raises(TraceError, match="once unpacked, too many for a model"):
        load_model(path)


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 10_000_000])
@pytest.mark.parametrize("field", ["name", "position"])
def test_a_message_that_claims_long_arrays_takes_no_memory(length: int, field: str) -> None:
    """A joint state of a few bytes that says it has millions of joints."""
    import tracemalloc

    raw = io.BytesIO()
    raw.write(b"\0\1\0\0" + struct.pack("<iI", 1, 2) + struct.pack("<I", 1) + b"\0" + b"\0\0\0")
    raw.write(struct.pack("<I", length if field == "name" else 0))
    raw.write(struct.pack("<I", length) + b"\0" * 16)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="not a sensor_msgs/msg/JointState"):
            decode_message(typestore().deserialize_cdr, raw.getvalue(), "sensor_msgs/msg/JointState", "/j", 0)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [read_yaml, Urdf.read], ids=["yaml", "urdf"])
def test_what_is_no_file_is_not_waited_for(read: Callable[[Path], object], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(TraceError, match=r"cannot be read \(a device or a pipe"):
            read(path)
    with pytest.raises(TraceError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)
    with pytest.raises(TraceError, match=r"cannot be read \(embedded null byte\)"):
        read(Path("a\0b"))
