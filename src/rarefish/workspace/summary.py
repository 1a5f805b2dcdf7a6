"""Summary of a workspace: learning curve, recall, labels per round, and how the pool differs from validation."""

import json
from typing import Any

import numpy as np

from rarefish.active_learning.stopping import expect_gain, failing_classes
from rarefish.workspace.answers import progress, settled
from rarefish.workspace.history import labels_key, latest_training
from rarefish.workspace.store import Store


def summarize(store: Store) -> dict[str, Any]:
    """The summary as JSON values, for the dashboard, the report and `--json`."""
    classes, labels, state = store.classes(), settled(store), progress(store)
    with store.reading() as connection:
        trainings = [_training(row) for row in connection.execute("SELECT * FROM training ORDER BY id")]
        picks = connection.execute("SELECT round, image FROM pick ORDER BY round, rank").fetchall()
        rounds = connection.execute("SELECT * FROM round ORDER BY number").fetchall()
        counted = dict(
            connection.execute(
                "SELECT class, count(*) FROM image WHERE part = 'validation' AND state = 'ready' GROUP BY class"
            ).fetchall()
        )
        (pool,) = connection.execute("SELECT count(*) FROM image WHERE part = 'pool' AND state = 'ready'").fetchone()
    counts = [counted.get(number, 0) for number in range(len(classes))]
    by_round: dict[int, list[int]] = {row["number"]: [] for row in rounds}
    for number, image in picks:
        by_round[number].append(image)
    return {
        "classes": classes,
        "counts": counts,
        "trainings": trainings,
        "rounds": [_round(row, by_round[row["number"]], labels, len(classes)) for row in rounds],
        "outlook": outlook(trainings, counts),
        "mix": _mix(counts, [json.loads(row["how"]) for row in rounds]),
        "progress": {
            "asked": state.asked,
            "open": state.open,
            "by_person": state.by_person,
            "split": state.split,
            "settled": len(labels),
        },
        "unlabeled": pool - len(picks),
        "is_trained": is_trained(store, labels),
    }


def is_trained(store: Store, labels: dict[int, int]) -> bool:
    """Whether the latest training used exactly these labels."""
    last = latest_training(store)
    return last is not None and json.loads(last["how"]).get("labels_key") == labels_key(labels)


def outlook(trainings: list[dict[str, Any]], counts: list[int]) -> str | None:
    """A sentence with the expected gain in recall of the failing classes; None with too few trainings."""
    by_labels = {training["labels_spent"]: training for training in trainings}  # the last one, if there are several
    ordered = [by_labels[spent] for spent in sorted(by_labels)]
    if len(ordered) < 2:
        return None
    recalls = np.array([[np.nan if r is None else r for r in training["recall"]] for training in ordered])
    failing = failing_classes(recalls[0].tolist())
    if not failing:
        return None
    points = recalls[:, failing].mean(axis=1).tolist()
    found = expect_gain([t["labels_spent"] for t in ordered], points, sum(counts[c] for c in failing))
    return found.sentence if found else None


def _training(row: Any) -> dict[str, Any]:
    recall = json.loads(row["recall"])
    known = [value for value in recall if value is not None]
    return {
        "round": row["round"],
        "labels_spent": row["labels_spent"],
        "accuracy": row["accuracy"],
        "recall": recall,
        "balanced": sum(known) / len(known) if known else None,
        "made_at": row["made_at"],
        "weights": row["weights"],
    }


def _round(row: Any, images: list[int], labels: dict[int, int], num_classes: int) -> dict[str, Any]:
    labeled = [labels[image] for image in images if image in labels]
    counts = np.bincount(labeled, minlength=num_classes).tolist() if labeled else [0] * num_classes
    return {"number": row["number"], "picks": len(images), "labeled": len(labeled), "bought": counts}


def _mix(counts: list[int], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Class shares in the validation set and, as estimated by the last selection, in the pool."""
    total = max(1, sum(counts))
    pool = next((how["pool_mix"] for how in reversed(rounds) if how.get("pool_mix")), None)
    return {"validation": [count / total for count in counts], "pool": pool}
