"""The list of mutants fits the code, and a few of them are killed for real; `tools/mutants.py` runs them all."""

from dataclasses import replace
from pathlib import Path

import mutants
import pytest
from mutant_list import MUTANTS, Mutant
from mutants import FAST, ROOT, Outcome, apply, read_outcomes, run_mutants, select_mutants, summary, write_outcomes


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_one_change_that_compiles(mutant: Mutant) -> None:
    source = (ROOT / "src" / "rarefish" / mutant.file).read_text()
    changed = apply(mutant, source)
    assert changed != source
    compile(changed, mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / "tests" / file).read_text()


def test_names_are_distinct_and_enough() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 75


@pytest.mark.slow
def test_a_few_mutants_are_killed_and_a_harmless_one_survives() -> None:
    harmless = Mutant("harmless", "centers.py", "import torch\n", "import torch  # torch\n", ("data/test_hashing.py",))
    broken = replace(harmless, name="broken", tests=("no_such_file.py",))
    source = {mutant.file: (ROOT / "src" / "rarefish" / mutant.file).read_text() for mutant in MUTANTS}
    found = {outcome.mutant: outcome for outcome in run_mutants([*select_mutants(FAST), harmless, broken], jobs=1)}
    assert {name: outcome.verdict for name, outcome in found.items()} == {
        **dict.fromkeys(FAST, mutants.KILLED),
        "harmless": mutants.SURVIVED,
        "broken": mutants.BROKEN,
    }
    assert "test_the_default_equals_its_twin" in found["pool's prior counts labeled pool images"].by
    assert source == {file: (ROOT / "src" / "rarefish" / file).read_text() for file in source}


def test_an_endless_loop_is_noticed_and_a_slow_machine_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Mutant("endless", "centers.py", "import torch\n", "while True: pass\n", ("test_centers.py",))
    monkeypatch.setattr(mutants, "CPU_LIMIT_S", 2)
    assert list(run_mutants([endless], 1)) == [Outcome("endless", mutants.KILLED, "more than 2 s of CPU time")]
    assert list(run_mutants([endless], 1, timeout=0.01)) == [Outcome("endless", mutants.BROKEN, "no result after 0 s")]


def test_an_old_text_must_occur_once() -> None:
    mutant = Mutant("a", "centers.py", "x", "y", ())
    assert apply(mutant, "a x b") == "a y b"
    for source in ("none", "x and x"):
        with pytest.raises(ValueError, match="not once"):
            apply(mutant, source)


def test_results_are_kept_and_only_what_is_left_runs_again(tmp_path: Path) -> None:
    """In the order of the list; what survived may be killed by better tests."""
    first, second, third = MUTANTS[:3]
    outcomes = [Outcome(third.name, mutants.SURVIVED), Outcome(first.name, mutants.KILLED, "test_a.py::test[x]")]
    outcomes.append(Outcome(second.name, mutants.KILLED))
    write_outcomes(tmp_path / "log", MUTANTS, outcomes, summary(outcomes))
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["killed", "killed", "survived"]
    assert lines[3] == f"2 of 3 mutants killed (66.7 %). Left: {third.name}."
    assert read_outcomes(tmp_path / "log") == {outcome.mutant: outcome for outcome in outcomes[1:]}
    assert read_outcomes(tmp_path / "nothing") == {}
