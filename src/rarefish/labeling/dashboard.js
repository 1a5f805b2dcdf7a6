// The dashboard: progress, recall and class shares. Every part is drawn independently of the others.

import { asTable, drawBars, drawCurve, isNumber, legend, make, percent, table } from "/static/charts.js";
import { Refusal, ask } from "/static/outbox.js";
import { drawRecall } from "/static/recall.js";

const MOST_BARS = 15;
const $ = (id) => document.getElementById(id);
const number = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");
const list = (value) => (Array.isArray(value) ? value : []);
const mean = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : null);
const isOutOfFold = (training) => training?.scored === "out of fold";
const where = (training) => `on the validation set${isOutOfFold(training) ? ", out of fold" : ""}`;
const balanced = (training) => mean(list(training?.recall).filter(isNumber));
let drawn = null;

start();

async function start() {
  try {
    drawn = await ask("/api/summary");
    $("trouble").hidden = true;
    drawAll(drawn);
  } catch (error) {
    $("trouble").textContent = error instanceof Refusal ? error.message : "The server cannot be reached; trying again.";
    $("trouble").hidden = false;
    setTimeout(start, 3000);
  }
  $("content").setAttribute("aria-busy", "false");
}

function drawAll(summary) {
  const classes = list(summary.classes);
  const trainings = list(summary.trainings);
  for (const part of [drawTiles, drawOutlook, drawLearning, drawClasses, drawRound, drawMix, drawPeople]) {
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
    ["Mean recall", percent(balanced(last)), isNumber(gain) ? `${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points since the first training run` : ""],
    ["Accuracy", percent(last?.accuracy), where(last)],
    ["Labels", number(last?.labels_spent), `${last?.trusted ? `and ${number(last.trusted)} validation images; ` : ""}${trainings.length} training run${trainings.length === 1 ? "" : "s"}`],
    ["Images to label", number(progress?.open), isNumber(progress?.asked) ? `of ${number(progress.asked)} chosen` : ""],
    ["Left in the pool", number(unlabeled), "unlabeled"],
  ];
  $("tiles").replaceChildren(
    ...tiles.map(([name, value, note]) => {
      const tile = make("div");
      tile.append(make("dt", name), make("dd", value, { class: "value" }), make("dd", note, { class: "dim" }));
      return tile;
    }),
  );
  $("disagreements-count").hidden = !progress?.disagreements;
  $("disagreements-count").textContent = number(progress?.disagreements);
}

function drawOutlook({ outlook }) {
  $("outlook").hidden = !outlook;
  $("outlook").textContent = outlook || "";
}

function drawLearning(_, classes, trainings) {
  if (!trainings.length) return nothing("curve", "No training run yet. Answer the open images, then train.");
  const spent = trainings.map((training) => training.labels_spent || 0);
  const recall = trainings.map(balanced);
  const accuracy = trainings.map((training) => training.accuracy);
  $("fold-text").hidden = !trainings.some(isOutOfFold);
  const title = `Mean recall ${where(trainings.at(-1))} goes from ${percent(recall[0])} to ${percent(recall.at(-1))}, accuracy from ${percent(accuracy[0])} to ${percent(accuracy.at(-1))}, over ${number(spent.at(-1))} labels.`;
  const lines = [
    { name: "Accuracy", kind: "second", values: accuracy },
    { name: "Mean recall", kind: "first", values: recall },
  ];
  const rows = trainings.map((training, at) => [number(spent[at]), number(training.round), percent(recall[at], 1), percent(accuracy[at], 1), String(training.made_at || "").slice(0, 16).replace("T", " ")]);
  $("curve").replaceChildren(
    legend([["first", "Mean recall"], ["second", "Accuracy"]]),
    drawCurve(spent, lines, title, room("curve")),
    asTable("Learning curve", ["Labels", "Round", "Mean recall", "Accuracy", "Time (UTC)"], rows),
  );
}

function drawClasses({ counts }, classes, trainings) {
  if (!trainings.length) return nothing("recall", "No training run yet.");
  const [first, last] = [trainings[0], trainings.at(-1)];
  const rows = classes.map((name, at) => ({ name, count: list(counts)[at], first: list(first.recall)[at], last: list(last.recall)[at] }));
  drawRecall($("recall"), $("filter"), rows);
}

function drawRound({ rounds }, classes) {
  const last = list(rounds).filter((round) => list(round.labels_per_class).some((count) => count > 0)).at(-1);
  if (!last) return nothing("round", "No round has labels yet.");
  const rows = classes.map((name, at) => [name, last.labels_per_class[at] || 0]).sort((a, b) => b[1] - a[1]);
  const shown = rows.slice(0, MOST_BARS);
  const more = rows.length - shown.length;
  const title = `Labels in round ${last.number} by class: ${shown.slice(0, 5).map(([name, count]) => `${name} ${count}`).join(", ")}${rows.length > 5 ? ", …" : ""}`;
  $("round").replaceChildren(
    make("p", `Round ${last.number}: ${number(last.labeled)} of ${number(last.picks)} images labeled.${more > 0 ? ` The chart shows the ${MOST_BARS} classes with the most labels; the table also contains the other ${number(more)}.` : ""}`, { class: "dim" }),
    drawBars(shown.map(([name, count]) => [name, [count]]), ["first"], title, number, room("round")),
    asTable(`Labels in round ${last.number}`, ["Class", "Labels"], rows.map(([name, count]) => [name, number(count)])),
  );
}

function drawMix({ mix }, classes) {
  const trusted = list(mix?.validation);
  const pool = list(mix?.pool), low = list(mix?.pool_low), high = list(mix?.pool_high);
  if (!trusted.some(isNumber)) return nothing("mix", "The class proportions are not known yet.");
  const bias = (row) => (isNumber(row.pool) && row.trusted ? Math.abs(Math.log((row.pool + 1e-6) / (row.trusted + 1e-6))) : 0);
  const rows = classes.map((name, at) => ({ name, trusted: trusted[at] ?? null, pool: pool[at] ?? null, low: low[at] ?? null, high: high[at] ?? null })).sort((a, b) => bias(b) - bias(a));
  const shown = rows.slice(0, MOST_BARS);
  const worst = rows[0];
  const isEstimated = pool.some(isNumber);
  const rest = rows.length > shown.length ? ` The chart shows the ${isEstimated ? `${MOST_BARS} classes that differ most` : `first ${MOST_BARS} classes`}; the table contains all.` : "";
  $("mix-text").textContent = isEstimated
    ? `Proportion of each class in the validation set and, as estimated by the latest selection, in the pool.${sentence(worst)}${rest}`
    : `Proportion of each class in the validation set.${rest}`;
  const series = isEstimated ? ["first", "second"] : ["first"];
  const bars = shown.map((row) => [row.name, isEstimated ? [row.trusted, row.pool] : [row.trusted]]);
  const digits = (value) => percent(value, value === 0 || value >= 0.0995 ? 0 : value < 0.00995 ? 2 : 1);
  const range = ({ low, high }) => (isNumber(low) && isNumber(high) ? `${digits(low)} to ${digits(high)}` : "–");
  $("mix").replaceChildren(
    legend([["first", "Validation"], ...(isEstimated ? [["second", "Pool, estimated"]] : [])]),
    drawBars(bars, series, `Class proportions in the validation set and in the pool.${isEstimated ? sentence(worst) : ""}`, digits, room("mix")),
    isEstimated
      ? asTable("Class proportions", ["Class", "Validation", "Pool, estimated", "Probable range", "Pool / validation"], rows.map((row) => [row.name, digits(row.trusted), digits(row.pool), range(row), isNumber(row.pool) && row.trusted ? `× ${(row.pool / row.trusted).toPrecision(2)}` : "–"]))
      : asTable("Class proportions", ["Class", "Validation"], rows.map((row) => [row.name, digits(row.trusted)])),
  );
}

function sentence({ name, trusted, pool }) {
  if (!isNumber(pool) || !trusted) return "";
  const [times, word] = pool < trusted ? [trusted / Math.max(pool, 1e-6), "rarer"] : [pool / trusted, "more common"];
  return times < 1.2 ? " The two hardly differ." : ` ${name} differs most: ${times > 1000 ? "over 1,000" : Number(times.toPrecision(2)).toString()} times ${word} in the pool.`;
}

function drawPeople({ progress }) {
  const people = Object.entries(progress?.by_person || {}).sort((a, b) => b[1] - a[1]);
  if (!people.length) return nothing("people", "Nobody has answered yet.");
  const agreement = make("p", progress.disagreements ? `People disagree on ${number(progress.disagreements)} image${progress.disagreements === 1 ? "" : "s"}. ` : "There are no disagreements.");
  if (progress.disagreements) agreement.append(make("a", "Show them", { href: "/#disagreements" }));
  $("people").replaceChildren(table("Answers by person", ["Person", "Answers"], people.map(([who, count]) => [who, number(count)])), agreement);
}

const room = (id) => Math.max(280, Math.min(960, $(id).clientWidth || 600));

let before = innerWidth;
addEventListener("resize", () => {
  if (drawn && innerWidth !== before) drawAll(drawn);
  before = innerWidth;
});
