"""Label Studio: write tasks and a labeling configuration, and read annotations with their annotators."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit
from xml.sax.saxutils import quoteattr

from rarefish.exchange.atomic_output import MARKER_FILE
from rarefish.exchange.boxes import Box, BoxedImage
from rarefish.exchange.export_items import LOCAL_FILES_URL, Answer, Item
from rarefish.exchange.label_parsing import (
    ParsedLabel,
    read_json,
    read_own_fields,
    require,
    require_objects,
    to_path,
    to_time,
)
from rarefish.exchange.safe_names import make_unique

CONTROL, BOXES, OBJECT = "class", "box", "image"
"""Names of the choices, the boxes and the image in the labeling configuration."""
TASKS, CONFIG = "tasks.json", "labeling_config.xml"


def write_tasks(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes a folder with tasks.json for the import and labeling_config.xml for the project's settings."""
    _write([to_task(item, classes) for item in items], to_config(classes), classes, path)


def write_box_tasks(images: list[BoxedImage], classes: list[str], path: Path) -> None:
    """Writes the files of `write_tasks` for boxes; the URLs refer to files below the document root of a server."""
    _write([_box_task(image) for image in images], _box_config(classes), classes, path)


def read_tasks(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the annotations in a JSON export of Label Studio or in a folder made by `write_tasks`."""
    return find_answers(read_json(source / TASKS if source.is_dir() else source), classes, {})


def to_config(classes: list[str]) -> str:
    """Returns the XML labeling configuration, with one choice per class and those of `other_choices`."""
    start = f'Choices name="{CONTROL}" toName="{OBJECT}" choice="single" showInLine="true"'
    return _config(start, "Choice", [*classes, *other_choices(classes)])


def _box_config(classes: list[str]) -> str:
    return _config(f'RectangleLabels name="{BOXES}" toName="{OBJECT}"', "Label", classes)


def _config(start: str, element: str, names: list[str]) -> str:
    """Returns a labeling configuration with one control, given the start of its element, and the names in it."""
    return "\n".join(
        [
            "<View>",
            f'  <Image name="{OBJECT}" value="$image"/>',
            f"  <{start}>",
            *(f"    <{element} value={quoteattr(name)}/>" for name in names),
            f"  </{start.split()[0]}>",
            "</View>\n",
        ]
    )


def other_choices(classes: list[str]) -> dict[str, str]:
    """Returns the choices that are not classes, with the answer that each stands for."""
    none = make_unique("(none of these)", classes)
    return {none: "none", make_unique("(unsure)", [*classes, none]): "unsure"}


def to_task(item: Item, classes: list[str]) -> dict[str, Any]:
    """Returns a task: the image URL, our own fields, the most likely class as a prediction, and the answers."""
    name, probability = item.prediction
    task: dict[str, Any] = {
        "data": {"image": item.url},
        "meta": {"rarefish": item.own_fields},
    }
    if name is not None:
        score = {} if probability is None else {"score": probability}
        task["predictions"] = [{"model_version": f"rarefish round {item.round}", "result": [_choice(name)], **score}]
    answers = [_annotation(answer, classes) for answer in item.answers if answer.answer != "skip"]
    return task | ({"annotations": answers} if answers else {})


def find_answers(tasks: Any, classes: list[str], people: dict[int, str]) -> Iterator[ParsedLabel]:
    """Yields every annotation that has a choice or was skipped.

    Args:
        tasks: The parsed JSON of Label Studio.
        classes: Class names of the workspace.
        people: Names of annotators, by their user number.
    """
    others = other_choices(classes)
    for task in require_objects(tasks, "tasks"):
        meta = task.get("meta")
        own_fields = read_own_fields(meta.get("rarefish") if isinstance(meta, dict) else None)
        path = None if own_fields else _path(require(task.get("data"), dict, "data of a task").get("image"))
        for row in require_objects(task.get("annotations", []), "annotations"):
            where = f"annotation {row.get('id', 'without an id')} of task {row.get('task', task.get('id', ''))}"
            fields = _answer(row, others, where)
            if fields:
                made_at = str(row.get("updated_at") or row.get("created_at") or "")
                who = _who(row.get("completed_by"), people)
                fields = {"who": who, **fields, "made_at": to_time(fields.get("made_at", made_at), where)}
                yield ParsedLabel(where, path=path, key=str(row.get("id", "")), **own_fields, **fields)


def _write(tasks: list[dict[str, Any]], config: str, classes: list[str], path: Path) -> None:
    path.mkdir()
    (path / TASKS).write_text(json.dumps(tasks, indent=1), encoding="utf-8")
    (path / CONFIG).write_text(config, encoding="utf-8")
    (path / MARKER_FILE).write_text(json.dumps({"classes": classes}), encoding="utf-8")


def _box_task(image: BoxedImage) -> dict[str, Any]:
    """Returns a task with the boxes as a prediction, which becomes the start of an annotation."""
    result = [_region(box, image) for box in image.boxes]
    return {
        "data": {"image": LOCAL_FILES_URL + quote(image.path)},
        "predictions": [{"model_version": "rarefish", "result": result}] if result else [],
    }


def _region(box: Box, image: BoxedImage) -> dict[str, Any]:
    """Returns a rectangle, whose position and size are percentages of the image's size."""
    return {
        **{"from_name": BOXES, "to_name": OBJECT, "type": "rectanglelabels", "image_rotation": 0},
        **{"original_width": image.width, "original_height": image.height},
        **({} if box.score is None else {"score": box.score}),
        "value": {
            **{"x": 100 * box.left / image.width, "y": 100 * box.top / image.height},
            **{"width": 100 * box.width / image.width, "height": 100 * box.height / image.height},
            **{"rotation": 0, "rectanglelabels": [box.name]},
        },
    }


def _choice(name: str) -> dict[str, Any]:
    return {"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": {"choices": [name]}}


def _annotation(answer: Answer, classes: list[str]) -> dict[str, Any]:
    """Returns an annotation that contains its annotator, since Label Studio attributes it to the importing user."""
    others = {kind: choice for choice, kind in other_choices(classes).items()}
    chosen = answer.name or others[answer.answer]
    note = {"rarefish": {"who": answer.who, "choice": chosen, "made_at": answer.made_at}}
    return {"ground_truth": False, "created_at": answer.made_at, "result": [{**_choice(chosen), "meta": note}]}


def _answer(row: dict[str, Any], others: dict[str, str], where: str) -> dict[str, Any]:
    """Returns the answer and class of an annotation, or nothing if it has neither.

    If we exported the annotation and nobody has changed it since, the result includes its annotator and time.
    """
    if row.get("was_cancelled"):
        return {"answer": "skip"}
    for result in require_objects(row.get("result", []), f"the result of {where}"):
        value = result.get("value")
        if result.get("type") != "choices" or not isinstance(value, dict):
            continue
        chosen = require(value.get("choices"), list, f"choices of {where}")
        if len(chosen) == 1:
            name = require(chosen[0], str, f"The choice of {where}")
            fields = {"answer": others[name]} if name in others else {"answer": "class", "name": name}
            return fields | _note(result.get("meta"), name)
    return {}


def _note(meta: Any, chosen: str) -> dict[str, str]:
    """Returns the annotator and time stored by `_annotation`, or nothing if the choice was changed since."""
    note = meta.get("rarefish") if isinstance(meta, dict) else None
    if not isinstance(note, dict) or note.get("choice") != chosen:
        return {}
    return {name: note[name] for name in ("who", "made_at") if isinstance(note.get(name), str)}


def _who(by: Any, people: dict[int, str]) -> str:
    """Returns the name of the user in the field completed_by, or an empty text."""
    if isinstance(by, dict):
        by = by.get("email") or by.get("username") or by.get("id")
    if isinstance(by, int):
        return people.get(by, f"label-studio user {by}")
    return by if isinstance(by, str) else ""


def _path(url: Any) -> bytes | None:
    """Returns the path in a URL of local files."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        given = parse_qs(parts.query, encoding="utf-8", errors="surrogateescape").get("d")
    except ValueError:
        return None
    return to_path(given[0]) if given else unquote_to_bytes(to_path(parts.path))
