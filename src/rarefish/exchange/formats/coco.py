"""COCO: images, categories, and one annotation per box, or one per labeled image that covers the whole image."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rarefish.errors import DataError
from rarefish.exchange.boxes import BoxedImage
from rarefish.exchange.export_items import Item
from rarefish.exchange.label_parsing import ParsedLabel, read_json, read_own_fields, require, require_objects, to_path
from rarefish.exchange.safe_names import path_to_text

MARKER = b'"description": "made by rarefish"'


def write_coco(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes a COCO JSON file."""
    numbers = _numbers(classes)
    labeled = [(item, item.label) for item in items if item.label is not None]
    annotations = [
        _annotation(item.image, item.image, numbers[label], [0, 0, item.width, item.height]) for item, label in labeled
    ]
    _write(classes, [_image(item) for item in items], annotations, path)


def write_coco_boxes(images: list[BoxedImage], classes: list[str], path: Path) -> None:
    """Writes a COCO JSON file with one annotation per box; its score is in the field `score`."""
    numbers = _numbers(classes)
    rows = [
        {"id": number, "file_name": image.path, "width": image.width, "height": image.height}
        for number, image in enumerate(images, start=1)
    ]
    boxes = [(number, box) for number, image in enumerate(images, start=1) for box in image.boxes]
    annotations = [
        _annotation(key, image, numbers[box.name], [box.left, box.top, box.width, box.height])
        | ({} if box.score is None else {"score": box.score})
        for key, (image, box) in enumerate(boxes, start=1)
    ]
    _write(classes, rows, annotations, path)


def read_coco(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the category of every annotation of a COCO JSON file."""
    document = require(read_json(source), dict, str(source))
    images = {
        require(row.get("id"), int, "An image's id"): row for row in require_objects(document.get("images"), "images")
    }
    names = {
        require(row.get("id"), int, "A category's id"): require(row.get("name"), str, "A category's name")
        for row in require_objects(document.get("categories"), "categories")
    }
    for row in require_objects(document.get("annotations", []), "annotations"):
        image, category = row.get("image_id"), row.get("category_id")
        where = f"annotation {row.get('id')}"
        if not isinstance(image, int) or not isinstance(category, int) or image not in images or category not in names:
            raise DataError(
                f"{where} refers to image {image!r} and category {category!r}, which the file does not define."
            )
        own_fields = read_own_fields(images[image].get("rarefish"))
        file = require(images[image].get("file_name"), str, f"file_name of image {image}")
        image_path = None if own_fields else to_path(file)
        yield ParsedLabel(where, path=image_path, name=names[category], key=str(row.get("id", "")), **own_fields)


def _image(item: Item) -> dict[str, object]:
    name, probability = item.prediction
    return {
        "id": item.image,
        "file_name": path_to_text(item.path),
        "width": item.width,
        "height": item.height,
        "rarefish": {**item.own_fields, "prediction": name, "probability": probability},
    }


def _numbers(classes: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(classes, start=1)}


def _annotation(key: int, image: int, category: int, bbox: Sequence[float | int]) -> dict[str, object]:
    """Returns an annotation, with `bbox` as left, top, width and height."""
    area = bbox[2] * bbox[3]
    return {"id": key, "image_id": image, "category_id": category, "bbox": bbox, "area": area, "iscrowd": 0}


def _write(
    classes: list[str], images: list[dict[str, object]], annotations: list[dict[str, object]], path: Path
) -> None:
    document = {
        "info": {"description": "made by rarefish", "version": "1.0"},
        "licenses": [],
        "categories": [{"id": number, "name": name, "supercategory": ""} for name, number in _numbers(classes).items()],
        "images": images,
        "annotations": annotations,
    }
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
