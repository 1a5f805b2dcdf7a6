"""Images in Parquet files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rarefish.data.open_dataset import open_pool
from rarefish.data.parquet import open_parquet
from rarefish.errors import DataError


def test_parquet_on_the_scale_a_model_wants(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": [(folder / "cat/0.png").read_bytes(), b"none"]}), folder / "a.parquet")
    scaled = open_pool(folder / "a.parquet", (6, 4), mean=(1.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert scaled[0][0].abs().max() == 0 and open_parquet([folder / "a.parquet"], (6, 4), "RGB")[0][0].max() == 1
    with pytest.raises(DataError, match="row 1 cannot be decoded: it is not an image in a known format"):
        _ = scaled[1]


def test_parquet_files_with_other_columns_are_named(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = [(folder / "cat/0.png").read_bytes()]
    parquet.write_table(pa.table({"image": content}), folder / "a.parquet")
    parquet.write_table(pa.table({"img": content, "id": [1]}), folder / "b.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has its images in the column image, but .*b\.parquet has"):
        open_pool(folder, (4, 4))
    parquet.write_table(pa.table({"image": [[1, 2]], "img": content}), folder / "b.parquet")
    pool = open_pool(folder, (4, 4))
    assert pool[0][0].shape == (3, 4, 4)
    with pytest.raises(DataError, match="Row 1 has no image in the column image"):
        _ = pool[1]
    (folder / "b.parquet").unlink()
    (folder / "b.parquet").mkdir()
    with pytest.raises(DataError, match=r"b\.parquet cannot be read: it is a folder"):
        open_pool(folder, (4, 4))


def test_a_parquet_file_that_is_damaged_later_gives_images_that_cannot_be_read(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": [(folder / "cat/0.png").read_bytes()] * 3}), folder / "a.parquet")
    pool = open_pool(folder / "a.parquet", (4, 4))
    (folder / "a.parquet").write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    with pytest.raises(DataError, match=r"Cannot read row 1 from .*a\.parquet"):
        _ = pool[1]


def test_parquet_rows_are_the_files_they_came_from(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / "pool").mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 255, (12, 12), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"pool/{number:02d}.png")
    files = sorted((folder / "pool").glob("*.png"))
    for name, part in (("p0.parquet", files[:11]), ("p1.parquet", files[11:])):
        table = pa.table({"image": [{"bytes": path.read_bytes(), "path": path.name} for path in part]})
        parquet.write_table(table, folder / name, row_group_size=4)
    pool = open_pool(folder, (12, 12), "L")
    plain = open_pool(folder / "pool", (12, 12), "L")
    assert len(pool) == 20 and str(pool.paths[12]).endswith("p1.parquet#1")
    assert all(torch.equal(pool[i][0], plain[i][0]) for i in (19, 0, 10, 11, 3))
    (folder / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a Parquet file"):
        open_parquet([folder / "bad.parquet"], (12, 12), "L")
