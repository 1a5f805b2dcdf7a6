// Keyboard shortcuts of the labeling page.

import { $ } from "/static/view.js";

const COMMANDS = { n: "none", u: "unsure", s: "skip" };
const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const PAN = 80;

// `keys` returns a map from keys to class numbers.
export function listenToKeys({ stage, keys, answer, undo }) {
  const moves = { z: () => stage.toggle(), "+": () => stage.step(1), "=": () => stage.step(1), "-": () => stage.step(-1), Escape: () => stage.set(1) };
  const others = { "?": () => $("help").showModal(), "/": () => $("search").focus(), Backspace: undo };

  // Handles a key and returns whether it has a meaning here. A key that is held down answers once.
  function press(key, event) {
    const digit = /^(?:Digit|Numpad)([1-9])$/.exec(event.code)?.[1];
    const chosen = keys().get(key) ?? (event.shiftKey ? undefined : keys().get(digit));
    if (moves[key]) moves[key]();
    else if (event.repeat) return others[key] || COMMANDS[key] || chosen !== undefined;
    else if (others[key]) others[key]();
    else if (COMMANDS[key]) answer(COMMANDS[key]);
    else if (chosen !== undefined) answer("class", chosen);
    else return pan(key);
    return true;
  }

  function pan(key) {
    const way = WAYS[key];
    if (!way || stage.zoom === 1) return false;
    stage.stage.scrollBy(PAN * way[0], PAN * way[1]);
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || event.defaultPrevented) return;
    const isTyping = event.target.matches?.("input:not([type=checkbox]), textarea, select");
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (isTyping || event.altKey || !$("keys-on").checked) return;
    if (event.ctrlKey || event.metaKey) {
      if (key !== "z" || event.shiftKey || event.repeat) return;
      event.preventDefault();
      undo();
      return;
    }
    if (press(key, event)) event.preventDefault();
  });
}
