"""COCO for classification: images, categories, and one annotation that spans the whole of each labeled image."""

import json
from collections.abc import Iterator
from pathlib import Path

from rarefish.errors import DataError
from rarefish.exchange.found import Found, need, need_rows, ours, read_json, to_path
from rarefish.exchange.items import Item
from rarefish.exchange.names import to_name

MARK = b'"description": "made by rarefish"'


def write_coco(items: list[Item], classes: list[str], place: Path) -> None:
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    labeled = [(item, item.label) for item in items if item.label is not None]
    whole = {
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
    place.write_text(json.dumps(whole, indent=1), encoding="utf-8")


def read_coco(source: Path, classes: list[str]) -> Iterator[Found]:
    whole = need(read_json(source), dict, str(source))
    images = {need(row.get("id"), int, "An image's id"): row for row in need_rows(whole.get("images"), "images")}
    names = {
        need(row.get("id"), int, "A category's id"): need(row.get("name"), str, "A category's name")
        for row in need_rows(whole.get("categories"), "categories")
    }
    for row in need_rows(whole.get("annotations", []), "annotations"):
        image, category = row.get("image_id"), row.get("category_id")
        where = f"annotation {row.get('id')}"
        if not isinstance(image, int) or not isinstance(category, int) or image not in images or category not in names:
            raise DataError(f"{where} names image {image!r} and category {category!r}, which the file does not have.")
        known = ours(images[image].get("rarefish"))
        file = need(images[image].get("file_name"), str, f"file_name of image {image}")
        path = None if known else to_path(file)
        yield Found(where, path=path, name=names[category], key=str(row.get("id", "")), **known)


def _image(item: Item) -> dict[str, object]:
    name, chance = item.prediction
    return {
        "id": item.image,
        "file_name": to_name(item.path),
        "width": item.width,
        "height": item.height,
        "rarefish": {**item.own_fields, "prediction": name, "chance": chance},
    }
