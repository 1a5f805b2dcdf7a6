"""Targeted selection compared with FLQMI of submodlib, and core-set and BADGE with DISTIL, on two CPU threads.

    python benchmarks/targeted.py [--images 5000 20000 80000] [--centers 200] [--picks 500]

The contenders take turns, each in a new process, on the same arrays. The best of three runs is reported; a contender
that takes more than a minute runs once, and one that takes more than 300 s is stopped. Memory is the peak minus the
memory before the inputs are read.

The targeted strategies in DISTIL's repository maximize FLQMI. Its package does not contain them, so submodlib is called
in the same way. It gets features and scores concatenated and computes their cosines, either with its own code or with
the helper that DISTIL calls; or it gets our kernel, computed before the clock starts. Of DISTIL's core-set and BADGE,
the selection is timed, but not the loading; baal has neither. The other libraries are installed into a separate
environment, .venv-targeted, when they are first needed.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

WIDTH, CLASSES, THREADS, ROUNDS, SLOW_S, LIMIT_S = 256, 10, 2, 3, 60, 300
BATCH = 256  # images that ours is shown at once, as by default
FEW = 1000  # images of a first run, not timed: it imports and starts threads
PEERS, PACKAGES = Path(".venv-targeted"), ("submodlib-py", "decile-distil")
Array = np.ndarray[Any, Any]


# The contenders, from arrays to the rows they choose; each imports for itself, as no environment has everything.
def fisher_matching(pool: Array, centers: Array, picks: int) -> Any:
    from rarefish.kernels import standardize
    from rarefish.matching import distinct, first_depth, match_batches

    images, failures = described(pool), described(centers)
    points = standardize(failures)
    batches = (images[slice(start, start + BATCH)] for start in range(0, len(images), BATCH))
    return distinct(match_batches(batches, points, failures.label, "fisher", first_depth(picks, points)), picks).index


def described(rows: Array) -> Any:
    from rarefish.descriptors import Descriptors

    features, scores = torch.from_numpy(rows).split(WIDTH, dim=1)
    index, label = torch.arange(len(rows)), torch.zeros(len(rows), dtype=torch.long)
    return Descriptors(index, features, scores, label, features[:, 0], label, features[:, :0], ("layer",), (WIDTH,))


def flqmi(pool: Array, centers: Array, picks: int) -> Any:
    return maximize(picks, n=len(pool), num_queries=len(centers), data=pool, queryData=centers, metric="cosine")


def flqmi_distil(pool: Array, centers: Array, picks: int) -> Any:
    from submodlib.helper import create_kernel  # pyright: ignore[reportMissingImports]

    return flqmi_given((create_kernel(X=centers, X_rep=pool, metric="cosine", method="sklearn") + 1) / 2, picks)


def flqmi_given(similarity: Array, picks: int) -> Any:
    return maximize(picks, n=len(similarity), num_queries=similarity.shape[1], query_sijs=similarity)


def maximize(picks: int, **function: Any) -> list[int]:
    from submodlib import FacilityLocationVariantMutualInformationFunction  # pyright: ignore[reportMissingImports]

    made = FacilityLocationVariantMutualInformationFunction(**function)
    return [row for row, _ in made.maximize(budget=picks, optimizer="LazyGreedy", show_progress=False)]


def core_set(features: Array, picks: int) -> Any:
    from rarefish.acquisitions.diversity import farthest_first

    return farthest_first(torch.from_numpy(features), 0, picks, torch.Generator().manual_seed(0))


def core_set_distil(features: Array, picks: int) -> Any:
    from distil.active_learning_strategies import CoreSet  # pyright: ignore[reportMissingImports]

    return CoreSet(None, None, features, None, None, CLASSES).furthest_first(features, features[:0], picks)


def badge(error: Array, features: Array, picks: int) -> Any:
    from rarefish.acquisitions.diversity import spread_out

    return spread_out(torch.from_numpy(error), torch.from_numpy(features), picks, torch.Generator().manual_seed(0))


def badge_distil(error: Array, features: Array, picks: int) -> Any:
    from distil.active_learning_strategies.badge import init_centers  # pyright: ignore[reportMissingImports]

    return init_centers(np.einsum("nc,nf->ncf", error, features).reshape(len(error), -1), picks, "cpu")


CONTENDERS: dict[str, dict[str, tuple[Callable[..., Any], Sequence[str]]]] = {
    "targeted": {
        "ours": (fisher_matching, ("pool", "centers")),
        "submodlib FLQMI": (flqmi, ("pool", "centers")),
        "submodlib FLQMI, cosines as in DISTIL": (flqmi_distil, ("pool", "centers")),
        "submodlib FLQMI, our kernel given": (flqmi_given, ("similarity",)),
    },
    "core-set": {"ours": (core_set, ("features",)), "DISTIL": (core_set_distil, ("features",))},
    "BADGE": {"ours": (badge, ("error", "features")), "DISTIL": (badge_distil, ("error", "features"))},
}
"""Of each task its contenders and the arrays that they read."""
Cost = list[float]  # seconds, and peak memory in MB


def measure(task: str, name: str, folder: str, picks: str) -> Cost:
    """Returns the time and memory of a contender, measured in this process."""
    choose, needed = CONTENDERS[task][name]
    few, data = np.load(Path(folder) / "few.npz"), np.load(Path(folder) / "all.npz")
    choose(*(few[key] for key in needed), FEW // 10)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = memory_mb("VmRSS")
    inputs = [data[key] for key in needed]
    began = time.perf_counter()
    rows = choose(*inputs, int(picks))
    cost = [time.perf_counter() - began, memory_mb("VmHWM") - before]
    assert len({int(row) for row in rows}) == int(picks), "Not as many different images as asked for."
    return cost


def memory_mb(field: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def compare(task: str, arrays: dict[str, Any], picks: int, python: Path) -> dict[str, Cost]:
    """Returns the best result of every contender that finished."""
    best: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "all.npz", **arrays)
        np.savez(Path(folder) / "few.npz", **{key: array[:FEW] for key, array in arrays.items()})
        for turn in range(ROUNDS):
            for name in CONTENDERS[task]:
                if turn and (name not in best or best[name][0] > SLOW_S):
                    continue
                interpreter = sys.executable if name == "ours" else str(python)
                if cost := in_own_process([interpreter, __file__, "measure", task, name, folder, str(picks)]):
                    best[name] = [min(pair) for pair in zip(cost, best.get(name, cost), strict=True)]
    return best


def in_own_process(command: list[str]) -> Cost | None:
    threads = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S, env=threads)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        print(f"{', '.join(command[3:5])}: more than {LIMIT_S} s")
    except subprocess.CalledProcessError as problem:
        print(f"{', '.join(command[3:5])}: {(problem.stderr.strip().splitlines() or [problem])[-1]}")
    return None


def peer_python() -> Path:
    """Returns the interpreter of an environment with the other libraries, created if needed.

    torch is installed first, because the libraries would otherwise install another version.
    """
    python = PEERS / "bin" / "python"
    if not python.exists():
        venv.create(PEERS, with_pip=True)
    for package in (f"torch=={torch.__version__.partition('+')[0]}", *PACKAGES):
        command = [python, "-m", "pip", "install", "-q", package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{package} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return python


def make_arrays(images: int, centers: int) -> dict[str, Any]:
    """Returns features and errors as in benchmarks/selection.py, scores, centers, and the kernel to each center."""
    from rarefish.kernels import similarity, standardize

    generator = torch.Generator().manual_seed(0)
    features, logits, scores = (torch.randn(images, width, generator=generator) for width in (WIDTH, CLASSES, WIDTH))
    error = logits.softmax(dim=1) - torch.nn.functional.one_hot(logits.argmax(dim=1), CLASSES)
    pool, queries = torch.cat([features, scores], dim=1), torch.randn(centers, 2 * WIDTH, generator=generator)
    kernel = similarity(standardize(described(pool.numpy())), standardize(described(queries.numpy())), "fisher")
    return {"features": features, "error": error, "pool": pool, "centers": queries, "similarity": kernel}


def figures(name: str, best: dict[str, Cost], python: Path) -> list[dict[str, Any]]:
    """Returns one figure for the time and one for the memory."""
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True).stdout
    peers = {package["name"]: package["version"] for package in json.loads(listed) if package["name"] in PACKAGES}
    ours = best.pop("ours")
    return [
        {
            "name": title,
            "value": round(ours[column], 3),
            "unit": unit,
            "baseline": {peer: round(cost[column], 3) for peer, cost in best.items()},
            "ratio": {peer: round(cost[column] / ours[column], 2) for peer, cost in best.items()},
            "floor": None,
            "device": f"cpu, {THREADS} threads",
            "versions": {"python": platform.python_version(), "torch": torch.__version__} | peers,
            "command": "python benchmarks/targeted.py",
        }
        for column, (title, unit) in enumerate([(name, "s"), (f"{name}, peak memory", "MB")])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[5_000, 20_000, 80_000])
    parser.add_argument("--centers", type=int, default=200)
    parser.add_argument("--picks", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/targeted.json"))
    arguments = parser.parse_args()
    plan = [*(("targeted", images) for images in arguments.images), ("core-set", 20_000), ("BADGE", 20_000)]
    python, made = peer_python(), []
    for task, images in plan:
        best = compare(task, make_arrays(images, arguments.centers), arguments.picks, python)
        around = f", {arguments.centers} centers" if task == "targeted" else ""
        made += figures(f"{task}, {images:,} × {WIDTH}{around}, {arguments.picks} picks", best, python)
    arguments.output.write_text(json.dumps(made, indent=2) + "\n")
    print(json.dumps(made, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(*sys.argv[2:])))
    else:
        main()
