"""The command as a whole: what it is quick at, and how it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest
import typer
from commands import run_trace

from trace_ros.cli.common import check_output
from trace_ros.cli.options import metric_settings, seed_numbers
from trace_ros.errors import TraceError


@pytest.fixture
def trace(monkeypatch, capsys):
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


def test_help_waits_for_neither_torch_nor_simulator_nor_plots():
    late = "{'torch', 'mujoco', 'matplotlib', 'plotly'}"
    code = f"import sys, trace_ros.cli.commands; print(*sorted({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_overview_tells_each_command_in_one_whole_line(trace):
    for arguments in (("--help",), ("bag", "--help"), ("robot", "--help")):
        result = trace(*arguments)
        assert result.code == 0
        assert "..." not in result.out.replace("[ARGS]...", "")


def test_joint_names_are_never_shortened(monkeypatch, trace):
    result = trace("robot", "check", "go2")
    monkeypatch.setenv("COLUMNS", "80")
    assert result.code == 0, result.err
    assert "FL_thigh_joint" in result.out
    assert "RR_hip_joint" in result.out


def test_a_fault_of_the_disk_is_one_line(monkeypatch, trace):
    def full(*_):
        raise OSError(28, "No space left on device", "/data/bag")

    monkeypatch.setattr("trace_ros.cli.robot.available_robots", full)
    result = trace("robot", "list")
    assert (result.code, result.err) == (2, "error: /data/bag: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", ""), "an empty argument after 'evaluate'"),
        (("calibrate", "a.npz", ""), "an empty argument after 'a.npz'"),
        (("train", "--output="), "--output has no value"),
        (("evaluate", "a.npz", "--json", ""), "an empty argument after '--json'"),
        (("",), "an empty argument"),
    ],
)
def test_an_empty_argument_is_not_the_current_folder(trace, arguments, message):
    result = trace(*arguments)
    assert (result.code, result.err) == (2, f"error: {message}: is a variable of the shell not set?\n")


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(tmp_path):
    arguments = ["simulate", "--course", "demo", "--bag", str(tmp_path / "bag")]
    code = "import trace_ros.cli.commands; print('ready', flush=True); trace_ros.cli.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not (tmp_path / "bag").exists()


def test_ctrl_c_while_libraries_load_ends_quietly():
    """With an import that takes for ever in place of the first of them."""
    code = (
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': print('loading', flush=True); time.sleep(600)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "import runpy; runpy.run_module('trace_ros.cli', run_name='__main__')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


def test_the_entry_point_loads_next_to_nothing():
    code = "import sys, trace_ros.cli; print(*sorted({'numpy', 'typer', 'rich', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("file", True, "is a file, expected a folder"),
        ("", False, "is a folder, expected a file"),
        ("file/below/it", False, "file is not a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_known_before_the_work(tmp_path, name, folder, message):
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match=message):
        check_output(tmp_path / name, folder=folder)
    check_output(tmp_path / "new" / "folder" / "x.json")
    check_output(tmp_path / "file")
    check_output(None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_known_before_the_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(TraceError, match="no permission"):
        check_output(tmp_path / "x.json")
    tmp_path.chmod(0o700)


def test_a_horizon_is_finite(trace):
    assert metric_settings("none", 2.0).horizon_s == 2.0
    for value in ("inf", "nan", "1e300"):
        result = trace("evaluate", "log", "--horizon", value)
        assert result.code == 2
        assert "'--horizon'" in result.err


def test_commands_are_registered():
    from trace_ros.cli.commands import app

    names = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    expected = {"simulate", "rollouts", "train", "export", "calibrate", "evaluate", "report", "attention"}
    assert names == expected | {"soak", "latency", "bag", "robot", "finetune", "benchmark", "policy", "blend"}


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "--npz", "x.npz"),
        ("rollouts", "--output", "x"),
        ("train", "--output", "x", "--steps", "1"),
        ("latency",),
        ("attention",),
        ("robot", "check", "go2"),
    ],
)
def test_a_seed_that_no_generator_takes_is_refused_before_the_work(trace, command):
    done = trace(*command, "--seed", 2**64)
    assert done.code == 2
    assert "'--seed'" in done.err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("train", "--output", "x", "--steps", "1"), "--threads"),
        (("finetune", "--output", "x"), "--threads"),
        (("rollouts", "--output", "x"), "--jobs"),
    ],
)
def test_more_threads_or_processes_than_a_system_gives_are_refused(trace, command, option):
    done = trace(*command, option, 99999)
    assert done.code == 2
    assert f"'{option}'" in done.err


@pytest.mark.parametrize("seed", ["2147483648", "9" * 5000])
def test_too_large_seeds_of_a_list_are_refused_in_one_short_line(seed):
    with pytest.raises(TraceError, match="is too large for a seed") as caught:
        seed_numbers("--seeds", f"101,{seed}")
    assert len(str(caught.value)) < 100
    assert seed_numbers("--seeds", "0,2147483647") == [0, 2**31 - 1]
