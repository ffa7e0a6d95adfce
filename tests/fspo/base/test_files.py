"""Files are whole or not there."""

from pathlib import Path

import pytest

from fspo.base.errors import UserError
from fspo.base.files import whole_file, write_text


def test_the_name_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "numbers.json"
    with whole_file(path) as part:
        part.write_text("[1]")
        assert not path.exists()
    assert path.read_text() == "[1]"
    assert list(path.parent.iterdir()) == [path]


def test_a_failing_block_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    write_text(path, "old")

    def fail() -> None:
        with whole_file(path) as part:
            part.write_text("half")
            raise KeyError("broken")

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=r"cannot write .*file.name"):
        write_text(tmp_path / "file" / "name", "text")
