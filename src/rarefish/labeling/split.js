// Images on which people disagree: who gave which answer, and a button to label each again.

import { ask } from "/static/outbox.js";
import { $, make, nameAnswer, number } from "/static/view.js";

export async function drawSplit(classes, onChoose) {
  const { total, images } = await ask("/api/disagreements");
  $("split-text").textContent = total
    ? `${number(total)} image${total === 1 ? "" : "s"} got different answers. Choose one to look at it again: your new answer takes the place of your old one, and a majority settles it.${total > images.length ? ` The first ${images.length} are shown.` : ""}`
    : "Nobody disagrees about any image.";
  $("split-list").replaceChildren(...images.map((row) => card(row, classes, onChoose)));
}

function card({ task, said }, classes, onChoose) {
  const button = make("button", undefined, { type: "button", class: "card" });
  const picture = make("img", undefined, { src: `/image/${task.image}?size=320`, alt: `Image ${task.image}`, loading: "lazy" });
  const lines = said.flatMap(({ answer, people }) => [
    make("b", `${nameAnswer(answer, classes)} × ${people.length}`),
    make("span", people.join(", ")),
  ]);
  button.append(picture, ...lines);
  button.addEventListener("click", () => onChoose(task));
  const item = make("li");
  item.append(button);
  return item;
}
