"""CSV: the columns of an export, tables of spreadsheets, and tables that are broken."""

import csv
import os
from pathlib import Path

import pytest

from rarefish.errors import DataError
from rarefish.exchange.exporter import export
from rarefish.exchange.importer import Imported, import_labels
from rarefish.workspace.answers import answer
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import answers, asked, make_picked, rows
from tests.workspaces import draw, make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=12, trusted=2, picks=6)


def take_csv(store: Store, text: str | bytes, who: str = "me") -> Imported:
    source = store.folder.parent / "labels.csv"
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    return import_labels(store, "csv", source, who)


def test_csv(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
    with places["csv"].open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["image"]) for row in table if row["who"] != "bob" or row["answer"] != "class"] == asked(store)
    first = table[0]
    assert (first["path"], first["round"], first["rank"], first["similarity"]) == ("image 00000.png", "1", "0", "1.0")
    assert (first["class"], first["who"], first["prediction"], first["probability"]) == ("cat", "ann", "cat", "0.7")


@pytest.mark.parametrize("name", ["=cmd|'x'!A1", "+1", "-rf", "@SUM(A1)", "'=1", "\t=1"])
def test_a_table_holds_no_formula_and_names_come_back(tmp_path: Path, name: str) -> None:
    (tmp_path / "pool").mkdir()
    for seed, file in enumerate((f"{name}.png", "other.png")):
        draw(tmp_path / "one.png", seed, seed)
        os.rename(tmp_path / "one.png", tmp_path / "pool" / file)
    plain = name.strip()
    first, second = (make_picked(tmp_path, place, [plain, "owl"]) for place in ("a", "b"))
    for image in asked(first):
        answer(first, image, plain, "class", 0, str(image))
    made = export(first, "labels", "csv", tmp_path / "made.csv")
    with made.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    marked = {"=", "+", "-", "@", "\t", "\r"}
    assert not [cell for row in table for cell in row.values() if cell[:1] in marked]
    assert {row["class"] for row in table} == {f"'{plain}"} and table[0]["similarity"] == "1.0"
    no_numbers = [{key: "" if key in ("image", "hash") else cell for key, cell in row.items()} for row in table]
    with made.open("w", newline="", encoding="utf-8") as file:  # as a tool that keeps the paths alone
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(no_numbers)
    done = import_labels(second, "csv", made)
    assert not done.unknown and answers(second) == answers(first)


def test_a_spreadsheet_may_have_its_way_with_a_table(store: Store) -> None:
    first, second = asked(store)[:2]
    assert take_csv(store, f"\ufeffIMAGE;Label\r\n{first};cat\r\n\r\n{second};\r\n").count == 1
    assert take_csv(store, f"Image\tclass\twho\n{second}\tdog\tann").count == 1
    assert answers(store) == {(first, "me", "class", 0), (second, "ann", "class", 1)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "none; it needs"),
        ("a,b\n1,2\n", "has the columns a, b"),
        ("image,class,class\n1,2,3\n", "has a duplicate column"),
        ("image,class\n7,cat\n8\n", "line 3 has 1 cells"),
        ("image,class\n7,cat,3\n", "line 2 has 3 cells"),
        ('image,class\n7,"cat\n', "line 2: unexpected end"),
        ("image,class\nseven,cat\n", "'seven' is not an image number"),
        ("image,class\n7,cat\n-1,cat\n", "'-1' is not an image number"),
        ("image,class,time\n7,cat,soon\n", "'soon' is not a time"),
        ("image,class\n7," + "x" * 200_000, "field larger"),
    ],
)
def test_a_broken_table_changes_nothing(store: Store, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        take_csv(store, text)
    assert rows(store) == []
