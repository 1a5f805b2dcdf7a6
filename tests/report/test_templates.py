"""Templates of pages escape what they show."""

from importlib.resources import files

import pytest

from rarefish.report.templates import load_template


@pytest.mark.parametrize("name", ["demo.html", "experiments.html", "work.html"])
def test_a_page_escapes_names(name: str) -> None:
    text = (files("rarefish.report") / name).read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "{{" in text
    environment = load_template(name).environment
    assert environment.from_string("{{ name }}").render(name="<b>owl</b>") == "&lt;b&gt;owl&lt;/b&gt;"
    assert (
        environment.from_string("{% if name %}\n  {% if name %}\nx\n{% endif %}\n{% endif %}\n").render(name=1) == "x\n"
    )
