"""Summary of a workspace: learning curve, recall, labels per round, and class proportions of pool and validation."""

import json
from typing import Any

import numpy as np

from rarefish.active_learning.stopping import expect_gain, failing_classes
from rarefish.workspace.answers import progress, settled
from rarefish.workspace.round_history import labels_key, latest_training, read_how
from rarefish.workspace.store import Store


def summarize(store: Store) -> dict[str, Any]:
    """Returns the summary as JSON values, for the dashboard, the report and `--json`."""
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
            "disagreements": state.disagreements,
            "settled": len(labels),
        },
        "unlabeled": pool - len(picks),
        "is_trained": is_trained(store, labels),
    }


def is_trained(store: Store, labels: dict[int, int]) -> bool:
    """Returns whether the latest training used exactly these labels."""
    last = latest_training(store)
    return last is not None and json.loads(last["how"]).get("labels_key") == labels_key(labels)


def outlook(trainings: list[dict[str, Any]], counts: list[int]) -> str | None:
    """Returns a sentence with the expected gain in recall of the failing classes; None after too few training runs."""
    by_labels = {training["labels_spent"]: training for training in trainings}  # the last one if there are several
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
    how = read_how(row)
    return {
        "round": row["round"],
        "labels_spent": row["labels_spent"],
        "accuracy": row["accuracy"],
        "recall": recall,
        "balanced": sum(known) / len(known) if known else None,
        "made_at": row["made_at"],
        "weights": row["weights"],
        "trained": how.get("trained", "network"),
        "scored": how.get("scored", "validation"),
        "trusted": how.get("trusted", 0),
    }


def _round(row: Any, images: list[int], labels: dict[int, int], num_classes: int) -> dict[str, Any]:
    labeled = [labels[image] for image in images if image in labels]
    counts = np.bincount(labeled, minlength=num_classes).tolist() if labeled else [0] * num_classes
    return {"number": row["number"], "picks": len(images), "labeled": len(labeled), "labels_per_class": counts}


def _mix(counts: list[int], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns class proportions in the validation set and in the pool, with intervals; None if never estimated.

    The validation set is that of the selection, if known, because the pool's proportions were estimated relative to it.
    """
    total = max(1, sum(counts))
    how = next((how for how in reversed(rounds) if how.get("pool_mix")), {})
    low, high = how.get("pool_mix_interval") or (None, None)
    validation = how.get("validation_mix") or [count / total for count in counts]
    return {"validation": validation, "pool": how.get("pool_mix"), "pool_low": low, "pool_high": high}
