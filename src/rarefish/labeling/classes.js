// The assignment of keys to classes, and the class search.

// Letters near the left hand come first; s, n, u and z are commands.
export const LETTERS = [..."qwertadfgxcvbyhjkliopm"];
export const KEYS = [..."123456789", ...LETTERS];
export const MOST_SHOWN = 50;
const LOOSE = 4;

// With few classes, every class has a fixed key. With many, 1 to 9 are the most likely classes of the current image.
export function hasFixedKeys(classes) {
  return classes.length <= KEYS.length;
}

// Returns [[key, class number], …]; `recent` classes fill the gaps if the model suggests fewer than nine.
export function assignKeys(classes, task, recent) {
  if (hasFixedKeys(classes)) return classes.map((_, number) => [KEYS[number], number]);
  const likely = (task?.probabilities || []).map(([number]) => number);
  if (task?.guess !== null && task?.guess !== undefined) likely.push(task.guess);
  const numbers = [...new Set([...likely, ...recent])].filter((number) => classes[number] !== undefined);
  return numbers.slice(0, 9).map((number, place) => [KEYS[place], number]);
}

// Returns the numbers of the classes that match the text, best first: whole name, its start, a word's start, inside,
// letters in order.
export function search(classes, typed) {
  const query = fold(typed.trim());
  if (!query) return [];
  const found = [];
  classes.forEach((name, number) => {
    const grade = match(fold(name), query);
    if (grade <= LOOSE) found.push([grade, name.length, number]);
  });
  found.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
  const isLoose = found.every(([grade]) => grade === LOOSE); // match letters in order only if nothing matches better
  return found.filter(([grade]) => isLoose || grade < LOOSE).map(([, , number]) => number);
}

function match(name, query) {
  if (name === query) return 0;
  if (name.startsWith(query)) return 1;
  const at = name.indexOf(query);
  if (at > 0 && /[^\p{L}\p{N}]/u.test(name[at - 1])) return 2;
  if (at > 0) return 3;
  let place = -1;
  for (const letter of query) {
    place = name.indexOf(letter, place + 1);
    if (place < 0) return LOOSE + 1;
  }
  return LOOSE;
}

function fold(text) {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

// A combobox of classes: typing filters, arrow keys select, Enter answers.
export class Search {
  constructor(input, list, count, onChoose) {
    Object.assign(this, { input, list, count, onChoose, classes: [], found: [], at: 0 });
    input.addEventListener("input", () => this.show());
    input.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus in the field
    list.addEventListener("click", (event) => {
      const row = event.target.closest("[data-class]");
      if (row) this.choose(Number(row.dataset.class));
    });
  }

  show() {
    this.found = search(this.classes, this.input.value);
    this.at = 0;
    const shown = this.found.slice(0, MOST_SHOWN);
    this.list.replaceChildren(...shown.map((number, place) => this.row(number, place)));
    const isTyped = this.input.value.trim() !== "";
    this.list.hidden = !shown.length;
    this.count.hidden = !isTyped;
    const more = this.found.length - shown.length;
    this.count.textContent = this.found.length ? `${this.found.length} of ${this.classes.length.toLocaleString("en")} classes${more > 0 ? `; the first ${shown.length} are shown` : ""}` : "No class name contains this text.";
    this.input.setAttribute("aria-expanded", String(Boolean(shown.length)));
    this.mark();
  }

  row(number, place) {
    const row = document.createElement("li");
    row.id = `found-${place}`;
    row.role = "option";
    row.dataset.class = number;
    row.textContent = this.classes[number];
    return row;
  }

  mark() {
    [...this.list.children].forEach((row, place) => row.setAttribute("aria-selected", String(place === this.at)));
    const row = this.list.children[this.at];
    if (row) {
      this.input.setAttribute("aria-activedescendant", row.id);
      row.scrollIntoView({ block: "nearest" });
    } else {
      this.input.removeAttribute("aria-activedescendant");
    }
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const shown = this.list.children.length;
    if (step && shown) {
      event.preventDefault();
      this.at = (this.at + step + shown) % shown;
      this.mark();
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      if (!event.repeat && shown) this.choose(this.found[this.at]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      this.clear();
      this.input.blur();
    }
  }

  choose(number) {
    this.clear();
    this.input.blur();
    this.onChoose(number);
  }

  clear() {
    this.input.value = "";
    this.show();
  }
}
