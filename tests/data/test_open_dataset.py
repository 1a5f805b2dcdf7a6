"""Pools and validation sets wherever they are."""

import os
import sys
from pathlib import Path

import pytest
import torch

from rarefish.data.image_files import read_folder
from rarefish.data.open_dataset import open_labeled, open_pool
from rarefish.errors import ArgumentError, DataError
from tests import forked_processes


def test_images_on_the_scale_a_model_wants(folder: Path) -> None:
    mean, std = (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)
    plain, scaled = read_folder(folder, size=(6, 4)), open_labeled(folder, (6, 4), mean=mean, std=std)
    assert torch.allclose(scaled[0][0][:, 0, 0], torch.tensor([1.0, -1.0, 0.0])) and scaled.targets == plain.targets
    pool = open_pool(folder, (6, 4), mean=mean, std=std)
    assert torch.equal(pool[2][0], scaled[2][0]) and not torch.equal(pool[2][0], plain[2][0])
    assert open_pool(folder, (6, 4), "L", (0.5,))[0][0].min() < 0
    for mode, bad_mean, bad_std, message in (
        ("L", mean, None, "mode L need 1 numbers for mean, not 3"),
        ("RGB", None, (1.0, 0.0, 1.0), "greater than 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            open_pool(folder, (6, 4), mode, bad_mean, bad_std)


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
        "from rarefish.data.open_dataset import open_labeled, open_pool\n"
        "for read in (lambda path: open_pool(path, (4, 4))[0], lambda path: open_labeled(path, (4, 4))):\n"
        "    try: read(Path(sys.argv[1])); print('opened')\n"
        "    except DataError as error: print(error)\n"
    )
    source = tmp_path / ("pool" if name.startswith("pool/") else name)
    done = forked_processes.run(
        [sys.executable, "-c", script, str(source)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    pool, _ = done.stdout.splitlines()
    assert "not a regular file" in pool
