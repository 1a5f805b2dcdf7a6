// The screen: shows what is known about an image, using text nodes only, so that names are never parsed as markup.

import { assignKeys, hasFixedKeys } from "/static/classes.js";

export const $ = (id) => document.getElementById(id);
const MOST_BARS = 5;

export function make(kind, text, given = {}) {
  const element = document.createElement(kind);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  return element;
}

export const percent = (share) => `${Math.round(100 * share)} %`;
export const number = (value) => value.toLocaleString("en");

export function nameAnswer(what, classes) {
  if (typeof what === "number") return classes[what] ?? `class ${what}`;
  return { none: "none of these", unsure: "unsure", skip: "skipped" }[what] || what;
}

export function drawTask(task, classes, tasks) {
  $("image").alt = `Image ${task.image}, to be labeled`;
  $("place").textContent = `Image ${task.image} · round ${task.round}, rank ${task.rank + 1}`;
  drawWhy(task, classes, tasks);
  drawProbabilities(task, classes);
}

function drawWhy(task, classes, tasks) {
  const center = $("center");
  center.hidden = task.center === null;
  if (task.center === null) {
    $("why-text").textContent = "This image was not chosen because of a validation failure.";
    return;
  }
  center.src = tasks.address(task.center, 320);
  center.alt = `Validation image ${task.center}: ${classes[task.center_class] ?? "unknown class"}`;
  const text = ["Similar to this failure: ", make("strong", classes[task.center_class] ?? "?")];
  if (task.center_guess !== null && task.center_guess !== undefined) text.push(", predicted as ", make("strong", classes[task.center_guess] ?? "?"));
  else text.push(", which the model got wrong");
  if (Math.abs(task.similarity) <= 1) text.push(`; similarity ${percent(task.similarity)}`); // older rounds have no percentage
  $("why-text").replaceChildren(...text);
}

function drawProbabilities(task, classes) {
  const guess = task.guess === null ? null : classes[task.guess];
  const title = [document.createTextNode("The model’s guess")];
  if (guess !== null) title.push(document.createTextNode(": "), make("strong", guess));
  $("guess-title").replaceChildren(...title);
  const bars = task.probabilities.slice(0, MOST_BARS).map(([number, probability]) => {
    const bar = make("span", undefined, { class: "fill" });
    bar.style.width = `${Math.max(1, Math.min(100, 100 * probability))}%`;
    const track = make("span", undefined, { class: "track", "aria-hidden": "true" });
    track.append(bar);
    const row = make("li");
    row.append(make("span", classes[number] ?? `class ${number}`, { class: "name" }), track, make("span", percent(probability), { class: "share" }));
    return row;
  });
  $("probabilities").replaceChildren(...bars);
  $("guess-part").hidden = guess === null && !bars.length;
}

// Buttons for the classes that have a key. Elements are reused to keep the focus.
export function drawClasses(classes, task, recent) {
  const keys = assignKeys(classes, task, recent);
  const place = $("classes");
  while (place.children.length < keys.length) {
    const button = make("button", undefined, { type: "button" });
    button.append(make("kbd"), make("span"));
    place.append(button);
  }
  [...place.children].forEach((button, at) => {
    button.hidden = at >= keys.length;
    if (button.hidden) return;
    const [key, number] = keys[at];
    button.dataset.class = number;
    button.title = classes[number];
    button.setAttribute("aria-keyshortcuts", key);
    button.firstChild.textContent = key.toUpperCase();
    button.lastChild.textContent = classes[number];
    button.classList.toggle("guessed", number === task?.guess);
  });
  $("classes-title").textContent = hasFixedKeys(classes) ? "What is it?" : `What is it? The most likely of ${number(classes.length)} classes`;
  return new Map(keys);
}

export function drawProgress(progress) {
  const done = progress.asked - progress.open;
  $("bar").value = progress.asked ? done / progress.asked : 0;
  $("counts").textContent = `${number(done)} of ${number(progress.asked)} done · ${number(progress.own)} by you`;
  $("disagreements-count").hidden = !progress.disagreements;
  $("disagreements-count").textContent = number(progress.disagreements);
}

// Returns the description of an image for screen readers.
export function describe(task, classes) {
  const parts = [`Image ${task.image}.`];
  if (task.guess !== null) {
    const probability = task.probabilities.find(([number]) => number === task.guess)?.[1];
    parts.push(`The model says ${classes[task.guess]}${probability === undefined ? "" : `, ${percent(probability)}`}.`);
  }
  if (task.center_class !== null) parts.push(`Similar to a failure of class ${classes[task.center_class]}.`);
  return parts.join(" ");
}
