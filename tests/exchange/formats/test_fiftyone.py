"""FiftyOne: the structure of an export, and datasets that FiftyOne wrote itself."""

import json
from pathlib import Path

from rarefish.exchange.exporter import export
from rarefish.exchange.importer import import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import make_labeled
from tests.workspaces import CLASSES, make_workspace


def test_fiftyone(exported: tuple[Store, dict[str, Path]]) -> None:
    """As FiftyOne 1.22 loads it, see docs/guides/exchange.md."""
    store, places = exported
    metadata = json.loads((places["fiftyone"] / "metadata.json").read_text())
    samples = json.loads((places["fiftyone"] / "samples.json").read_text())["samples"]
    assert "version" not in metadata and metadata["default_classes"] == list(CLASSES)
    assert set(samples[0]) - set(metadata["sample_fields"]) == {"filepath", "tags", "metadata"}
    assert all((places["fiftyone"] / sample["filepath"]).is_file() for sample in samples)
    truths = {s["rarefish_image"]: s["ground_truth"]["label"] for s in samples if s["ground_truth"]}
    assert truths == {image: CLASSES[number] for image, number in settled(store).items()}
    assert samples[0]["prediction"] == {"_cls": "Classification", "tags": [], "label": "cat", "confidence": 0.7}


def test_fiftyone_without_our_fields_goes_by_content(tmp_path: Path) -> None:
    """As FiftyOne writes a dataset itself, with its own kinds of values."""
    labeled, twin = make_labeled(tmp_path / "a"), make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)
    folder = export(labeled, "labels", "fiftyone", tmp_path / "made")
    samples = json.loads((folder / "samples.json").read_text())["samples"]
    for number, sample in enumerate(samples):
        del sample["rarefish_image"], sample["rarefish_hash"]
        sample |= {"_id": {"$oid": f"{number:024x}"}, "created_at": {"$date": "2026-11-16T06:52:37.474Z"}}
    (folder / "samples.json").write_text(json.dumps({"samples": samples}))
    assert not import_labels(twin, "fiftyone", folder, "me").unknown and settled(twin) == settled(labeled)
