// The labeling page: turns keys and buttons into answers. It shows the next image immediately; the outbox sends answers.

import { Search, hasFixedKeys } from "/static/classes.js";
import { listenToKeys } from "/static/keys.js";
import { Outbox, Refusal, ask, isFinal, remember } from "/static/outbox.js";
import { drawDisagreements } from "/static/disagreements.js";
import { Tasks } from "/static/tasks.js";
import { $, describe, drawClasses, drawProgress, drawTask, nameAnswer, number } from "/static/view.js";
import { Stage } from "/static/zoom.js";

const POLL_MS = 8000;
const RETRY_MS = 1500;
const READ_MS = 15000;
const LARGEST = 2560;
const state = { classes: [], keys: new Map(), recent: [], work: null, tasks: null, outbox: null, shown: null, isBad: false, clock: 0, since: null, readUntil: 0 };
const stage = new Stage($("stage"), $("image"), $("zoom-now"), sharpen);
const search = new Search($("search"), $("found"), $("found-count"), (number) => answer("class", number));

start();

async function start() {
  try {
    state.work = await ask(`/api/work?who=${encodeURIComponent(remember("who") || "")}`);
  } catch (error) {
    complain(error);
    setTimeout(start, RETRY_MS);
    return;
  }
  complain(null);
  state.classes = search.classes = state.work.classes;
  document.body.classList.toggle("many", !hasFixedKeys(state.classes));
  if (!hasFixedKeys(state.classes)) $("help-classes").textContent = "1 to 9 answer with the most likely classes of this image, as shown next to the keys";
  const proven = state.work.is_proven ? state.work.person : null;
  state.outbox = new Outbox(state.work.workspace, onOutbox, proven);
  state.outbox.run();
  $("people").replaceChildren(...Object.keys(state.work.progress.by_person).map((name) => new Option(name)));
  drawProgress(state.work.progress);
  $("who").disabled = proven !== null;
  if (proven ?? remember("who")) begin(proven ?? remember("who"));
  else askName();
}

function askName() {
  $("name").value = remember("who") || "";
  $("name-ask").showModal();
}

function begin(who) {
  state.tasks?.close();
  $("who").textContent = who;
  $("who").setAttribute("aria-label", state.work.is_proven ? `You are labeling as ${who}` : `${who}: change the name`);
  $("who").title = state.work.is_proven ? "Your name is part of your link" : "Change the name";
  const size = Math.ceil(Math.max($("stage").offsetWidth, $("stage").offsetHeight) * Math.min(devicePixelRatio, 2));
  const given = { workspace: state.work.workspace, who, outbox: state.outbox, size, changed: show, failed: complain };
  state.tasks = new Tasks(given);
  state.tasks.fill();
  lookAhead();
  if (location.hash === "#disagreements") changeView();
}

// Updates the progress; if no task is left, also checks for new ones.
async function lookAhead() {
  const tasks = state.tasks;
  if (!tasks.current) await tasks.fill();
  await refresh();
  setTimeout(() => tasks === state.tasks && lookAhead(), POLL_MS);
}

async function refresh() {
  try {
    state.work.progress = await ask(`/api/progress?who=${encodeURIComponent(state.tasks.who)}`);
    drawProgress(state.work.progress);
    if (!state.tasks.current) show();
  } catch {
    // the next poll tries again
  }
}

function show(said = "") {
  const task = state.tasks.current;
  const showsDisagreements = location.hash === "#disagreements";
  $("work").hidden = showsDisagreements || !task;
  $("done").hidden = showsDisagreements || Boolean(task);
  $("disagreements").hidden = !showsDisagreements;
  if (!task) {
    showDone(said);
    return;
  }
  if (task !== state.shown) {
    state.shown = task;
    task.isSharp = false;
    Object.assign(state, { isBad: false, clock: 0, since: document.hidden ? null : performance.now() });
    showImage(task);
    drawTask(task, state.classes, state.tasks);
    state.keys = drawClasses(state.classes, task, state.recent);
    stage.set(1);
  }
  if (!showsDisagreements) announce(`${said} ${describe(task, state.classes)}`);
}

function showDone(said) {
  const { asked, open, own } = state.work.progress;
  const others = open ? `${number(open)} image${open === 1 ? " is" : "s are"} still being labeled by other people or need another answer. This page updates automatically.` : `All ${number(asked)} images are answered, ${number(own)} by you. Train on the new labels, then select the next images.`;
  const onTheWay = state.tasks.hasFailed ? "The server does not respond; this page tries again automatically." : "Loading the next images.";
  const [title, text] = state.tasks.isWaiting ? ["One moment", onTheWay] : ["Nothing left to label", others];
  state.shown = null;
  if ($("done-text").textContent !== text || said) announce(`${said} ${title}. ${text}`);
  $("done-title").textContent = title;
  $("done-text").textContent = text;
}

function showImage(task, address = state.tasks.address(task.image)) {
  const image = $("image");
  $("image-trouble").hidden = true;
  image.hidden = false;
  image.onerror = async () => {
    const sentence = await ask(address).then(() => null, (error) => error);
    if (state.shown !== task) return;
    state.isBad = sentence instanceof Refusal && sentence.isOurs && [404, 409, 422].includes(sentence.status);
    if (!state.isBad) setTimeout(() => state.shown === task && showImage(task, address), RETRY_MS);
    image.hidden = true;
    $("image-trouble").hidden = false;
    $("image-trouble").textContent = state.isBad ? sentence.message : "The image cannot be loaded; trying again.";
    announce($("image-trouble").textContent);
  };
  image.src = address;
}

// An image must be loaded before it can be labeled, unless it can never be loaded.
const isSeen = () => state.isBad || ($("image").complete && $("image").naturalWidth > 0);

// Replaces the image with a larger version once it is loaded.
function sharpen() {
  const task = state.shown;
  if (!task || state.isBad || !isSeen() || task.isSharp || Math.max($("image").naturalWidth, $("image").naturalHeight) < 640) return;
  task.isSharp = true;
  const picture = new Image();
  picture.onload = () => state.shown === task && ($("image").src = picture.src);
  picture.src = state.tasks.address(task.image, LARGEST);
}

function answer(kind, number = null) {
  const { tasks } = state;
  const task = tasks?.current;
  if (!task || $("work").hidden) return;
  if (!isSeen() && kind !== "skip") {
    announce("The image is still loading.");
    return;
  }
  const name = nameAnswer(kind === "class" ? number : kind, state.classes);
  if (kind === "class") state.recent = [number, ...state.recent.filter((other) => other !== number)].slice(0, 9);
  $("last").textContent = name;
  const seconds = Math.round(10 * (state.clock + (state.since === null ? 0 : performance.now() - state.since)) / 1000) / 10;
  const sent = tasks.answer(kind, number, seconds, `${name}.`);
  if (task.isAgain) location.hash = "#disagreements";
  sent.then(() => onSent(task), (error) => complain(error, `The answer for image ${task.image} was not saved. `));
}

function onSent(task) {
  if (task.isAgain && location.hash === "#disagreements") openDisagreements();
  clearTimeout(state.soon);
  state.soon = setTimeout(refresh, 400);
}

async function undo() {
  if (!state.tasks) return;
  location.hash = "";
  $("last").textContent = "";
  try {
    const said = await state.tasks.undo();
    if (said) announce(said);
    refresh();
  } catch (error) {
    complain(error);
  }
}

function changeView() {
  const showsDisagreements = location.hash === "#disagreements";
  const [here, there] = showsDisagreements ? ["to-disagreements", "to-label"] : ["to-label", "to-disagreements"];
  $(here).setAttribute("aria-current", "page");
  $(there).removeAttribute("aria-current");
  if (state.tasks) show();
  if (showsDisagreements) openDisagreements();
}

async function openDisagreements() {
  try {
    await drawDisagreements(state.classes, (task) => {
      location.hash = "";
      state.tasks.show({ ...task, isOwn: true, isAgain: true });
      $("work").focus();
    });
  } catch (error) {
    complain(error);
  }
}

function onOutbox({ waiting, error }) {
  const kept = waiting ? ` ${waiting} answer${waiting === 1 ? " is" : "s are"} kept in this browser and will be sent as soon as possible.` : "";
  complain(error, "", kept);
  if (!waiting && state.tasks && !state.tasks.current) state.tasks.fill();
}

function complain(error, before = "", after = "") {
  const place = $("trouble");
  if (!error) {
    if (performance.now() > state.readUntil) place.hidden = true;
    return;
  }
  if (isFinal(error)) state.readUntil = performance.now() + READ_MS; // the message about a refused answer must not go unread
  const isLost = !(error instanceof Refusal);
  const text = `${before}${isLost ? "The server cannot be reached." : error.message}${after}`;
  if (place.textContent !== text || place.hidden) place.textContent = text;
  place.hidden = false;
}

function announce(text) {
  $("live").textContent = text.trim();
}

listenToKeys({ stage, keys: () => state.keys, answer, undo });
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-command], #classes button");
  if (!button) return;
  if (button.dataset.command === "undo") undo();
  else if (button.dataset.command) answer(button.dataset.command);
  else answer("class", Number(button.dataset.class));
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden && state.since !== null) state.clock += performance.now() - state.since;
  state.since = document.hidden ? null : performance.now();
  if (!document.hidden) state.tasks?.fill(true); // leases may have expired in the meantime
});
addEventListener("hashchange", changeView);
$("larger").addEventListener("click", () => stage.step(1));
$("smaller").addEventListener("click", () => stage.step(-1));
$("who").addEventListener("click", askName);
$("help-open").addEventListener("click", () => $("help").showModal());
$("keys-on").checked = remember("keys") !== "off";
$("keys-on").addEventListener("change", () => remember("keys", $("keys-on").checked ? "on" : "off"));
$("name-ask").addEventListener("cancel", (event) => remember("who") || event.preventDefault());
$("name-form").addEventListener("submit", (event) => {
  const who = $("name").value.normalize("NFC").trim().replace(/\s+/g, " ");
  if (!who) {
    event.preventDefault();
    return;
  }
  remember("who", who);
  begin(who);
});
