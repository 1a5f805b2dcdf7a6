"""Names that are valid in every tool."""

from rarefish.exchange.safe_names import path_to_text, to_folder_names


def test_names() -> None:
    assert path_to_text("wald/käfer 1%.png".encode()) == "wald/käfer 1%.png"
    assert path_to_text(b"a\xff%\n.png") == "a%FF%25%0A.png"
    folders = to_folder_names(["a/b", "a:b", "..", "x" * 300, "con. "])
    assert len(set(folders.values())) == 5 and all(0 < len(name) <= 81 and "/" not in name for name in folders.values())
