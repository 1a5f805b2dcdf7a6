"""select() on embeddings, compared with BADGE, core-set and entropy of scikit-activeml, and its growth with the pool.

    python benchmarks/embeddings.py [--rows 10000 100000] [--badge-rows 1000] [--growth 100000 1000000 10000000]

Every contender runs in a new process with one thread, on the same arrays, and chooses `--picks` rows. Time is processor
time, which other programs on the machine hardly change. It includes everything from the arrays to the rows chosen:
checks, fitting a classifier to the trusted rows, and choosing; imports are excluded. Memory is the peak minus the
memory after the imports and with the arrays in memory.

Classes are normal distributions with means at random, and differ in size: class k has a share proportional to 1 / k.
There are ten trusted rows per class. scikit-activeml gets the trusted rows as labeled samples. BADGE and entropy fit
scikit-learn's logistic regression; core-set has no model. BADGE computes the whole gradient of each row, classes ×
features numbers in float64, and then their squares: 2 GB per 1,000 rows, so it is measured on `--badge-rows` only.

For the growth, the pool is a float16 .npy file that is mapped. Memory is then without the pages of the file, which the
operating system can drop at any time, and is sampled every 5 ms. scikit-activeml is installed into a separate
environment, .venv-peers, when it is first needed.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

CLASSES, TRUSTED, BLOCK = 100, 10, 10_000
PEERS = Path(".venv-peers")
Array = np.ndarray[Any, Any]
Cost = dict[str, float]


# The contenders, from arrays to the rows they choose. Each imports for itself, as no environment has everything.
def ours(**settings: Any) -> Callable[..., Callable[[], Any]]:
    def prepare(pool: Any, trusted: Array, labels: Array, picks: int) -> Callable[[], Any]:
        import torch

        from rarefish import select

        torch.set_num_threads(1)
        return lambda: select(None, pool, (trusted, labels), budget=picks, progress=False, **settings).indices.tolist()

    return prepare


def peer(name: str) -> Callable[..., Callable[[], Any]]:
    def prepare(pool: Array, trusted: Array, labels: Array, picks: int) -> Callable[[], Any]:
        from skactiveml.classifier import SklearnClassifier  # pyright: ignore[reportMissingImports]
        from skactiveml.pool import Badge, CoreSet, UncertaintySampling  # pyright: ignore[reportMissingImports]
        from sklearn.linear_model import LogisticRegression

        rows = np.concatenate([pool, trusted])
        known = np.concatenate([np.full(len(pool), np.nan), labels])
        classifier = SklearnClassifier(LogisticRegression(), classes=range(CLASSES))
        if name == "core-set":
            return lambda: CoreSet(random_state=0).query(rows, known, batch_size=picks)
        method = Badge(random_state=0) if name == "BADGE" else UncertaintySampling(method="entropy", random_state=0)
        return lambda: method.query(rows, known, classifier, batch_size=picks)

    return prepare


OURS = {
    "coverage": ours(),
    "fisher": ours(method="fisher"),
    "fisher, density": ours(method="fisher", labels="density"),
}
RIVALS = {name: peer(name) for name in ("BADGE", "core-set", "entropy")}


def measure(name: str, folder: Path, num_rows: int, picks: int, is_mapped: bool) -> Cost:
    """Returns the processor time and the memory of a contender, measured in this process."""
    pool = np.load(folder / "pool.npy", mmap_mode="r")[:num_rows]
    pool = pool if is_mapped else np.array(pool)
    trusted, labels = np.load(folder / "trusted.npy"), np.load(folder / "labels.npy")
    choose = (OURS | RIVALS)[name](pool, trusted, labels, picks)
    del pool
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, began = memory_mb("RssAnon" if is_mapped else "VmRSS"), time.process_time()
    with sampled("RssAnon") as samples:
        rows = choose()
    peak = max(samples) if is_mapped else memory_mb("VmHWM")
    cost = {"s": time.process_time() - began, "MB": peak - before}
    assert len({int(row) for row in rows}) == picks, "Not as many different rows as asked for."
    return cost | {"classes": len(set(np.load(folder / "pool_labels.npy")[rows].tolist()))}


@contextmanager
def sampled(field: str) -> Iterator[list[float]]:
    """Yields a list to which a thread adds the memory every 5 ms."""
    samples, is_over = [memory_mb(field)], threading.Event()

    def sample() -> None:
        while not is_over.wait(0.005):
            samples.append(memory_mb(field))

    thread = threading.Thread(target=sample)
    thread.start()
    yield samples
    is_over.set()
    thread.join()


def memory_mb(field: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def make_arrays(folder: Path, num_rows: int, width: int, dtype: type) -> None:
    """Writes a pool, its labels, and trusted rows with labels."""
    random = np.random.default_rng(0)
    means = 0.25 * random.standard_normal((CLASSES, width), dtype=np.float32)
    share = 1 / np.arange(1, CLASSES + 1)
    of_pool = random.choice(CLASSES, num_rows, p=share / share.sum())
    labels = np.repeat(np.arange(CLASSES), TRUSTED)
    pool = np.lib.format.open_memmap(folder / "pool.npy", mode="w+", dtype=dtype, shape=(num_rows, width))
    for first in range(0, num_rows, BLOCK):
        some = of_pool[first : first + BLOCK]
        pool[first : first + BLOCK] = means[some] + random.standard_normal((len(some), width), dtype=np.float32)
    pool.flush()
    np.save(folder / "pool_labels.npy", of_pool)
    np.save(folder / "trusted.npy", means[labels] + random.standard_normal((len(labels), width), dtype=np.float32))
    np.save(folder / "labels.npy", labels)


def in_own_process(name: str, folder: Path, num_rows: int, picks: int, *, is_mapped: bool = False) -> Cost:
    python = str(PEERS / "bin" / "python") if name in RIVALS else sys.executable
    command = [python, "-W", "ignore", __file__, "measure", name, str(folder), str(num_rows), str(picks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(int(is_mapped))], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} on {num_rows:,} rows failed: {done.stderr.strip()[-1000:]}")
    cost = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}, {num_rows:,} rows: {cost}", flush=True)
    return cost


def add_peers() -> str:
    """Returns the version of scikit-activeml, which is installed if needed."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        venv.create(PEERS, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "scikit-activeml"], check=True)
    command = [python, "-c", "from importlib.metadata import version; print(version('scikit-activeml'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def figures(title: str, costs: dict[str, Cost], versions: dict[str, str], command: str) -> list[dict[str, Any]]:
    """Returns one figure for the time and one for the memory of `coverage`, with all others beside it."""
    own, others = costs["coverage"], {name: cost for name, cost in costs.items() if name != "coverage"}
    return [
        {
            "name": title + (", peak memory" if unit == "MB" else ""),
            "value": round(own[unit], 2),
            "unit": unit,
            "baseline": {name: round(cost[unit], 2) for name, cost in others.items()},
            "ratio": {name: round(cost[unit] / own[unit], 2) for name, cost in others.items()} or None,
            "floor": None,
            "device": "cpu, one thread each, processor time",
            "versions": versions,
            "command": command,
        }
        for unit in ("s", "MB")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--badge-rows", type=int, nargs="*", default=[1_000])
    parser.add_argument("--growth", type=int, nargs="*", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--growth-width", type=int, default=768)
    parser.add_argument("--picks", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where to write the arrays [default: a temporary folder]")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "embeddings.json")
    asked = parser.parse_args()
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__, "scikit-activeml": add_peers()}
    made = list[dict[str, Any]]()
    sizes = [("--rows", asked.rows), ("--badge-rows", asked.badge_rows), ("--growth", asked.growth)]
    given = [part for name, values in sizes if name in sys.argv for part in (name, *map(str, values))]
    command = " ".join(["python benchmarks/embeddings.py", *given])

    def record(title: str, names: list[str], folder: Path, num_rows: int, *, is_mapped: bool = False) -> None:
        costs = {name: in_own_process(name, folder, num_rows, asked.picks, is_mapped=is_mapped) for name in names}
        made.extend(figures(f"{title}, {asked.picks} picks", costs, versions, command))
        asked.output.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(dir=asked.folder) as own:
        folder = Path(own)
        plan = [(rows, [*OURS, "BADGE"]) for rows in asked.badge_rows]
        plan += [(rows, [*OURS, "core-set", "entropy"]) for rows in asked.rows]
        if plan:
            make_arrays(folder, max(rows for rows, _ in plan), asked.width, np.float32)
        for rows, names in plan:
            record(f"select() on embeddings, {rows:,} × {asked.width:,}", names, folder, rows)
        if asked.growth:
            make_arrays(folder, max(asked.growth), asked.growth_width, np.float16)
        for rows in asked.growth:
            title = f"select() on a mapped float16 file, {rows:,} × {asked.growth_width:,}"
            record(title, ["coverage"], folder, rows, is_mapped=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        which, where, size, number, mapped = sys.argv[2:]
        print(json.dumps(measure(which, Path(where), int(size), int(number), mapped == "1")))
    else:
        main()
