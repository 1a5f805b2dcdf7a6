"""Text in cells of CSV files: a spreadsheet shows it and does not run it as a formula.

Excel and LibreOffice may take a cell that begins with = + - @, a tab or a line break for a formula, also in a CSV file.
Such text is written with an apostrophe before it, which `from_cell` takes away again. Numbers stay numbers.
"""

STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Full-width signs count for some spreadsheets as well."""


def to_cell(value: object) -> object:
    """The value as it is written: text that would be a formula, or that looks like such text written by us, is marked.

    >>> to_cell("=1+1"), to_cell("'=1+1"), to_cell("owl"), to_cell(-0.5)
    ("'=1+1", "''=1+1", 'owl', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def from_cell(text: str) -> str:
    """The text that `to_cell` was given.

    >>> from_cell("'=1+1"), from_cell("''=1+1"), from_cell("owl"), from_cell("'owl"), from_cell("-1")
    ('=1+1', "'=1+1", 'owl', "'owl", '-1')
    """
    return text[1:] if text.startswith("'") and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    return text.lstrip("'").startswith(STARTS)
