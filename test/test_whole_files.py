"""A file is whole or not there."""

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


def test_a_folder_in_the_way_stays(tmp_path):
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(OSError, match="Is a directory"), whole_file(tmp_path / "a.npz"):
        pass
    assert (tmp_path / "a.npz").is_dir()
