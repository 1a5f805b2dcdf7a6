"""The checks that all readers share: regular files, JSON types, our own fields, and times."""

import os
from pathlib import Path

import pytest

from rarefish.errors import DataError
from rarefish.exchange import label_parsing as module
from rarefish.exchange.label_parsing import (
    read_bytes,
    read_json,
    read_own_fields,
    require,
    require_objects,
    to_path,
    to_time,
)


def test_only_regular_files_of_a_plausible_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "labels").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    assert read_bytes(tmp_path / "labels") == b"12345"
    monkeypatch.setattr(module, "MAX_BYTES", 4)
    for name, message in (("labels", "at most 4"), ("pipe", "not a regular file"), ("absent", "cannot be read")):
        with pytest.raises(DataError, match=message):
            read_bytes(tmp_path / name)


def test_truncated_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('{"a": [1')
    with pytest.raises(DataError, match="truncated or not valid JSON"):
        read_json(tmp_path / "labels")


def test_a_value_of_another_type_is_named() -> None:
    assert require(3, int, "The id") == 3
    for value, kind, message in ((True, int, "a whole number, not 'True'"), ("3", list, "a list, not '3'")):
        with pytest.raises(DataError, match=f"The id must be {message}"):
            require(value, kind, "The id")
    with pytest.raises(DataError, match="Entry 2 of images must be an object"):
        require_objects([{}, 1], "images")


@pytest.mark.parametrize(
    "fields", [None, [], {"image": 7}, {"image": True, "hash": "a"}, {"image": 1 << 63, "hash": "a"}]
)
def test_own_fields_are_all_there_or_ignored(fields: object) -> None:
    assert read_own_fields(fields) == {}
    assert read_own_fields({"image": 7, "hash": "a", "round": 1}) == {"image": 7, "hash": "a"}


def test_times_are_normalized_to_utc() -> None:
    assert to_time("2026-01-01T12:00+01:00", "line 2") == "2026-01-01T11:00:00.000+00:00"
    assert to_time("2026-01-01", "line 2") == "2026-01-01T00:00:00.000+00:00" and to_time("", "line 2") == ""
    with pytest.raises(DataError, match="line 2: 'soon' is not a time"):
        to_time("soon", "line 2")


def test_text_that_is_no_path_names_no_file() -> None:
    assert to_path("käfer\udcff.png") == "käfer".encode() + b"\xff.png"
    assert to_path("\ud800") == rb"\ud800"
