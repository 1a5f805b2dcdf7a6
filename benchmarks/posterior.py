"""Time of select() with the trained posterior, compared with the density labels of the paper.

    python benchmarks/posterior.py [--images 25000] [--validation 1000 10000] [--device cpu]

The pool consists of the bundled digits, repeated. The two variants alternate; the fastest of three runs is reported.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from rarefish import select
from rarefish.data.arrays import normalized
from rarefish.data.digits import read_digits
from rarefish.models.networks import build_model


def repeated(data: TensorDataset, count: int) -> TensorDataset:
    """Returns this many items, repeating the dataset from its beginning."""
    rows = torch.arange(count) % len(data)
    return TensorDataset(*(part[rows] for part in data.tensors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=25_000)
    parser.add_argument("--validation", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/posterior.json"))
    arguments = parser.parse_args()
    parts = normalized([part.to_tensors(arguments.device) for part in read_digits()])
    model = build_model("lenet", 10, 1, torch.Generator().manual_seed(0)).to(arguments.device)
    pool, figures = repeated(parts[0], arguments.images), []
    for size in arguments.validation:
        validation = repeated(parts[1], size)

        def seconds(labels: str, validation: TensorDataset = validation) -> float:
            began = time.perf_counter()
            select(
                model,
                pool,
                validation,
                budget=125,
                layers=["conv1", "conv2", "fc1"],
                labels=labels,
                batch_size=1000,
                precision="float32",
                progress=False,
            )
            if arguments.device.startswith("cuda"):
                torch.cuda.synchronize()
            return time.perf_counter() - began

        runs = [(seconds("posterior"), seconds("density")) for _ in range(3)]
        ours, paper = (min(column) for column in zip(*runs, strict=True))
        figures.append(
            {
                "name": f"select() with a posterior, LeNet, N = {arguments.images:,}, M = {size:,}",
                "value": round(ours, 3),
                "unit": "s",
                "baseline": {"density labels": round(paper, 3)},
                "ratio": {"density labels": round(paper / ours, 2)},
                "floor": None,
                "device": arguments.device,
                "versions": {"python": platform.python_version(), "torch": torch.__version__},
                "command": "python benchmarks/posterior.py",
            }
        )
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
