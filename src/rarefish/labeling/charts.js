// Small charts as inline SVG, and tables with the same numbers. Names are text nodes, never markup.

const SPACE = "http://www.w3.org/2000/svg";
let charts = 0;

export function make(kind, text, given = {}) {
  const element = document.createElement(kind);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  return element;
}

function draw(kind, given = {}, text) {
  const element = document.createElementNS(SPACE, kind);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function canvas(width, height, title) {
  const id = `chart-${(charts += 1)}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": id, class: "chart" });
  svg.append(draw("title", { id }, title));
  return svg;
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const percent = (share, digits = 0) => (isNumber(share) ? `${(100 * share).toFixed(digits)} %` : "–");

// Returns round tick values up to `top`: 0, 200, 400 …
function ticks(top, about = 5) {
  const rough = Math.max(top, 1e-9) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * size).find((one) => one >= rough);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, place) => place * step);
}

// Draws lines against the labels spent, from 0 to 100 %; `lines` are {name, kind, values}, with null for missing values.
export function drawCurve(spent, lines, title, width) {
  const height = 300, left = 48, right = 26, top = 12, bottom = 44;
  const svg = canvas(width, height, title);
  const most = Math.max(...spent, 1);
  const x = (value) => left + (value / most) * (width - left - right);
  const y = (value) => top + (1 - value) * (height - top - bottom);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(draw("line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: "grid" }));
    svg.append(draw("text", { x: left - 8, y: y(share) + 4, class: "tick end" }, percent(share)));
  }
  for (const value of ticks(most, width < 500 ? 4 : 8)) svg.append(draw("text", { x: x(value), y: height - bottom + 20, class: "tick middle" }, value.toLocaleString("en")));
  svg.append(draw("text", { x: (left + width - right) / 2, y: height - 6, class: "tick middle" }, "labels"));
  for (const { name, kind, values } of lines) {
    const points = spent.map((at, place) => [x(at), y(values[place]), values[place]]).filter(([, , value]) => isNumber(value));
    svg.append(draw("polyline", { points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" "), class: `line ${kind}` }));
    for (const [a, b, value] of points) {
      const dot = kind === "first" ? draw("circle", { cx: a, cy: b, r: 4, class: `dot ${kind}` }) : draw("rect", { x: a - 3.5, y: b - 3.5, width: 7, height: 7, class: `dot ${kind}` });
      dot.append(draw("title", {}, `${name}: ${percent(value, 1)}`));
      svg.append(dot);
    }
  }
  return svg;
}

// Draws horizontal bars; rows are [name, [values]] with one bar per series; `write` formats a value.
export function drawBars(rows, series, title, write, width) {
  const name = Math.min(150, width * 0.34), right = 64, thick = series.length > 1 ? 12 : 15, gap = 3;
  const step = series.length * (thick + gap) + 8;
  const svg = canvas(width, rows.length * step + 4, title);
  const most = Math.max(...rows.flatMap(([, values]) => values.filter(isNumber)), 1e-9);
  rows.forEach(([label, values], row) => {
    const top = row * step + 4;
    const letters = Math.max(4, Math.floor((name - 8) / 7.9));
    const text = draw("text", { x: name - 8, y: top + (step - 8 - gap) / 2 + 4, class: "name end" }, [...label].length > letters ? `${[...label].slice(0, letters - 1).join("")}…` : label);
    text.append(draw("title", {}, label));
    svg.append(text);
    values.forEach((value, place) => {
      const at = top + place * (thick + gap);
      const long = isNumber(value) && value > 0 ? Math.max(1, (value / most) * (width - name - right)) : 0;
      svg.append(draw("rect", { x: name, y: at, width: long, height: thick, rx: 2, class: `bar ${series[place]}` }));
      svg.append(draw("text", { x: name + long + 6, y: at + thick / 2 + 4, class: "tick" }, isNumber(value) ? write(value) : "unknown"));
    });
  });
  return svg;
}

export function legend(names) {
  const list = make("ul", undefined, { class: "legend" });
  for (const [kind, name] of names) {
    const item = make("li", name);
    item.prepend(make("span", undefined, { class: `swatch ${kind}`, "aria-hidden": "true" }));
    list.append(item);
  }
  return list;
}

// Returns the same numbers as a collapsed table.
export function asTable(caption, heads, rows) {
  const fold = make("details");
  const wide = make("div", undefined, { class: "wide", tabindex: "0", role: "region", "aria-label": caption });
  wide.append(table(caption, heads, rows));
  fold.append(make("summary", "Show the numbers as a table"), wide);
  return fold;
}

export function table(caption, heads, rows) {
  const made = make("table");
  const head = make("tr");
  head.append(...heads.map((name) => make("th", name, { scope: "col" })));
  const top = make("thead");
  top.append(head);
  const body = make("tbody");
  for (const [first, ...rest] of rows) {
    const row = make("tr");
    row.append(make("th", first, { scope: "row" }), ...rest.map((cell) => make("td", cell)));
    body.append(row);
  }
  made.append(make("caption", caption), top, body);
  return made;
}
