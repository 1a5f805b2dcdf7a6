"""The labeling page in a real Chromium, on a real server: by keyboard, by two people, through crashes."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from rarefish.workspace.answers import answer, votes
from rarefish.workspace.store import Store
from tests.browser import open_page
from tests.labeling.foreign import REPLIES, foreign
from tests.labeling.many import EVIL, make_many
from tests.labeling.serving import Running, free_port, running, start, stop
from tests.workspaces import make_workspace

pytestmark = pytest.mark.browser
KEYS = {"1": 0, "2": 1, "3": 2, "n": "none", "u": "unsure"}
EXPECTED = ("ERR_CONNECTION", "ERR_SOCKET_NOT_CONNECTED", "status of")
"""What the console says where no server replies, or one with an error."""


def until(tab: Any, true: Callable[[], Any], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        tab.wait_for_timeout(10)


def name_oneself(tab: Any, who: str) -> None:
    tab.wait_for_selector("#name-ask[open]")
    tab.keyboard.type(who)
    tab.keyboard.press("Enter")


def shown(tab: Any) -> int | None:
    """The image on the screen, when it can be seen."""
    return tab.evaluate(
        "() => { const i = document.getElementById('image'), w = document.getElementById('work');"
        " const m = /image\\/(\\d+)/.exec(i.src);"
        " return !w.hidden && i.complete && i.naturalWidth && m ? Number(m[1]) : null }"
    )


def loaded(tab: Any) -> set[int]:
    """The images that have been loaded, for the screen or ahead of it; nothing has to be fetched to show them."""
    entries = "performance.getEntriesByType('resource').filter((one) => one.responseEnd && one.responseStatus < 300)"
    names = tab.evaluate(f"{entries}.map((one) => one.name)")
    return {int(found[1]) for name in names if (found := re.search(r"/image/(\d+)\?size=(?!320)", name))}


def kept_in_browser(tab: Any) -> list[dict[str, Any]]:
    """What the page has still to send."""
    entries = "Object.entries(localStorage).filter(([name]) => name.includes('.send.')).sort()"
    return [json.loads(text) for text in tab.evaluate(f"{entries}.map(([, value]) => value)")]


def hurry(tab: Any) -> bool:
    """Makes the page send what waits now, as it does when the network is back."""
    return bool(tab.evaluate("dispatchEvent(new Event('online'))"))


def is_empty(tab: Any) -> bool:
    """Whether no image is on the screen: the page has reached the end, or waits for images and says "One moment"."""
    return tab.locator("#done").is_visible()


def is_done(tab: Any) -> bool:
    return is_empty(tab) and tab.inner_text("#done-title") == "Nothing left to label"


def press(tab: Any, key: str) -> int:
    """The image that was answered with this key, when the next one can be seen."""
    until(tab, lambda: shown(tab), "an image")
    image = shown(tab)
    assert image is not None
    tab.keyboard.press(key)
    until(tab, lambda: is_empty(tab) or shown(tab) not in (None, image), "the next image")
    return image


def rows(store: Store) -> list[Any]:
    with store.reading() as connection:
        return connection.execute("SELECT * FROM label ORDER BY id").fetchall()


@contextmanager
def labeling(server: Running, who: str = "Ann") -> Iterator[Any]:
    with open_page(server.url) as (tab, asked, complaints):
        dialogs: list[str] = []
        tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        name_oneself(tab, who)
        yield tab
        assert all(address.startswith(server.site) for address in asked), "nothing from anywhere else"
        assert all("token" not in address for address in asked[1:]), "the token leaves the address at once"
        assert [text for text in complaints if not any(word in text for word in EXPECTED)] == []
        assert dialogs == []


def test_twenty_images_by_keyboard_alone(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=20, picks=20)
    with running(store.folder) as server, labeling(server) as tab:
        pressed = {}
        for key in "123nu" * 4:
            image = press(tab, key)
            pressed[image] = {KEYS[key]: 1}
        until(tab, lambda: is_done(tab), "the end")
        assert len(pressed) == 20
        until(tab, lambda: len(votes(store)) == 20, "all answers at the server")
        assert votes(store) == pressed and len(rows(store)) == 20
        assert all(0 <= row["seconds"] < 60 for row in rows(store))
        until(tab, lambda: "20 of 20 done · 20 by you" in tab.inner_text("#counts"), "the counts")
        until(tab, lambda: "All 20 images are answered" in tab.inner_text("#done-text"), "the last words")


def test_why_and_guess_are_shown_and_said(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    with running(store.folder) as server, labeling(server) as tab:
        press(tab, "2")
        assert tab.inner_text("#why-text") == "Similar to this failure: cat, predicted as dog; similarity 99 %"
        assert tab.inner_text("#guess-title") == "The model’s guess: dog"
        assert tab.locator("#probabilities li").all_inner_texts() == ["cat\n70 %", "dog\n30 %"]
        assert tab.evaluate("document.getElementById('center').naturalWidth") == 24
        said = tab.text_content("#live")
        assert said.startswith("dog. Image ") and said.endswith(
            "The model says dog, 30 %. Similar to a failure of class cat."
        )


def test_undo(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, picks=6)
    with running(store.folder) as server, labeling(server) as tab:
        first, second = press(tab, "1"), press(tab, "2")
        for key, image in (("Backspace", second), ("Control+z", first)):
            tab.keyboard.press(key)
            until(tab, lambda image=image: shown(tab) == image, "the image is back")
        until(tab, lambda: votes(store) == {} and len(rows(store)) == 4, "both are taken back")
        assert press(tab, "3") == first and press(tab, "3") == second
        until(tab, lambda: votes(store) == {first: {2: 1}, second: {2: 1}}, "the new answers")
        tab.reload()
        until(tab, lambda: shown(tab), "an image")
        tab.keyboard.press("Backspace")
        until(tab, lambda: shown(tab) == second, "undone after a reload, too")


def test_skipped_images_come_back_at_the_end(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    with running(store.folder) as server, labeling(server) as tab:
        skipped = press(tab, "s")
        press(tab, "1")
        press(tab, "1")
        until(tab, lambda: shown(tab) == skipped, "the skipped one")
        press(tab, "n")
        until(tab, lambda: is_done(tab) and votes(store).get(skipped) == {"none": 1}, "answered")


def test_search_among_a_thousand_classes(tmp_path: Path) -> None:
    store = make_many(tmp_path)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        first = shown(tab)
        tab.keyboard.press("/")
        began = time.monotonic()
        tab.keyboard.type("d 0777")
        until(tab, lambda: tab.locator("#found li").all_inner_texts() == ["kind 0777"], "one class is left")
        assert time.monotonic() - began < 3
        tab.keyboard.press("Enter")
        until(tab, lambda: votes(store) == {first: {777 + 7: 1}}, "the answer")
        second = shown(tab)
        tab.keyboard.press("/")
        tab.keyboard.type("kind 001")
        assert tab.locator("#found li").count() == 10
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            tab.keyboard.press(key)
        until(tab, lambda: votes(store).get(second or 0) == {12 + 7: 1}, "the third of ten")
        third = press(tab, "1")  # the likeliest by the posterior
        until(tab, lambda: votes(store).get(third) == {0: 1}, "a key")


def test_keys_mean_nothing_while_typing_or_where_turned_off_or_held(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=9, picks=9)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        tab.keyboard.press("/")
        tab.keyboard.type("n1u2s3")
        tab.keyboard.press("Backspace")
        tab.keyboard.press("Enter")  # no class has that in its name
        tab.keyboard.press("Escape")
        tab.keyboard.press("?")
        tab.keyboard.type("123")  # in a dialog
        tab.uncheck("#keys-on")
        tab.keyboard.press("Escape")
        tab.keyboard.type("123")
        tab.evaluate("document.getElementById('help').showModal()")
        tab.check("#keys-on")
        tab.keyboard.press("Escape")
        assert rows(store) == []
        for _ in range(5):
            tab.keyboard.down("1")  # the browser says of all but the first that the key is held
        tab.keyboard.up("1")
        until(tab, lambda: len(rows(store)) == 1, "one answer")
        tab.wait_for_timeout(300)
        assert len(rows(store)) == 1


def test_zoom(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        width = tab.locator("#image").bounding_box()["width"]
        tab.keyboard.press("z")
        assert tab.locator("#image").bounding_box()["width"] == pytest.approx(2.5 * width, rel=0.02)
        before = tab.evaluate("document.getElementById('stage').scrollTop")
        tab.keyboard.press("ArrowDown")
        assert tab.evaluate("document.getElementById('stage').scrollTop") > before > 0
        tab.keyboard.press("-")
        assert tab.inner_text("#zoom-now") == "2 ×"
        press(tab, "1")
        assert tab.inner_text("#zoom-now") == "fit"


def test_while_images_are_on_their_way_the_page_does_not_call_it_the_end(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=8, picks=8)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        waiting: list[Any] = []
        tab.route("**/api/next", lambda route: waiting.append(route))  # the server takes its time
        while not is_empty(tab):
            press(tab, "1")
        assert tab.inner_text("#done-title") == "One moment" and len(rows(store)) < 8
        tab.unroute("**/api/next")  # which lets those that wait go on
        while len(rows(store)) < 8:
            press(tab, "2")
            tab.wait_for_timeout(50)
        until(tab, lambda: tab.inner_text("#done-title") == "Nothing left to label", "the end, when it is")


def test_the_page_asks_once_at_a_time(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        waiting: list[Any] = []
        tab.route("**/api/next", lambda route: waiting.append(route))
        tab.reload()
        until(tab, lambda: waiting, "the first asking")
        waiting[0].continue_()
        until(tab, lambda: len(waiting) == 2, "few are ahead, so it asks again")
        press(tab, "1")
        tab.wait_for_timeout(200)
        assert len(waiting) == 2


def test_a_server_that_fails_to_answer_is_not_the_end(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        tab.route("**/api/next", lambda route: route.fulfill(status=503, body="{}"))
        press(tab, "1")
        press(tab, "1")
        until(tab, lambda: "does not respond" in tab.inner_text("#done-text"), "a word about it")
        tab.wait_for_timeout(600)  # the page has looked at its progress meanwhile
        assert tab.inner_text("#done-title") == "One moment"
        tab.unroute("**/api/next")
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it looks again when one comes back
        until(tab, lambda: tab.inner_text("#done-title") == "Nothing left to label", "the end, when it is")


def test_two_people_never_do_the_same(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=24, picks=24)
    with running(store.folder) as server, labeling(server, "Ann") as ann:
        bo = ann.context.browser.new_context().new_page()
        bo.goto(server.url)
        name_oneself(bo, "Bo")
        done = {"Ann": [], "Bo": []}
        while not (is_done(ann) and is_done(bo)):
            for who, tab, key in (("Ann", ann, "1"), ("Bo", bo, "2")):
                until(tab, lambda tab=tab: shown(tab) or is_done(tab), "an image, or the end")
                if not is_done(tab):
                    done[who].append(press(tab, key))
        until(ann, lambda: len(rows(store)) == 24, "all answers")
        assert sorted(done["Ann"] + done["Bo"]) == sorted(votes(store)) and not set(done["Ann"]) & set(done["Bo"])
        assert min(len(done["Ann"]), len(done["Bo"])) >= 6


def test_a_server_that_is_killed_and_started_again_loses_nothing(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=20, picks=20)
    server = start(store.folder, free_port())
    try:
        with labeling(server) as tab:
            pressed = [press(tab, "1") for _ in range(4)]
            until(tab, lambda: len(loaded(tab)) >= 4 + 4, "images ahead")
            stop(server, SIGKILL)
            for _ in range(3):
                pressed.append(press(tab, "2"))
            until(tab, lambda: "kept in this browser" in tab.inner_text("#trouble"), "a word about it")
            tab.keyboard.press("Backspace")
            until(tab, lambda: shown(tab) == pressed[-1], "undo without a server")
            server = start(store.folder, server.client.port)
            until(tab, lambda: not tab.locator("#trouble").is_visible(), "all is well again")
            while not is_done(tab):
                pressed.append(press(tab, "3"))
                until(tab, lambda: shown(tab) or is_done(tab), "an image, or the end")
            until(tab, lambda: len(votes(store)) == 20, "every answer")
            assert len(set(pressed)) == 20 and all(said.total() == 1 for said in votes(store).values())
            assert len(rows(store)) == 22, "twenty, one that was taken back, and the taking back"
    finally:
        stop(server)


def test_answers_of_a_closed_page_are_sent_by_the_next(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=8, picks=8)
    server = start(store.folder, free_port(), token="the-first-token-of-two")
    try:
        with labeling(server) as other:
            context = other.context.browser.new_context()
            tab = context.new_page()
            tab.goto(server.url)
            name_oneself(tab, "Ann")
            press(tab, "1")
            until(tab, lambda: len(rows(store)) == 1, "the first answer")
            stop(server, SIGKILL)
            press(tab, "2")
            tab.wait_for_timeout(100)
            server = start(store.folder, server.client.port, token="another-token-of-two")
            until(
                tab, lambda: "contains the token" in tab.inner_text("#trouble"), "the old cookie is refused, in words"
            )
            assert len(rows(store)) == 1
            tab.close()
            tab = context.new_page()
            tab.goto(server.url)
            until(tab, lambda: len(rows(store)) == 2, "what the closed page could not send")
            assert [row["class"] for row in rows(store)] == [0, 1]
    finally:
        stop(server)


def test_an_image_that_is_gone_can_be_answered(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    sorted((tmp_path / "pool").iterdir())[0].unlink()
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: "The image file is missing" in tab.inner_text("#stage"), "a word about it")
        assert "missing" in tab.text_content("#live")
        tab.keyboard.press("u")
        until(tab, lambda: [row["answer"] for row in rows(store)] == ["unsure"], "the answer")


def test_answers_stay_until_the_server_of_this_workspace_confirms_them(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "here", pool=len(REPLIES), picks=len(REPLIES))
    other = make_workspace(tmp_path / "elsewhere", pool=2, picks=2)
    server = start(store.folder, free_port())
    port = server.client.port
    try:
        with labeling(server) as tab:
            until(tab, lambda: len(loaded(tab)) >= 6, "images ahead")
            pressed = []
            for kind in list(REPLIES)[:-1]:
                stop(server) if not pressed else None
                with foreign(port, kind) as posted:
                    pressed.append(press(tab, "1"))
                    until(tab, lambda posted=posted: hurry(tab) and posted.count("/api/answer") > 1, "sent again")
                    until(tab, lambda: "not confirmed" in tab.inner_text("#trouble"), f"a word about {kind}")
                assert [entry["body"]["image"] for entry in kept_in_browser(tab)] == pressed, kind
            with foreign(port, list(REPLIES)[-1]) as posted:
                tab.keyboard.press("Backspace")
                until(tab, lambda: shown(tab) == pressed[-1], "undo without a server")
                until(tab, lambda: hurry(tab) and len(posted) > 1, "sent again")
            server = start(other.folder, port)
            until(tab, lambda: hurry(tab) and "another workspace" in tab.inner_text("#trouble"), "a word about it")
            assert len(kept_in_browser(tab)) == len(pressed) + 1 and rows(other) == []
            stop(server)
            server = start(store.folder, port)
            until(tab, lambda: hurry(tab) and kept_in_browser(tab) == [], "all is sent")
            assert [row["image"] for row in rows(store)] == [*pressed, pressed[-1]], "each once, in order"
            assert set(votes(store)) == set(pressed[:-1]), "the last one was taken back"
            until(tab, lambda: not tab.locator("#trouble").is_visible(), "all is well again")
    finally:
        stop(server)


def test_a_page_that_is_opened_at_a_foreign_server_waits_for_its_own(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    with running(store.folder) as server, open_page(server.url) as (tab, _, complaints):
        tab.wait_for_selector("#name-ask[open]")
        tab.route("**/api/work*", lambda route: route.fulfill(status=200, content_type="text/html", body="<p>Log in"))
        tab.reload()
        until(tab, lambda: "not confirmed" in tab.inner_text("#trouble"), "a word about it")
        tab.unroute("**/api/work*")
        name_oneself(tab, "Ann")
        press(tab, "1")
        until(tab, lambda: len(rows(store)) == 1, "the answer")
        assert complaints == []


def test_a_refused_answer_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, picks=6)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        with store.writing() as connection:
            connection.execute("DELETE FROM pick WHERE image = ?", (shown(tab),))
        tab.keyboard.press("1")
        until(tab, lambda: "was not saved. No round has picked image" in tab.inner_text("#trouble"), "a word")
        assert rows(store) == [] and kept_in_browser(tab) == [], "this workspace's server said no: it is not sent again"


def test_an_answer_for_another_workspace_is_kept_and_said_so(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, picks=6)
    server = start(store.folder)
    try:
        with labeling(server) as tab:
            until(tab, lambda: shown(tab), "an image")
            stop(server)
            store.set(identity="another")  # as if another workspace were served here now
            server = start(store.folder, server.client.port)
            tab.keyboard.press("1")
            until(tab, lambda: "belongs to another workspace" in tab.inner_text("#trouble"), "a word")
            assert rows(store) == [] and len(kept_in_browser(tab)) == 1
    finally:
        stop(server)


def test_a_personal_link_needs_no_name_and_leaves_other_peoples_answers(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=8, picks=8)
    server = start(store.folder, free_port(), people=["ann", "bob"])
    try:
        with open_page(server.links["ann"]) as (tab, _, complaints):
            until(tab, lambda: len(loaded(tab)) >= 6, "images ahead")
            assert tab.inner_text("#who") == "ann" and tab.locator("#who").is_disabled()
            press(tab, "1")
            until(tab, lambda: len(rows(store)) == 1, "the first answer")
            stop(server)
            press(tab, "2")
            assert len(kept_in_browser(tab)) == 1
            tab.goto("about:blank")
            server = start(store.folder, server.client.port, people=["ann", "bob"])
            tab.goto(server.links["bob"])  # in the same browser: the session is bob's from now on
            press(tab, "3")
            until(tab, lambda: [row["who"] for row in rows(store)] == ["ann", "bob"], "an answer of bob's")
            assert [entry["body"]["who"] for entry in kept_in_browser(tab)] == ["ann"], "hers waits for her link"
            tab.goto(server.links["ann"])
            until(tab, lambda: kept_in_browser(tab) == [], "sent with her link")
            assert [(row["who"], row["class"]) for row in rows(store)] == [("ann", 0), ("bob", 2), ("ann", 1)]
            assert [text for text in complaints if not any(word in text for word in EXPECTED)] == []
    finally:
        stop(server)


def test_disagreements_can_be_answered_again(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, picks=4)
    store.set(people_per_image=2)
    with store.reading() as connection:
        image = connection.execute("SELECT image FROM pick ORDER BY rank").fetchone()["image"]
    answer(store, image, "Ann", "class", 0, "ticket-ann")
    answer(store, image, EVIL[0], "class", 1, "ticket-bo")
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: tab.inner_text("#disagreements-count") == "1", "a count")
        tab.click("#to-disagreements")
        tab.wait_for_selector(".card")
        assert tab.locator(".card b").all_inner_texts() == ["cat × 1", "dog × 1"]
        assert tab.locator(".card span").all_inner_texts() == ["Ann", EVIL[0]]
        tab.focus(".card")
        tab.keyboard.press("Enter")
        until(tab, lambda: shown(tab) == image, "the image")
        tab.keyboard.press("2")
        until(tab, lambda: "There are no disagreements" in tab.inner_text("#disagreements-text"), "settled")
        assert votes(store)[image] == {1: 2}
        tab.click("#to-label")
        until(tab, lambda: shown(tab) not in (None, image), "back to work")


def test_names_are_never_markup(tmp_path: Path) -> None:
    store = make_many(tmp_path, count=12)
    with running(store.folder) as server, labeling(server, EVIL[0]) as tab:
        until(tab, lambda: shown(tab), "an image")
        assert tab.inner_text("#who") == EVIL[0]
        for name in EVIL:
            assert tab.locator("#classes button", has_text=name).count() == 1
        tab.keyboard.press("4")
        tab.keyboard.press("/")
        tab.keyboard.type("<img")
        until(tab, lambda: tab.locator("#found li").all_inner_texts() == [EVIL[0]], "found")
        tab.keyboard.press("Enter")
        until(tab, lambda: len(rows(store)) == 2, "two answers")
        assert tab.locator("img[src=x], #work script, #work svg").count() == 0
        assert json.loads(json.dumps([row["who"] for row in rows(store)])) == [EVIL[0]] * 2


def test_it_fits(tmp_path: Path) -> None:
    store = make_many(tmp_path, count=20)
    with running(store.folder) as server, labeling(server) as tab:
        until(tab, lambda: shown(tab), "an image")
        for width, height in ((360, 640), (1280, 720)):
            tab.set_viewport_size({"width": width, "height": height})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            for command in ("none", "unsure", "skip", "undo"):
                box = tab.locator(f"#work [data-command={command}]").bounding_box()
                assert box["y"] + box["height"] <= height, "always within reach"
