"""FiftyOneDataset: a folder of images and JSON with round, similarity, center, prediction and ground_truth."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rarefish.exchange.atomic_output import MARKER_FILE, link_or_copy
from rarefish.exchange.export_items import Item
from rarefish.exchange.formats.image_folder import hash_file
from rarefish.exchange.label_parsing import ParsedLabel, read_json, read_own_fields, require, require_objects, to_path
from rarefish.exchange.safe_names import to_file_name

SAMPLES, METADATA = "samples.json", "metadata.json"
FIELD_TYPES = {
    "rarefish_image": "IntField",
    "rarefish_hash": "StringField",
    "round": "IntField",
    "rank": "IntField",
    "similarity": "FloatField",
    "center": "IntField",
    "center_class": "StringField",
}
CLASSIFICATION = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classification)"


def write_samples(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes a folder that `Dataset.from_dir(dataset_type=fo.types.FiftyOneDataset)` loads."""
    data = path / "data"
    data.mkdir(parents=True)
    for item in items:
        link_or_copy(item, data / to_file_name(item.image, item.path))
    fields = {name: f"fiftyone.core.fields.{field_type}" for name, field_type in FIELD_TYPES.items()}
    metadata = {
        "name": "rarefish",
        "media_type": "image",
        "sample_fields": fields | {"prediction": CLASSIFICATION, "ground_truth": CLASSIFICATION},
        "info": {"classes": classes, "made_by": "rarefish"},
        "default_classes": classes,
    }
    (path / METADATA).write_text(json.dumps(metadata, indent=1), encoding="utf-8")
    (path / SAMPLES).write_text(json.dumps({"samples": [_sample(item) for item in items]}, indent=1), encoding="utf-8")
    (path / MARKER_FILE).write_text(json.dumps({"classes": classes}), encoding="utf-8")


def read_samples(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the ground truth of each sample; those without our fields are identified by their content."""
    file = source / SAMPLES if source.is_dir() else source
    document = require(read_json(file), dict, str(file))
    for number, row in enumerate(require_objects(document.get("samples"), "samples"), start=1):
        truth = row.get("ground_truth")
        if truth is None:
            continue
        where = f"sample {number}"
        name = require(require(truth, dict, f"ground_truth of {where}").get("label"), str, f"The label of {where}")
        own_fields = read_own_fields({"image": row.get("rarefish_image"), "hash": row.get("rarefish_hash")})
        yield ParsedLabel(where, name=name, **(own_fields or _by_content(row, file.parent, where)))


def _sample(item: Item) -> dict[str, Any]:
    name, probability = item.prediction
    return {
        "filepath": f"data/{to_file_name(item.image, item.path)}",
        "tags": [f"round {item.round}"],
        "metadata": None,
        "rarefish_image": item.image,
        "rarefish_hash": item.hash,
        "round": item.round,
        "rank": item.rank,
        "similarity": item.similarity,
        "center": item.center,
        "center_class": item.center_class,
        "prediction": None if name is None else _classification(name, probability),
        "ground_truth": None if item.label is None else _classification(item.label, None),
    }


def _classification(label: str, confidence: float | None) -> dict[str, Any]:
    return {"_cls": "Classification", "tags": [], "label": label, "confidence": confidence}


def _by_content(row: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
    path = to_path(require(row.get("filepath"), str, f"filepath of {where}"))
    full = os.path.join(os.fsencode(folder), path)  # keeps absolute paths
    return {"hash": hash_file(full)} if os.path.isfile(full) else {"path": path}
