"""COCO for classification: images, categories, and per labeled image one annotation that covers all of it."""

import json
from collections.abc import Iterator
from pathlib import Path

from rarefish.errors import DataError
from rarefish.exchange.items import Item
from rarefish.exchange.names import path_to_text
from rarefish.exchange.parsed_labels import ParsedLabel, read_json, read_own_fields, require, require_objects, to_path

MARKER = b'"description": "made by rarefish"'


def write_coco(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes a COCO JSON file."""
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    labeled = [(item, item.label) for item in items if item.label is not None]
    document = {
        "info": {"description": "made by rarefish", "version": "1.0"},
        "licenses": [],
        "categories": [{"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()],
        "images": [_image(item) for item in items],
        "annotations": [
            {
                "id": item.image,
                "image_id": item.image,
                "category_id": numbers[label],
                "bbox": [0, 0, item.width, item.height],
                "area": item.width * item.height,
                "iscrowd": 0,
            }
            for item, label in labeled
        ],
    }
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


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
            raise DataError(f"{where} names image {image!r} and category {category!r}, which the file does not define.")
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
        "rarefish": {**item.own_fields, "prediction": name, "chance": probability},
    }
