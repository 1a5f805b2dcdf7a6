"""Helpers of the commands: sizes, lists of names, JSON, and options that a command would ignore."""

import json

import click
import pytest
from click.testing import CliRunner

from rarefish.cli.options import json_option, parse_size, reject_unused, split_names, tell, to_json
from rarefish.errors import ArgumentError


def test_a_size_has_two_numbers_or_one() -> None:
    assert parse_size("32x48") == (32, 48) and parse_size("28") == (28, 28)
    for wrong in ("", "x", "0x4", "12by12", "-3", "12x0"):
        with pytest.raises(ArgumentError, match=f"Invalid size '{wrong}'. Give HEIGHTxWIDTH, such as 224x224"):
            parse_size(wrong)


def test_names_are_separated_by_commas() -> None:
    assert split_names("conv1, conv2") == ("conv1", "conv2") and split_names("fc1") == ("fc1",)


def test_json_escapes_what_a_terminal_would_interpret() -> None:
    found = {"name": "ä\x1b[31m\u2028"}
    text = to_json(found)
    assert text.isprintable() and "ä" in text and json.loads(text) == found


@click.command()
@click.option("--number", type=int, default=3)
@click.option("--fast/--no-fast", "is_fast", default=None)
@json_option
def example(number: int, is_fast: bool | None, as_json: bool) -> None:
    reject_unused(["number", "is_fast"], "Examples count nothing")
    tell(as_json, {"number": number}, f"{number}\x1b")


def test_a_command_refuses_the_options_that_were_given_but_not_their_defaults() -> None:
    assert CliRunner().invoke(example).output == "3\\x1b\n"
    assert json.loads(CliRunner().invoke(example, ["--json"]).output) == {"number": 3}
    refused = CliRunner().invoke(example, ["--number", "3", "--no-fast"])
    assert str(refused.exception) == "Examples count nothing. Leave out --number, --fast."
