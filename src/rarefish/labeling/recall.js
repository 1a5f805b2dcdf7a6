// Recall of each class after the first and the last training run: a sortable table with a small chart per row, for up to
// 1,000 classes.

import { isNumber, make, percent } from "/static/charts.js";

const COLUMNS = [
  ["Class", "name"],
  ["Images", "count"],
  ["First", "first"],
  ["Last", "last"],
  ["Change", "change"],
];

// rows: [{name, count, first, last}]
export function drawRecall(place, filter, rows) {
  const known = rows.map((row) => ({ ...row, change: isNumber(row.first) && isNumber(row.last) ? row.last - row.first : null }));
  const order = { by: "last", way: 1 };
  const table = make("table", undefined, { class: "recall" });
  const head = make("tr");
  const body = make("tbody");
  const cells = COLUMNS.map(([title, key]) => {
    const cell = make("th", undefined, { scope: "col" });
    const button = make("button", title, { type: "button" });
    button.addEventListener("click", () => {
      order.way = order.by === key ? -order.way : 1;
      order.by = key;
      fill();
    });
    cell.append(button);
    head.append(cell);
    return cell;
  });
  head.append(make("th", "First to last", { scope: "col" }));
  const top = make("thead");
  top.append(head);
  table.append(make("caption", "Recall on the validation set by class", { class: "unseen" }), top, body);

  function fill() {
    const typed = filter.value.trim().toLowerCase();
    const shown = known.filter((row) => row.name.toLowerCase().includes(typed)).sort((a, b) => compare(a[order.by], b[order.by], order.way));
    body.replaceChildren(...shown.map(drawRow));
    if (!shown.length) body.append(emptyRow());
    cells.forEach((cell, at) => {
      if (COLUMNS[at][1] === order.by) cell.setAttribute("aria-sort", order.way > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  }
  filter.addEventListener("input", fill);
  fill();
  place.replaceChildren(table);
}

function drawRow(row) {
  const line = make("tr");
  const change = isNumber(row.change) ? `${row.change > 0 ? "+" : row.change < 0 ? "−" : "±"}${Math.abs(100 * row.change).toFixed(0)}` : "–";
  line.append(make("th", row.name, { scope: "row" }), make("td", isNumber(row.count) ? row.count.toLocaleString("en") : "–"));
  line.append(make("td", percent(row.first)), make("td", percent(row.last)));
  line.append(make("td", change, { class: row.change > 0 ? "up" : row.change < 0 ? "down" : "" }));
  const cell = make("td", undefined, { class: "span" });
  const track = make("span", undefined, { class: "span-track", "aria-hidden": "true" });
  if (isNumber(row.first) && isNumber(row.last)) {
    const run = make("span", undefined, { class: `run ${row.last < row.first ? "down" : ""}` });
    run.style.left = `${100 * Math.min(row.first, row.last)}%`;
    run.style.width = `${100 * Math.abs(row.last - row.first)}%`;
    track.append(run);
  }
  for (const [value, kind] of [[row.first, "from"], [row.last, "to"]]) {
    if (!isNumber(value)) continue;
    const dot = make("span", undefined, { class: `end ${kind}` });
    dot.style.left = `${100 * value}%`;
    track.append(dot);
  }
  cell.append(track);
  line.append(cell);
  return line;
}

function emptyRow() {
  const line = make("tr");
  line.append(make("td", "No class name contains this text.", { colspan: "6", class: "left" }));
  return line;
}

// Rows without a value come last in either order.
function compare(a, b, way) {
  if (typeof a === "string") return way * a.localeCompare(b);
  if (!isNumber(a) || !isNumber(b)) return Number(!isNumber(a)) - Number(!isNumber(b));
  return way * (a - b);
}
