"""Two processes do not write one run."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trace_ros.errors import TraceError
from trace_ros.run_folder import sole_writer

HOLD = "import sys, time\nfrom pathlib import Path\nfrom trace_ros.run_folder import sole_writer\n" + (
    "with sole_writer(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


def test_another_process_is_named_and_its_end_however_it_comes_frees_the_folder(tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(TraceError, match=f"run: process {process.pid} is at work there"), sole_writer(run):
            pass
        (run / "kept").touch()
        process.kill()
    with sole_writer(run):
        pass
    with sole_writer(run):  # the lock of before is gone, its file is not
        pass
    assert (run / "kept").exists()


def test_a_file_system_without_locks_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with sole_writer(tmp_path), sole_writer(tmp_path):
        pass


def test_a_folder_of_which_nothing_came_goes_again(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()
    (tmp_path / "there").mkdir()
    with sole_writer(tmp_path / "there"):
        pass
    assert (tmp_path / "there").is_dir()


def test_a_lock_that_is_none_is_named_and_not_written(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    linked, folder = tmp_path / "linked", tmp_path / "folder"
    linked.mkdir()
    (linked / ".lock").symlink_to(precious)
    (folder / ".lock").mkdir(parents=True)
    for run in (linked, folder):
        with pytest.raises(TraceError, match=rf"{run}/\.lock: cannot be written"), sole_writer(run):
            pass
    assert precious.read_text() == "mine"


def test_what_fails_within_is_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"), sole_writer(tmp_path):
        raise OSError("disk")
