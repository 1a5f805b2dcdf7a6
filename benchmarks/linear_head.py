"""Time and quality of the linear head and of scikit-learn's LogisticRegressionCV on the same rows, folds and ridges.

    python benchmarks/linear_head.py [--features FILE.npz] [--rows 1000] [--rounds 3] [--threads 2]

FILE.npz contains the arrays train_z, train_y, test_z and test_y: features and labels. Without it, rows are drawn from
normal distributions, with classes of unequal size. The contenders take turns in one process, on standardized features
and with the same number of threads or jobs; the best round of each is reported. With one thread, CPU time is measured,
which other programs on the machine hardly change; with more threads, wall-clock time. All choose the ridge by the macro
log loss on held-out rows. scikit-learn runs with its own limits on steps and precision, with and without balanced class
weights.
"""

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from rarefish.training.linear_head import RIDGES, assign_folds, fit_linear_head

FOLDS, CLASSES, WIDTH, TESTS = 5, 100, 1280, 2000
Array = np.ndarray[Any, Any]


def read_rows(path: str | None, count: int) -> dict[str, Array]:
    """Returns `count` training rows, drawn at random, and all test rows."""
    data = dict(np.load(path)) if path else made_up(count)
    rows = np.random.default_rng(0).permutation(len(data["train_y"]))[:count]
    return {**data, "train_z": data["train_z"][rows], "train_y": data["train_y"][rows]}


def made_up(count: int) -> dict[str, Array]:
    random = np.random.default_rng(1)
    means = 0.25 * random.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    share = 1 / np.arange(1, CLASSES + 1) ** 0.7
    labels = random.choice(CLASSES, count + TESTS, p=share / share.sum())
    labels[:CLASSES] = np.arange(CLASSES)
    features = means[labels] + random.standard_normal((len(labels), WIDTH), dtype=np.float32)
    return {
        "train_z": features[:count],
        "train_y": labels[:count],
        "test_z": features[count:],
        "test_y": labels[count:],
    }


def ours(data: dict[str, Array], balance: str = "logit") -> Array:
    head = fit_linear_head(data["train_z"], data["train_y"], CLASSES, balance=balance, folds=FOLDS)
    return head.probabilities(data["test_z"]).numpy()


def scikit_learn(data: dict[str, Array], class_weight: str | None = None) -> Array:
    labels = data["train_y"]
    assert set(labels) == set(range(CLASSES)), "scikit-learn leaves classes without rows out; draw more rows"
    rows = torch.from_numpy(data["train_z"])
    fold = assign_folds(rows, torch.from_numpy(labels), FOLDS, torch.Generator().manual_seed(0)).numpy()
    parts = [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(FOLDS)]
    scaler = StandardScaler().fit(data["train_z"])
    model = LogisticRegressionCV(
        Cs=[1 / (factor * WIDTH) for factor in RIDGES],  # pyright: ignore[reportArgumentType]
        cv=parts,
        scoring=macro_score,  # pyright: ignore[reportArgumentType]
        class_weight=class_weight,
        n_jobs=torch.get_num_threads(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most of its fits end at the limit of 100 steps
        model.fit(scaler.transform(data["train_z"]), labels)
    return model.predict_proba(scaler.transform(data["test_z"]))


def macro_score(model: Any, features: Array, labels: Array) -> float:
    return -quality(model.predict_proba(features), labels)["macro log loss"]


def quality(probability: Array, labels: Array) -> dict[str, float]:
    """Returns accuracy and mean recall in percent, and log losses."""
    is_right = probability.argmax(axis=1) == labels
    loss = -np.log(np.maximum(probability[np.arange(len(labels)), labels], 1e-30))
    return {
        "accuracy": 100 * float(is_right.mean()),
        "macro recall": 100 * macro(is_right, labels),
        "log loss": float(loss.mean()),
        "macro log loss": macro(loss, labels),
    }


def macro(values: Array, labels: Array) -> float:
    return float(np.mean([values[labels == label].mean() for label in np.unique(labels)]))


CONTENDERS = {
    "ours": (ours, {}),
    "ours, not adjusted": (ours, {"balance": "none"}),
    "scikit-learn": (scikit_learn, {}),
    "scikit-learn, balanced weights": (scikit_learn, {"class_weight": "balanced"}),
}
UNITS = {"accuracy": "%", "macro recall": "%", "log loss": "nats", "macro log loss": "nats"}


def compare(data: dict[str, Array], rounds: int) -> dict[str, dict[str, float]]:
    """Returns the seconds and the quality of each contender."""
    found: dict[str, dict[str, float]] = {}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for turn in range(rounds):
        for name, (run, settings) in CONTENDERS.items():
            began = clock()
            probability = run(data, **settings)
            seconds = min(clock() - began, found.get(name, {}).get("seconds", np.inf))
            found[name] = {"seconds": seconds, **quality(probability, data["test_y"])}
            print(f"round {turn + 1}, {name}: {found[name]}", flush=True)
    return found


def figures(found: dict[str, dict[str, float]], title: str, command: str) -> list[dict[str, Any]]:
    """Returns one figure for the time and one for each measure of quality."""
    threads = torch.get_num_threads()
    device = "cpu, one thread each, processor time" if threads == 1 else f"cpu, {threads} threads"
    own, others = found["ours"], {name: costs for name, costs in found.items() if name != "ours"}
    listed = []
    for measure, unit in {"seconds": "s", **UNITS}.items():
        ratio = {name: round(costs[measure] / own[measure], 2) for name, costs in others.items()}
        listed.append(
            {
                "name": f"linear head, {title}" + (f", {measure} on new rows" if measure in UNITS else ""),
                "value": round(own[measure], 3),
                "unit": unit,
                "baseline": {name: round(costs[measure], 3) for name, costs in others.items()},
                "ratio": ratio if measure == "seconds" else None,
                "floor": None,
                "device": device,
                "versions": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "scikit-learn": sklearn.__version__,
                },
                "command": command,
            }
        )
    return listed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--features")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    data = read_rows(asked.features, asked.rows)
    kind = Path(asked.features).stem if asked.features else "made-up rows"
    title = f"{len(data['train_y']):,} × {data['train_z'].shape[1]:,}, {CLASSES} classes ({kind})"
    options = ([f"--features {Path(asked.features).name}"] if asked.features else []) + [f"--threads {asked.threads}"]
    with threadpool_limits(asked.threads):
        found = compare(data, asked.rounds)
    listed = figures(found, title, " ".join(["python benchmarks/linear_head.py", *options]))
    target = Path(__file__).parent / "results" / "linear_head.json"
    target.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
