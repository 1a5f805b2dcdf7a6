"""CVAT for images 1.1: an XML file with one tag a labeled image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from rarefish.errors import DataError
from rarefish.exchange.found import Found, read_bytes, to_path
from rarefish.exchange.items import Item
from rarefish.exchange.names import to_name

MARK = b"<!-- made by rarefish -->"


def write_cvat(items: list[Item], classes: list[str], place: Path) -> None:
    labels = [f"<label><name>{escape(name)}</name><type>tag</type><attributes/></label>" for name in classes]
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        MARK.decode(),
        "<annotations>",
        "<version>1.1</version>",
        f"<meta><task><size>{len(items)}</size><mode>annotation</mode><labels>",
        *labels,
        "</labels></task></meta>",
        *(_image(number, item) for number, item in enumerate(items)),
        "</annotations>",
    ]
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_cvat(source: Path, classes: list[str]) -> Iterator[Found]:
    """The tags of every image. A document type is refused: it could name other files, or grow without end."""
    found: list[Found] = []
    open_image: list[str] = []
    seen: list[str] = []

    def start(element: str, attributes: dict[str, str]) -> None:
        seen.append(element)
        if element == "image":
            open_image.append(attributes.get("name", ""))
        elif element == "tag" and open_image:
            name, label = open_image[-1], attributes.get("label", "")
            found.append(Found(f"image {name!r}", path=to_path(name), name=label))

    def end(element: str) -> None:
        if element == "image":
            open_image.pop()

    def refuse(*_: Any) -> None:
        raise DataError(f"{source} declares a document type or entities, which CVAT does not write. It is not read.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(read_bytes(source), True)
    except (expat.ExpatError, UnicodeError, LookupError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{source} is no XML, or was cut off: {error}. Nothing was imported.") from error
    if seen[:1] != ["annotations"]:
        raise DataError(f"{source} is no file of CVAT for images 1.1: it begins with <{seen[0]}>, not <annotations>.")
    yield from found


def _image(number: int, item: Item) -> str:
    start = f'<image id="{number}" name={quoteattr(to_name(item.path))} width="{item.width}" height="{item.height}"'
    if item.label is None:
        return f"{start}/>"
    return f'{start}><tag label={quoteattr(item.label)} source="manual"></tag></image>'
