"""Files are whole or not there."""

from pathlib import Path

import pytest

from fspo.base.errors import UserError
from fspo.base.files import digest, digest_of, json_lines, remove_parts, whole_file, whole_folder, write_text


def test_the_name_appears_when_the_block_ends_and_a_failing_block_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "numbers.json"

    def write(text: str, error: type[Exception] | None) -> None:
        with whole_file(path) as part:
            part.write_text(text)
            assert path.exists() == (error is not None)
            if error:
                raise error

    write("[1]", None)
    with pytest.raises(KeyError):
        write("half", KeyError)
    assert path.read_text() == "[1]"
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=r"cannot write .*file.name"):
        write_text(tmp_path / "file" / "name", "text")


def test_a_folder_appears_whole_in_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model"
    (path / "of-before").mkdir(parents=True)
    with whole_folder(path) as part:
        (part / "weights").write_text("new")
        assert (path / "of-before").is_dir()
    assert [file.name for file in path.iterdir()] == ["weights"]
    assert list(tmp_path.iterdir()) == [path]


def test_only_half_written_things_of_the_name_are_removed(tmp_path: Path) -> None:
    for name in (".part-1-a", ".part-2-b", "a"):
        (tmp_path / name).mkdir()
    (tmp_path / ".part-3-a").touch()
    assert remove_parts(tmp_path, "-a") == 2
    assert {path.name for path in tmp_path.iterdir()} == {".part-2-b", "a"}
    assert remove_parts(tmp_path) == 1


def test_json_lines_say_what_is_wrong_with_which_line() -> None:
    found = list(json_lines(['{"a": 1}', "", "[2]", '{"b": ', b"\xff\xfe", '{"c": NaN}']))
    assert [number for number, _ in found] == [1, 3, 4, 5, 6]
    assert found[0][1] == {"a": 1}
    assert found[1][1] == "the row is list, not an object of names and values"
    assert all(isinstance(wrong, str) and wrong.startswith("no valid JSON") for _, wrong in found[2:4])


def test_the_digest_is_the_start_of_sha256() -> None:
    assert digest("abc") == digest(b"abc") == "ba7816bf8f01cfea"  # FIPS 180-2, appendix B.1
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) == digest('{"a": 1, "b": 2}')
