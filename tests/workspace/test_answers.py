"""The queue: everyone is asked what was not answered, nobody twice; an answer counts once and can be taken back."""

import random
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.errors import ArgumentError, LabelError
from rarefish.workspace import answers
from rarefish.workspace.answers import answer, disagreements, progress, settled, take, undo, votes
from rarefish.workspace.verification import verify
from tests.workspaces import add_round, make_workspace


def test_people_are_asked_in_order_and_not_about_what_others_look_at(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=8, picks=6)
    ann, bob = take(store, "ann", 2), take(store, "bob", 2)
    assert [task.rank for task in ann + bob] == [0, 1, 2, 3]
    assert ann[0].center_class == 0 and ann[0].guess == 1 and ann[0].probabilities[0] == (0, 0.7)
    answer(store, ann[0].image, "ann", "class", 2, "a0")
    more = take(store, "ann", 2, held=(ann[1].image,))
    assert [task.rank for task in more] == [4, 5] and take(store, "cleo", 3) == []
    assert progress(store, "ann").own == 1 and progress(store).open == 5


def test_a_lease_that_ran_out_is_someone_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    assert len(take(store, "ann", 2)) == 2 and take(store, "bob") == []
    later = answers.time.time() + answers.LEASE_S + 1
    monkeypatch.setattr(answers.time, "time", lambda: later)
    assert [task.rank for task in take(store, "bob", 2)] == [0, 1]


def test_a_lease_made_by_a_clock_that_was_ahead_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    moment = answers.time.time()
    monkeypatch.setattr(answers.time, "time", lambda: moment + 86_400)
    assert len(take(store, "ann", 2)) == 2
    monkeypatch.setattr(answers.time, "time", lambda: moment)
    assert [task.rank for task in take(store, "bob", 1)] == [0]
    assert [task.rank for task in take(store, "cleo", 2)] == [1], "a lease made now holds as long as ever"
    monkeypatch.setattr(answers.time, "time", lambda: moment + answers.LEASE_S - 1)
    assert take(store, "dan", 2) == []


def test_skipped_images_come_back_last_and_count_for_nothing(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    first = take(store, "ann")[0]
    answer(store, first.image, "ann", "skip", None, "s")
    assert [task.rank for task in take(store, "ann", 3)] == [1, 2, 0]
    assert progress(store).open == 3 and settled(store) == {}


def test_undo_gives_the_image_back_to_whoever_undid_it(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    tasks = take(store, "ann", 2)
    for number, task in enumerate(tasks):
        answer(store, task.image, "ann", "class", number, f"t{number}")
    back = undo(store, "ann", "u1")
    assert back == tasks[1] and settled(store) == {tasks[0].image: 0}
    assert undo(store, "ann", "u1") == tasks[1], "the same request twice is one undo"
    assert [task.rank for task in take(store, "bob", 3)] == [2]
    answer(store, tasks[1].image, "ann", "none", None, "t3")
    assert undo(store, "ann", "u2") == tasks[1] and undo(store, "ann", "u3") == tasks[0]
    assert undo(store, "ann", "u4") is None and undo(store, "bob", "u5") is None
    assert not verify(store) and progress(store).open == 3


def test_a_request_sent_twice_is_one_label(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    image = take(store, "ann")[0].image
    assert answer(store, image, "ann", "class", 1, "t") == answer(store, image, "ann", "class", 1, "t")
    with pytest.raises(LabelError, match="ticket belongs to another answer"):
        answer(store, image, "ann", "class", 2, "t")
    assert settled(store) == {image: 1}


def test_answers_that_make_no_sense_change_nothing(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=1)
    image = take(store, "ann")[0].image
    for bad, word in (
        ((image + 1, "ann", "class", 1), "No round has picked image"),
        ((image, "ann", "class", 7), "no class 7"),
        ((image, "ann", "class", None), "Give a class number with"),
        ((image, "ann", "skip", 1), "Give a class number with"),
        ((image, "ann", "undo", None), "one of class, none, unsure, skip"),
    ):
        with pytest.raises(LabelError, match=word):
            answer(store, *bad, ticket="t")
    for name in ("", " ", "a\nb", "x" * 65):
        with pytest.raises(ArgumentError, match="A name must have 1 to 64"):
            answer(store, image, name, "none", None, "t")
    assert progress(store).open == 1 and not verify(store)


def test_two_people_an_image(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    store.set(people_per_image=2)
    for who, said in (("ann", (0, 1, 2)), ("bob", (0, 2, 2))):
        for number, task in zip(said, take(store, who, 3), strict=True):
            answer(store, task.image, who, "class", number, f"{who}{task.image}")
    assert take(store, "cleo", 3) == [] and progress(store).open == 0 and progress(store).disagreements == 1
    ((image, said),) = disagreements(store).items()
    assert said == {1: 1, 2: 1} and image not in settled(store) and len(settled(store)) == 2


@pytest.mark.parametrize("people_per_image", [1, 2])
def test_four_people_at_once_label_each_image_as_often_as_asked(tmp_path: Path, people_per_image: int) -> None:
    store = make_workspace(tmp_path, pool=60, trusted=1, picks=60)
    store.set(people_per_image=people_per_image)

    def work(who: str) -> None:
        rng = random.Random(who)
        while tasks := take(store, who, 3):
            for task in tasks:
                answer(store, task.image, who, "class", rng.randrange(3), f"{who}{task.image}")

    threads = [Thread(target=work, args=(who,)) for who in ("ann", "bob", "cleo", "dan")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = votes(store)
    assert len(said) == 60 and {sum(count.values()) for count in said.values()} == {people_per_image}
    assert not verify(store)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["class", "skip", "none", "undo"])), max_size=40))
@settings(max_examples=25, deadline=None)
def test_what_stands_is_what_a_replay_of_all_answers_leaves(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, str]]
) -> None:
    store = make_workspace(tmp_path_factory.mktemp("w"), pool=4, trusted=1, picks=4)
    store.set(people_per_image=2)
    history: dict[str, list[tuple[int, str]]] = {who: [] for who in "abc"}
    for number, (who, kind) in enumerate(moves):
        if kind == "undo":
            back = undo(store, who, f"t{number}")
            assert (back.image if back else None) == (history[who].pop()[0] if history[who] else None)
        elif tasks := take(store, who):
            answer(store, tasks[0].image, who, kind, 1 if kind == "class" else None, f"t{number}")
            history[who].append((tasks[0].image, kind))
    expected: dict[int, int] = {}
    for done in history.values():
        for image, kind in dict(done).items():
            expected[image] = expected.get(image, 0) + (kind != "skip")
    found = {image: sum(said.values()) for image, said in votes(store).items()}
    assert found == {image: count for image, count in expected.items() if count}
    assert not verify(store)


def test_rounds_are_asked_one_after_another(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, picks=2)
    add_round(store, 2)
    assert [(task.round, task.rank) for task in take(store, "ann", 9)] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_more_or_fewer_people_open_and_close_images_at_once(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    for task in take(store, "ann", 2):
        answer(store, task.image, "ann", "class", 0, f"t{task.rank}")
    answers.ask_people(store, 2)
    assert progress(store).open == 3 and len(take(store, "bob", 9)) == 3 and not verify(store)
    answers.ask_people(store, 1)
    assert progress(store).open == 1 and not verify(store)


def test_a_skip_does_not_take_an_answer_back(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=1, picks=1)
    image = take(store, "ann")[0].image
    answer(store, image, "ann", "class", 0, "t")
    with pytest.raises(LabelError, match="a skip would discard that"):
        answer(store, image, "ann", "skip", None, "s")
    assert settled(store) == {image: 0}
