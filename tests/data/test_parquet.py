"""Pools in folders, manifests and Parquet files."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rarefish.data.image_files import read_folder
from rarefish.data.parquet import open_labeled, open_parquet, open_pool
from rarefish.errors import ArgumentError, DataError


def test_images_on_the_scale_a_model_wants(folder: Path) -> None:
    mean, std = (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)
    plain, scaled = read_folder(folder, size=(6, 4)), open_labeled(folder, (6, 4), mean=mean, std=std)
    assert torch.allclose(scaled[0][0][:, 0, 0], torch.tensor([1.0, -1.0, 0.0])) and scaled.targets == plain.targets
    pool = open_pool(folder, (6, 4), mean=mean, std=std)
    assert torch.equal(pool[2][0], scaled[2][0]) and not torch.equal(pool[2][0], plain[2][0])
    assert open_pool(folder, (6, 4), "L", (0.5,))[0][0].min() < 0
    for mode, bad_mean, bad_std, message in (
        ("L", mean, None, "mode L need 1 numbers for mean, not 3"),
        ("RGB", None, (1.0, 0.0, 1.0), "above 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            open_pool(folder, (6, 4), mode, bad_mean, bad_std)


def test_parquet_on_the_scale_a_model_wants(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": [(folder / "cat/0.png").read_bytes(), b"none"]}), folder / "a.parquet")
    scaled = open_pool(folder / "a.parquet", (6, 4), mean=(1.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert scaled[0][0].abs().max() == 0 and open_parquet([folder / "a.parquet"], (6, 4), "RGB")[0][0].max() == 1
    with pytest.raises(DataError, match="row 1 cannot be decoded: it is not an image in a known format"):
        _ = scaled[1]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(folder: Path) -> None:
    (folder / "dog").chmod(0)
    try:
        with pytest.raises(DataError, match="dog cannot be listed: Permission denied"):
            open_pool(folder, (4, 4))
    finally:
        (folder / "dog").chmod(0o755)


@pytest.mark.parametrize("name", ["pool.csv", "pool.parquet", "pool/1.png", "pool/1.parquet"])
def test_a_pipe_in_place_of_a_file_is_refused_or_left_out(tmp_path: Path, name: str) -> None:
    """In a process of its own: what waits for a pipe waits for ever."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / "pool").mkdir()
    os.mkfifo(tmp_path / name)
    script = (
        "import sys; from pathlib import Path; from rarefish.errors import DataError\n"
        "from rarefish.data.parquet import open_labeled, open_pool\n"
        "for read in (lambda path: open_pool(path, (4, 4))[0], lambda path: open_labeled(path, (4, 4))):\n"
        "    try: read(Path(sys.argv[1])); print('opened')\n"
        "    except DataError as error: print(error)\n"
    )
    source = tmp_path / ("pool" if name.startswith("pool/") else name)
    done = subprocess.run([sys.executable, "-c", script, str(source)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    pool, _ = done.stdout.splitlines()
    assert "not a regular file" in pool


def test_parquet_files_with_other_columns_are_named(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = [(folder / "cat/0.png").read_bytes()]
    parquet.write_table(pa.table({"image": content}), folder / "a.parquet")
    parquet.write_table(pa.table({"img": content, "id": [1]}), folder / "b.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has its images in the column image, and .*b\.parquet has"):
        open_pool(folder, (4, 4))
    parquet.write_table(pa.table({"image": [[1, 2]], "img": content}), folder / "b.parquet")
    pool = open_pool(folder, (4, 4))
    assert pool[0][0].shape == (3, 4, 4)
    with pytest.raises(DataError, match="Row 1 has no image in its column image"):
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
    with pytest.raises(DataError, match=r"Row 1 cannot be read from .*a\.parquet"):
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
