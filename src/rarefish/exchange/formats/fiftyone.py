"""FiftyOne's own JSON of a data set, images beside it: fields round, similarity, center, prediction, ground_truth."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rarefish.exchange.formats.image_folder import hash_file
from rarefish.exchange.found import Found, need, need_rows, ours, read_json, to_path
from rarefish.exchange.items import Item
from rarefish.exchange.names import to_file
from rarefish.exchange.places import MARK, lay

SAMPLES, METADATA = "samples.json", "metadata.json"
KINDS = {
    "rarefish_image": "IntField",
    "rarefish_hash": "StringField",
    "round": "IntField",
    "rank": "IntField",
    "similarity": "FloatField",
    "center": "IntField",
    "center_class": "StringField",
}
CLASSIFICATION = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classification)"


def write_samples(items: list[Item], classes: list[str], place: Path) -> None:
    """A folder that `Dataset.from_dir(dataset_type=fo.types.FiftyOneDataset)` loads."""
    data = place / "data"
    data.mkdir(parents=True)
    for item in items:
        lay(item, data / to_file(item.image, item.path))
    fields = {name: f"fiftyone.core.fields.{kind}" for name, kind in KINDS.items()}
    metadata = {
        "name": "rarefish",
        "media_type": "image",
        "sample_fields": fields | {"prediction": CLASSIFICATION, "ground_truth": CLASSIFICATION},
        "info": {"classes": classes, "made_by": "rarefish"},
        "default_classes": classes,
    }
    (place / METADATA).write_text(json.dumps(metadata, indent=1), encoding="utf-8")
    (place / SAMPLES).write_text(json.dumps({"samples": [_sample(item) for item in items]}, indent=1), encoding="utf-8")
    (place / MARK).write_text(json.dumps({"classes": classes}), encoding="utf-8")


def read_samples(source: Path, classes: list[str]) -> Iterator[Found]:
    """The ground truth of each sample. One that lost our fields is known again by the content of its file."""
    file = source / SAMPLES if source.is_dir() else source
    whole = need(read_json(file), dict, str(file))
    for number, row in enumerate(need_rows(whole.get("samples"), "samples"), start=1):
        truth = row.get("ground_truth")
        if truth is None:
            continue
        where = f"sample {number}"
        name = need(need(truth, dict, f"ground_truth of {where}").get("label"), str, f"The label of {where}")
        known = ours({"image": row.get("rarefish_image"), "hash": row.get("rarefish_hash")})
        yield Found(where, name=name, **(known or _by_content(row, file.parent, where)))


def _sample(item: Item) -> dict[str, Any]:
    name, chance = item.prediction
    return {
        "filepath": f"data/{to_file(item.image, item.path)}",
        "tags": [f"round {item.round}"],
        "metadata": None,
        "rarefish_image": item.image,
        "rarefish_hash": item.hash,
        "round": item.round,
        "rank": item.rank,
        "similarity": item.similarity,
        "center": item.center,
        "center_class": item.center_class,
        "prediction": None if name is None else _classification(name, chance),
        "ground_truth": None if item.label is None else _classification(item.label, None),
    }


def _classification(label: str, confidence: float | None) -> dict[str, Any]:
    return {"_cls": "Classification", "tags": [], "label": label, "confidence": confidence}


def _by_content(row: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
    path = to_path(need(row.get("filepath"), str, f"filepath of {where}"))
    full = os.path.join(os.fsencode(folder), path)  # an absolute path stays as it is
    return {"hash": hash_file(full)} if os.path.isfile(full) else {"path": path}
