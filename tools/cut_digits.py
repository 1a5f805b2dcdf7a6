"""Makes the bundled digits from the original MNIST files: python tools/cut_digits.py FOLDER_WITH_IDX_GZ."""

import gzip
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent.parent / "src/rarefish/datasets/digits.npz"
COMMON, RARE = range(5), range(5, 10)


def read_idx(folder: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(labels, np.uint8, offset=8)


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = read_idx(folder, "train")
    test_images, test_labels = read_idx(folder, "t10k")
    of_class = [rng.permutation(np.flatnonzero(labels == c)) for c in range(10)]
    pool = [of_class[c][: 1200 if c in COMMON else 12] for c in range(10)]
    validation = [of_class[c][-50:] for c in range(10)]
    test = [rng.permutation(np.flatnonzero(test_labels == c))[:200] for c in range(10)]
    parts = {"pool": (images, labels, pool), "validation": (images, labels, validation)}
    parts["test"] = (test_images, test_labels, test)
    arrays = {}
    for name, (x, y, rows) in parts.items():
        order = rng.permutation(np.concatenate(rows))
        arrays |= {f"{name}_images": x[order], f"{name}_labels": y[order]}
    np.savez_compressed(OUT, **arrays)
    print(f"{OUT}: {OUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
