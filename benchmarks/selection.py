"""Core-set and BADGE on a CPU, compared with scikit-activeml and with straightforward implementations.

    python benchmarks/selection.py [--images 20000] [--picks 500] [--output benchmarks/results/selection.json]

scikit-activeml is installed into a separate environment, .venv-peers, when it is first needed; if that fails, it is
skipped with a message. Use the ratios of the times, because the machine may be busy: the best of several runs of our
code, alternating with the straightforward version, and one run of scikit-activeml.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarefish.acquisitions.diversity import farthest_first, spread_out

WIDTH = 256
PEERS = Path(".venv-peers")
PEER_CODE = """
import sys, time, numpy as np
from skactiveml.pool import CoreSet, Badge
from skactiveml.base import SkactivemlClassifier
data = np.load(sys.argv[1]); features, probability, picks = data["features"], data["probability"], int(sys.argv[3])
unlabeled = np.full(len(features), np.nan); unlabeled[0] = 0

class Known(SkactivemlClassifier):
    def __init__(self, classes=None, missing_label=np.nan, cost_matrix=None, random_state=None):
        super().__init__(
            classes=classes, missing_label=missing_label, cost_matrix=cost_matrix, random_state=random_state
        )
    def fit(self, X, y, sample_weight=None):
        self.classes_ = np.arange(probability.shape[1]); return self
    def predict_proba(self, X):
        return probability[: len(X)]

began = time.perf_counter()
if sys.argv[2] == "core-set":
    CoreSet(random_state=0).query(features, unlabeled, batch_size=picks)
else:
    clf = Known(classes=np.arange(probability.shape[1])).fit(features, unlabeled)
    Badge(random_state=0).query(features, unlabeled, clf, fit_clf=False, batch_size=picks)
print(time.perf_counter() - began)
"""


def core_set_twin(points: Tensor, count: int) -> None:
    """Chooses by the distances to each new center, computed by subtraction of whole vectors."""
    distance, row = torch.full((len(points),), torch.inf), 0
    for _ in range(count):
        distance = torch.minimum(distance, (points - points[row]).square().sum(dim=1))
        distance[row] = -torch.inf
        row = int(distance.argmax())


def badge_twin(left: Tensor, right: Tensor, count: int) -> None:
    """Chooses by k-means++ on whole gradients, an array of images × (classes · features)."""
    gradients = torch.einsum("nc,nf->ncf", left, right).flatten(1)
    distance, row = torch.full((len(left),), torch.inf), int(gradients.square().sum(dim=1).argmax())
    for _ in range(count):
        distance = torch.minimum(distance, (gradients - gradients[row]).square().sum(dim=1))
        distance[row] = 0
        row = int(torch.multinomial(distance, 1))


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peer_python() -> Path | None:
    """Returns the interpreter of an environment with scikit-activeml, created if needed; None if that fails."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        venv.create(PEERS, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "scikit-activeml"], capture_output=True, check=False
        )
        if done.returncode:
            print("scikit-activeml cannot be installed here: its figures are skipped.")
            return None
    return python


def peer_seconds(python: Path, what: str, data: Path, picks: int) -> float | None:
    command = [str(python), "-c", PEER_CODE, str(data), what, str(picks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
    if done.returncode:
        print(f"scikit-activeml's {what} failed: {done.stderr.strip().splitlines()[-1]}")
        return None
    return float(done.stdout)


def badge_memory_mb(num_images: int, picks: int) -> float:
    """Returns the peak memory of BADGE with 100 classes, including its inputs, in a separate process."""
    code = f"""
import torch
from rarefish.acquisitions.diversity import spread_out
peak_kb = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak_kb()
left, right = torch.randn({num_images}, 100), torch.randn({num_images}, {WIDTH})
spread_out(left, right, {picks}, torch.Generator().manual_seed(0))
print((peak_kb() - before) / 1024)
"""
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--picks", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/selection.json"))
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(arguments.images, WIDTH, generator=generator)
    probability = torch.randn(arguments.images, 10, generator=generator).softmax(dim=1)
    error = probability - torch.nn.functional.one_hot(probability.argmax(dim=1), 10)
    ours: dict[str, Callable[[], Any]] = {
        "core-set": lambda: farthest_first(points, 0, arguments.picks, generator),
        "BADGE": lambda: spread_out(error, points, arguments.picks, generator),
    }
    few = max(1, arguments.picks // 20)  # the twins are slow: a part of the picks, scaled up
    twins: dict[str, Callable[[], Any]] = {
        "core-set": lambda: core_set_twin(points, few),
        "BADGE": lambda: badge_twin(error, points, few),
    }
    figures, python = [], peer_python()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, features=points.numpy(), probability=probability.numpy())
        for name, work in ours.items():
            work()
            runs = [(seconds(work), seconds(twins[name]) * arguments.picks / few) for _ in range(3)]
            mine, twin = (min(column) for column in zip(*runs, strict=True))
            peer = peer_seconds(python, name, data, arguments.picks) if python else None
            baseline = {"obvious twin": round(twin, 3)} | ({"scikit-activeml": round(peer, 3)} if peer else {})
            figures.append(
                figure(f"{name}, {arguments.images:,} × {WIDTH}, {arguments.picks} picks", mine, "s", baseline)
            )
    memory = badge_memory_mb(arguments.images, arguments.picks)
    figures.append(
        figure(
            f"BADGE, peak memory, C = 100, {arguments.images:,} × {WIDTH}",
            memory,
            "MB",
            {"whole gradients": arguments.images * 100 * WIDTH * 4 / 2**20},
        )
    )
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


def figure(name: str, value: float, unit: str, baseline: dict[str, float]) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "baseline": baseline,
        "ratio": {other: round(theirs / max(value, 1e-9), 1) for other, theirs in baseline.items()},
        "floor": None,
        "device": f"cpu, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python benchmarks/selection.py",
    }


if __name__ == "__main__":
    main()
