// The dashboard: progress, recall and class shares. Every part is drawn independently of the others.

import { asTable, drawBars, drawCurve, isNumber, legend, make, percent, table } from "/static/charts.js";
import { Refusal, ask } from "/static/outbox.js";
import { drawRecall } from "/static/recall.js";

const MOST_BARS = 15;
const $ = (id) => document.getElementById(id);
const number = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");
const list = (value) => (Array.isArray(value) ? value : []);
const mean = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : null);
const balanced = (training) => mean(list(training?.recall).filter(isNumber));
let drawn = null;

start();

async function start() {
  try {
    drawn = await ask("/api/summary");
    $("trouble").hidden = true;
    drawAll(drawn);
  } catch (error) {
    $("trouble").textContent = error instanceof Refusal ? error.message : "The server cannot be reached; it is asked again.";
    $("trouble").hidden = false;
    setTimeout(start, 3000);
  }
  $("content").setAttribute("aria-busy", "false");
}

function drawAll(summary) {
  const classes = list(summary.classes);
  const trainings = list(summary.trainings);
  for (const part of [drawTiles, drawOutlook, drawLearning, drawClasses, drawBought, drawMix, drawPeople]) {
    try {
      part(summary, classes, trainings);
    } catch (error) {
      console.error(part.name, error); // the other parts are still drawn
    }
  }
}

function nothing(place, sentence) {
  $(place).replaceChildren(make("p", sentence, { class: "empty" }));
}

function drawTiles({ progress, unlabeled }, classes, trainings) {
  const [first, last] = [trainings[0], trainings.at(-1)];
  const gain = trainings.length > 1 && isNumber(balanced(first)) ? 100 * (balanced(last) - balanced(first)) : null;
  const tiles = [
    ["Balanced recall", percent(balanced(last)), isNumber(gain) ? `${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points since the first training` : ""],
    ["Accuracy", percent(last?.accuracy), "on the validation set"],
    ["Labels bought", number(last?.labels_spent), `${trainings.length} training${trainings.length === 1 ? "" : "s"}`],
    ["Images to answer", number(progress?.open), isNumber(progress?.asked) ? `of ${number(progress.asked)} asked about` : ""],
    ["Left in the pool", number(unlabeled), "unlabeled"],
  ];
  $("tiles").replaceChildren(
    ...tiles.map(([name, value, note]) => {
      const tile = make("div");
      tile.append(make("dt", name), make("dd", value, { class: "value" }), make("dd", note, { class: "dim" }));
      return tile;
    }),
  );
  $("split-count").hidden = !progress?.split;
  $("split-count").textContent = number(progress?.split);
}

function drawOutlook({ outlook }) {
  $("outlook").hidden = !outlook;
  $("outlook").textContent = outlook || "";
}

function drawLearning(_, classes, trainings) {
  if (!trainings.length) return nothing("curve", "No training yet. Answer the open images, then train.");
  const spent = trainings.map((training) => training.labels_spent || 0);
  const recall = trainings.map(balanced);
  const accuracy = trainings.map((training) => training.accuracy);
  const title = `Balanced recall on the validation set goes from ${percent(recall[0])} to ${percent(recall.at(-1))}, accuracy from ${percent(accuracy[0])} to ${percent(accuracy.at(-1))}, over ${number(spent.at(-1))} labels.`;
  const lines = [
    { name: "Accuracy", kind: "second", values: accuracy },
    { name: "Balanced recall", kind: "first", values: recall },
  ];
  const rows = trainings.map((training, at) => [number(spent[at]), number(training.round), percent(recall[at], 1), percent(accuracy[at], 1), String(training.made_at || "").slice(0, 16).replace("T", " ")]);
  $("curve").replaceChildren(
    legend([["first", "Balanced recall"], ["second", "Accuracy"]]),
    drawCurve(spent, lines, title, room("curve")),
    asTable("Learning curve", ["Labels bought", "Round", "Balanced recall", "Accuracy", "Made at (UTC)"], rows),
  );
}

function drawClasses({ counts }, classes, trainings) {
  if (!trainings.length) return nothing("recall", "No training yet.");
  const [first, last] = [trainings[0], trainings.at(-1)];
  const rows = classes.map((name, at) => ({ name, count: list(counts)[at], first: list(first.recall)[at], last: list(last.recall)[at] }));
  drawRecall($("recall"), $("filter"), rows);
}

function drawBought({ rounds }, classes) {
  const last = list(rounds).filter((round) => list(round.bought).some((count) => count > 0)).at(-1);
  if (!last) return nothing("bought", "No round has labels yet.");
  const rows = classes.map((name, at) => [name, last.bought[at] || 0]).sort((a, b) => b[1] - a[1]);
  const shown = rows.slice(0, MOST_BARS);
  const more = rows.length - shown.length;
  const title = `Labels of round ${last.number} by class: ${shown.slice(0, 5).map(([name, count]) => `${name} ${count}`).join(", ")}${rows.length > 5 ? ", …" : ""}`;
  $("bought").replaceChildren(
    make("p", `Round ${last.number}: ${number(last.labeled)} of ${number(last.picks)} images labeled.${more > 0 ? ` The ${MOST_BARS} classes with most labels; ${number(more)} more are in the table.` : ""}`, { class: "dim" }),
    drawBars(shown.map(([name, count]) => [name, [count]]), ["first"], title, number, room("bought")),
    asTable(`Labels of round ${last.number}`, ["Class", "Labels"], rows.map(([name, count]) => [name, number(count)])),
  );
}

function drawMix({ mix }, classes) {
  const trusted = list(mix?.validation);
  const pool = list(mix?.pool);
  if (!trusted.some(isNumber)) return nothing("mix", "The shares are not known yet.");
  const bias = (row) => (isNumber(row.pool) && row.trusted ? Math.abs(Math.log((row.pool + 1e-6) / (row.trusted + 1e-6))) : 0);
  const rows = classes.map((name, at) => ({ name, trusted: trusted[at] ?? null, pool: pool[at] ?? null })).sort((a, b) => bias(b) - bias(a));
  const shown = rows.slice(0, MOST_BARS);
  const worst = rows[0];
  const isEstimated = pool.some(isNumber);
  $("mix-text").textContent = `Share of each class in the validation set, and what the model estimates for the pool.${isEstimated ? sentence(worst) : " The pool’s shares are estimated after the first training."}${rows.length > shown.length ? ` The ${MOST_BARS} classes that differ most; all are in the table.` : ""}`;
  const series = isEstimated ? ["first", "second"] : ["first"];
  const bars = shown.map((row) => [row.name, isEstimated ? [row.trusted, row.pool] : [row.trusted]]);
  const digits = (value) => percent(value, value === 0 || value >= 0.0995 ? 0 : value < 0.00995 ? 2 : 1);
  $("mix").replaceChildren(
    legend([["first", "Validation"], ...(isEstimated ? [["second", "Pool, estimated"]] : [])]),
    drawBars(bars, series, `Class shares in validation and pool.${isEstimated ? sentence(worst) : ""}`, digits, room("mix")),
    asTable("Class shares", ["Class", "Validation", "Pool, estimated", "Pool to validation"], rows.map((row) => [row.name, digits(row.trusted), digits(row.pool), isNumber(row.pool) && row.trusted ? `× ${(row.pool / row.trusted).toPrecision(2)}` : "–"])),
  );
}

function sentence({ name, trusted, pool }) {
  if (!isNumber(pool) || !trusted) return "";
  const [times, word] = pool < trusted ? [trusted / Math.max(pool, 1e-6), "rarer"] : [pool / trusted, "more common"];
  return times < 1.2 ? " They hardly differ." : ` ${name} differs most: ${times > 1000 ? "over 1,000" : Number(times.toPrecision(2)).toString()} times ${word} in the pool.`;
}

function drawPeople({ progress }) {
  const people = Object.entries(progress?.by_person || {}).sort((a, b) => b[1] - a[1]);
  if (!people.length) return nothing("people", "Nobody has answered yet.");
  const split = make("p", progress.split ? `They disagree on ${number(progress.split)} image${progress.split === 1 ? "" : "s"}. ` : "They agree on every image.");
  if (progress.split) split.append(make("a", "Look at them", { href: "/#split" }));
  $("people").replaceChildren(table("Answers by person", ["Person", "Answers"], people.map(([who, count]) => [who, number(count)])), split);
}

const room = (id) => Math.max(280, Math.min(960, $(id).clientWidth || 600));

let before = innerWidth;
addEventListener("resize", () => {
  if (drawn && innerWidth !== before) drawAll(drawn);
  before = innerWidth;
});
