"""CVAT for images 1.1: an XML file with one tag per labeled image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from rarefish.errors import DataError
from rarefish.exchange.items import Item
from rarefish.exchange.names import path_to_text
from rarefish.exchange.parsed_labels import ParsedLabel, read_bytes, to_path

MARKER = b"<!-- made by rarefish -->"


def write_cvat(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes an XML file."""
    labels = [f"<label><name>{escape(name)}</name><type>tag</type><attributes/></label>" for name in classes]
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        MARKER.decode(),
        "<annotations>",
        "<version>1.1</version>",
        f"<meta><task><size>{len(items)}</size><mode>annotation</mode><labels>",
        *labels,
        "</labels></task></meta>",
        *(_image(number, item) for number, item in enumerate(items)),
        "</annotations>",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_cvat(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the tags of all images.

    A document type is rejected: its entities could include other files or expand without limit.
    """
    labels: list[ParsedLabel] = []
    open_image: list[str] = []
    elements: list[str] = []

    def start(element: str, attributes: dict[str, str]) -> None:
        elements.append(element)
        if element == "image":
            open_image.append(attributes.get("name", ""))
        elif element == "tag" and open_image:
            name, label = open_image[-1], attributes.get("label", "")
            labels.append(ParsedLabel(f"image {name!r}", path=to_path(name), name=label))

    def end(element: str) -> None:
        if element == "image":
            open_image.pop()

    def refuse(*_: Any) -> None:
        raise DataError(
            f"{source} declares a document type or entities, which CVAT never writes. Nothing was imported."
        )

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(read_bytes(source), True)
    except (expat.ExpatError, UnicodeError, LookupError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{source} is not valid XML, or is truncated: {error}. Nothing was imported.") from error
    if elements[:1] != ["annotations"]:
        raise DataError(
            f"{source} is not a CVAT for images 1.1 file: it begins with <{elements[0]}>, not <annotations>."
        )
    yield from labels


def _image(number: int, item: Item) -> str:
    start = (
        f'<image id="{number}" name={quoteattr(path_to_text(item.path))} width="{item.width}" height="{item.height}"'
    )
    if item.label is None:
        return f"{start}/>"
    return f'{start}><tag label={quoteattr(item.label)} source="manual"></tag></image>'
