"""Label Studio's tasks and its labeling configuration; annotations read back, each with who made it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit
from xml.sax.saxutils import quoteattr

from rarefish.exchange.found import Found, need, need_rows, ours, read_json, to_path, to_time
from rarefish.exchange.items import Item, Said
from rarefish.exchange.names import spare
from rarefish.exchange.places import MARK

CONTROL, OBJECT = "class", "image"
"""How the configuration names its choices and its picture."""
TASKS, CONFIG = "tasks.json", "labeling_config.xml"


def write_tasks(items: list[Item], classes: list[str], place: Path) -> None:
    """A folder with tasks.json to import and labeling_config.xml to set up the project with."""
    place.mkdir()
    tasks = [to_task(item, classes) for item in items]
    (place / TASKS).write_text(json.dumps(tasks, indent=1), encoding="utf-8")
    (place / CONFIG).write_text(to_config(classes), encoding="utf-8")
    (place / MARK).write_text(json.dumps({"classes": classes}), encoding="utf-8")


def read_tasks(source: Path, classes: list[str]) -> Iterator[Found]:
    return find_answers(read_json(source / TASKS if source.is_dir() else source), classes, {})


def to_config(classes: list[str]) -> str:
    choices = [*classes, *other_choices(classes)]
    return "\n".join(
        [
            "<View>",
            f'  <Image name="{OBJECT}" value="$image"/>',
            f'  <Choices name="{CONTROL}" toName="{OBJECT}" choice="single" showInLine="true">',
            *(f"    <Choice value={quoteattr(name)}/>" for name in choices),
            "  </Choices>",
            "</View>\n",
        ]
    )


def other_choices(classes: list[str]) -> dict[str, str]:
    """What a person may choose beside the classes -> the answer it is."""
    none = spare("(none of these)", classes)
    return {none: "none", spare("(unsure)", [*classes, none]): "unsure"}


def to_task(item: Item, classes: list[str]) -> dict[str, Any]:
    """The picture, what we know of it, the likeliest class as a prediction, and answers that were given."""
    name, chance = item.prediction
    task: dict[str, Any] = {
        "data": {"image": item.url},
        "meta": {"rarefish": item.own_fields},
    }
    if name is not None:
        scored = {} if chance is None else {"score": chance}
        task["predictions"] = [{"model_version": f"rarefish round {item.round}", "result": [_choice(name)], **scored}]
    answers = [_annotation(said, classes) for said in item.said if said.answer != "skip"]
    return task | ({"annotations": answers} if answers else {})


def find_answers(tasks: Any, classes: list[str], people: dict[int, str]) -> Iterator[Found]:
    """Every annotation with a choice, or skipped. `people` tells the names of users that go by a number."""
    others = other_choices(classes)
    for task in need_rows(tasks, "tasks"):
        meta = task.get("meta")
        known = ours(meta.get("rarefish") if isinstance(meta, dict) else None)
        path = None if known else _path(need(task.get("data"), dict, "data of a task").get("image"))
        for row in need_rows(task.get("annotations", []), "annotations"):
            where = f"annotation {row.get('id', 'without an id')} of task {row.get('task', task.get('id', ''))}"
            told = _answer(row, others, where)
            if told:
                made_at = str(row.get("updated_at") or row.get("created_at") or "")
                who = _who(row.get("completed_by"), people)
                told = {"who": who, **told, "made_at": to_time(told.get("made_at", made_at), where)}
                yield Found(where, path=path, key=str(row.get("id", "")), **known, **told)


def _choice(name: str) -> dict[str, Any]:
    return {"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": {"choices": [name]}}


def _annotation(said: Said, classes: list[str]) -> dict[str, Any]:
    """Who it was goes along: Label Studio itself takes whoever imports the file for the author."""
    chosen = said.name or next(name for name, answer in other_choices(classes).items() if answer == said.answer)
    note = {"rarefish": {"who": said.who, "choice": chosen, "made_at": said.made_at}}
    return {"ground_truth": False, "created_at": said.made_at, "result": [{**_choice(chosen), "meta": note}]}


def _answer(row: dict[str, Any], others: dict[str, str], where: str) -> dict[str, Any]:
    """Answer and class; who and when too, where it is one of ours that nobody has changed since. Else nothing."""
    if row.get("was_cancelled"):
        return {"answer": "skip"}
    for result in need_rows(row.get("result", []), f"the result of {where}"):
        value = result.get("value")
        if result.get("type") != "choices" or not isinstance(value, dict):
            continue
        chosen = need(value.get("choices"), list, f"choices of {where}")
        if len(chosen) == 1:
            name = need(chosen[0], str, f"The choice of {where}")
            told = {"answer": others[name]} if name in others else {"answer": "class", "name": name}
            return told | _note(result.get("meta"), name)
    return {}


def _note(meta: Any, chosen: str) -> dict[str, str]:
    note = meta.get("rarefish") if isinstance(meta, dict) else None
    if not isinstance(note, dict) or note.get("choice") != chosen:
        return {}
    return {name: note[name] for name in ("who", "made_at") if isinstance(note.get(name), str)}


def _who(by: Any, people: dict[int, str]) -> str:
    if isinstance(by, dict):
        by = by.get("email") or by.get("username") or by.get("id")
    if isinstance(by, int):
        return people.get(by, f"label-studio user {by}")
    return by if isinstance(by, str) else ""


def _path(url: Any) -> bytes | None:
    """The file that an address of local files means."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        given = parse_qs(parts.query, encoding="utf-8", errors="surrogateescape").get("d")
    except ValueError:
        return None
    return to_path(given[0]) if given else unquote_to_bytes(to_path(parts.path))
