"""A file is whole or not there."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from trace_ros.whole_files import whole_file


def test_a_file_appears_at_the_end_and_replaces_the_old_one(tmp_path):
    path = tmp_path / "new" / "a.txt"
    for text in ("one", "two"):
        with whole_file(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_fault_leaves_the_old_file_and_nothing_else(tmp_path, fault):
    path = tmp_path / "a.npz"
    path.write_text("old")
    with pytest.raises((KeyboardInterrupt, OSError)), whole_file(path) as temporary:
        np.save(temporary.open("wb"), np.zeros(3))
        raise fault
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_two_processes_do_not_write_into_each_others(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    with whole_file(path) as ours:
        ours.write_text("ours")
        monkeypatch.setattr("os.getpid", lambda: 1)
        with whole_file(path) as theirs:
            theirs.write_text("theirs, which is longer")
        assert path.read_text() == "theirs, which is longer"
    assert path.read_text() == "ours"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_in_the_way_stays(tmp_path):
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(OSError, match="Is a directory"), whole_file(tmp_path / "a.npz"):
        pass
    assert (tmp_path / "a.npz").is_dir()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.txt").write_text("old")
    (tmp_path / "a.txt").symlink_to(tmp_path / "there" / "a.txt")
    with whole_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a.txt").is_symlink()
    assert (tmp_path / "there" / "a.txt").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as reader:
        with whole_file(path) as temporary:
            temporary.write_text("all of it")
        said, _ = reader.communicate(timeout=30)
    assert said == b"all of it"
    assert path.is_fifo()


def test_what_a_process_has_open_is_written_to(tmp_path):
    """As ``--json /dev/stdout`` with the output sent to a file."""
    with (tmp_path / "out.txt").open("a") as stream:
        stream.write("before ")
        stream.flush()
        with whole_file(Path(f"/proc/self/fd/{stream.fileno()}")) as temporary:
            temporary.write_text("the result")
        assert os.fstat(stream.fileno()).st_nlink == 1
    assert (tmp_path / "out.txt").read_text() == "before the result"
