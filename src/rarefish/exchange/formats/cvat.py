"""CVAT for images 1.1: an XML file with one tag per labeled image, or with boxes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from rarefish.errors import DataError
from rarefish.exchange.boxes import BoxedImage
from rarefish.exchange.export_items import Item
from rarefish.exchange.label_parsing import ParsedLabel, read_bytes, to_path
from rarefish.exchange.safe_names import path_to_text

MARKER = b"<!-- made by rarefish -->"


def write_cvat(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes an XML file for CVAT."""
    _write([_image(number, item) for number, item in enumerate(items)], classes, "tag", path)


def write_cvat_boxes(images: list[BoxedImage], classes: list[str], path: Path) -> None:
    """Writes an XML file for CVAT with a rectangle per box."""
    _write([_boxed_image(number, image) for number, image in enumerate(images)], classes, "rectangle", path)


def read_cvat(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the tags of all images.

    A document type declaration is rejected, because its entities could include other files or expand without limit.
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
        raise DataError(f"{source} declares a document type or entities, which CVAT never does. Nothing was imported.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(read_bytes(source), True)
    except (expat.ExpatError, UnicodeError, LookupError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{source} is truncated or not valid XML: {error}. Nothing was imported.") from error
    if elements[:1] != ["annotations"]:
        raise DataError(
            f"{source} is not a CVAT for images 1.1 file: it begins with <{elements[0]}>, not <annotations>."
        )
    yield from labels


def _write(images: list[str], classes: list[str], kind: str, path: Path) -> None:
    labels = [f"<label><name>{escape(name)}</name><type>{kind}</type><attributes/></label>" for name in classes]
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        MARKER.decode(),
        "<annotations>",
        "<version>1.1</version>",
        f"<meta><task><size>{len(images)}</size><mode>annotation</mode><labels>",
        *labels,
        "</labels></task></meta>",
        *images,
        "</annotations>",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _image(number: int, item: Item) -> str:
    start = _start(number, path_to_text(item.path), item.width, item.height)
    if item.label is None:
        return f"{start}/>"
    return f'{start}><tag label={quoteattr(item.label)} source="manual"></tag></image>'


def _boxed_image(number: int, image: BoxedImage) -> str:
    boxes = [
        f'<box label={quoteattr(box.name)} source="auto" occluded="0" xtl="{box.left:.2f}" ytl="{box.top:.2f}" '
        f'xbr="{box.right:.2f}" ybr="{box.bottom:.2f}" z_order="0"></box>'
        for box in image.boxes
    ]
    return "\n".join([f"{_start(number, image.path, image.width, image.height)}>", *boxes, "</image>"])


def _start(number: int, name: str, width: int, height: int) -> str:
    return f'<image id="{number}" name={quoteattr(name)} width="{width}" height="{height}"'
