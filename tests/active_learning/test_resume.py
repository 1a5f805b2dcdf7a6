"""A choice on disk is the choice that was made; another round's is not."""

from pathlib import Path

import torch

from rarefish.acquisitions import ACQUISITIONS, Choice, Situation
from rarefish.active_learning.resume import UnderWay, to_choice
from tests.cases import Plain, labeled

POOL, VALIDATION = labeled(30, 1), labeled(12, 2)


def test_a_choice_with_its_reasons_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    here = Situation((Plain(),), POOL, VALIDATION, (3, 9), labels=(0, 1))
    chosen = ACQUISITIONS["fisher"](here, 5, torch.Generator().manual_seed(0))
    files = UnderWay(tmp_path, "cell")
    assert files.read_choice(2, [3, 9]) is None
    files.keep_choice(2, [3, 9], chosen, 1.5)
    kept = files.read_choice(2, [3, 9])
    assert kept is not None and kept["seconds"] == 1.5
    again = to_choice(kept, POOL, VALIDATION)
    assert again.indices == chosen.indices and again.passes == chosen.passes
    assert again.why is not None and chosen.why is not None
    assert again.why.rows() == chosen.why.rows() and again.why.layers == chosen.why.layers
    assert again.why.notes == chosen.why.notes and again.why.pool is POOL


def test_a_choice_after_other_labels_is_not_taken_and_all_is_cleared(tmp_path: Path) -> None:
    files = UnderWay(tmp_path, "cell")
    files.keep_choice(1, [], Choice([4, 5], passes=3), 0.1)
    assert files.read_choice(1, [9]) is None and files.read_choice(2, []) is None
    assert to_choice(files.read_choice(1, []) or {}, POOL, VALIDATION) == Choice([4, 5], passes=3)
    files.training(1, 0).write_bytes(b"")
    other = UnderWay(tmp_path, "other").training(1, 0)
    other.write_bytes(b"")
    files.clear()
    assert list(tmp_path.iterdir()) == [other]
