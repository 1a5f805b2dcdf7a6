"""Oracles: their errors, their refusals, and answers from a file."""

from pathlib import Path

import pytest

from rarefish.active_learning.oracles import known_labels, label_file, noisy, refusing
from rarefish.errors import ArgumentError, DataError, LabelError
from tests.active_learning.tasks import TRUTH, rounds


def test_a_noisy_oracle_errs_at_its_rate_and_repeats_its_answers() -> None:
    truth = [i % 7 for i in range(2000)]
    oracle = noisy(known_labels(truth), 0.2, num_classes=7)
    answers = oracle(range(2000))
    wrong = [i for i in range(2000) if answers[i] != truth[i]]
    assert 0.17 < len(wrong) / 2000 < 0.23 and set(answers) == set(range(7))
    assert oracle(wrong) == [answers[i] for i in wrong]


def test_refused_images_stay_unlabeled_and_are_not_asked_about_again() -> None:
    run = rounds(ask=refusing(known_labels(TRUTH), 0.4), num_rounds=4)
    after = run[-1].situation
    assert len(after.labeled) + len(after.refused) == 20 and len(after.refused) > 2
    assert run[-1].labels_spent == 20 and len(after.labels) == len(after.labeled) < 20
    assert after.labels == tuple(TRUTH[i] for i in after.labeled)


def test_a_label_file_answers(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("index,label\n3,1\n5,\n")
    oracle = label_file(path)
    assert oracle([5, 3]) == [None, 1]
    with pytest.raises(LabelError, match="no line for 1 of the requested images: 9"):
        oracle([3, 9])
    path.write_text("image,label\n")
    with pytest.raises(DataError, match="has the columns image, label, but needs index and label"):
        label_file(path)
    path.write_text("index,label\n3,cat\n")
    with pytest.raises(LabelError, match="line 2"):
        label_file(path)
    with pytest.raises(ArgumentError, match="from 0 to 1, not 2"):
        noisy(oracle, 2, 3)
