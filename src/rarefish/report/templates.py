"""The templates of the report pages: HTML files in this package that escape their contents."""

from importlib.resources import files

from jinja2 import Environment, Template


def load_template(name: str) -> Template:
    """Returns the template in the file with this name."""
    text = (files("rarefish.report") / name).read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
