"""A saved choice is loaded again in its own round only."""

from pathlib import Path

import torch

from rarefish.acquisitions import ACQUISITIONS, Choice, Situation
from rarefish.active_learning.resume import RoundFiles, to_choice
from tests.cases import Plain, labeled

POOL, VALIDATION = labeled(30, 1), labeled(12, 2)


def test_a_choice_is_saved_with_its_selection(tmp_path: Path) -> None:
    torch.manual_seed(0)
    here = Situation((Plain(),), POOL, VALIDATION, (3, 9), labels=(0, 1))
    chosen = ACQUISITIONS["fisher"](here, 5, torch.Generator().manual_seed(0))
    files = RoundFiles(tmp_path, "cell")
    assert files.load_choice(2, [3, 9]) is None
    files.save_choice(2, [3, 9], chosen, 1.5)
    saved = files.load_choice(2, [3, 9])
    assert saved is not None and saved["seconds"] == 1.5
    again = to_choice(saved, POOL, VALIDATION)
    assert again.indices == chosen.indices and again.passes == chosen.passes
    assert again.why is not None and chosen.why is not None
    assert again.why.rows() == chosen.why.rows() and again.why.layers == chosen.why.layers
    assert again.why.notes == chosen.why.notes and again.why.pool is POOL
    assert torch.equal(again.why.class_probabilities, chosen.why.class_probabilities)
    assert torch.equal(again.why.center_predictions, chosen.why.center_predictions)


def test_a_choice_after_other_labels_is_not_loaded_and_clear_deletes_all(tmp_path: Path) -> None:
    files = RoundFiles(tmp_path, "cell")
    files.save_choice(1, [], Choice([4, 5], passes=3), 0.1)
    assert files.load_choice(1, [9]) is None and files.load_choice(2, []) is None
    assert to_choice(files.load_choice(1, []) or {}, POOL, VALIDATION) == Choice([4, 5], passes=3)
    files.checkpoint(1, 0).write_bytes(b"")
    other = RoundFiles(tmp_path, "other").checkpoint(1, 0)
    other.write_bytes(b"")
    files.clear()
    assert list(tmp_path.iterdir()) == [other]
