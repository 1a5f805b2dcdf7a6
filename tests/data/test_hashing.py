"""Hashes change with what they are made of, and with nothing else."""

from pathlib import Path

from rarefish.data.hashing import digest, digest_files


def test_values_and_their_order_count() -> None:
    values = [["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], [b"a", b"b"], [1], ["1"], [None], []]
    assert len({digest(some) for some in values}) == len(values) and digest(iter(["a", "b"])) == digest(["a", "b"])


def test_names_count_below_the_common_folder(tmp_path: Path) -> None:
    for place in ("one/a-b", "one/a", "two/a-b", "two/a"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "x").write_text("x")

    def both(place: str, *names: str) -> str:
        return digest_files([tmp_path / place / name for name in names], with_contents=True)

    assert both("one", "a-b/x", "a/x") == both("two", "a-b/x", "a/x") != both("one", "a/x", "a-b/x")
    (tmp_path / "two/a/x").write_text("y")
    assert both("one", "a-b/x", "a/x") != both("two", "a-b/x", "a/x")
    assert digest_files([]) == digest_files([])
