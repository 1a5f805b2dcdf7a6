// The images that people labeled differently: who gave which answer, and a button to label each image again.

import { ask } from "/static/outbox.js";
import { $, make, nameAnswer, number } from "/static/view.js";

export async function drawDisagreements(classes, onChoose) {
  const { total, images } = await ask("/api/disagreements");
  $("disagreements-text").textContent = total
    ? `${number(total)} image${total === 1 ? "" : "s"} received different answers. Select one to label it again: your new answer replaces your old one, and the majority decides.${total > images.length ? ` The first ${images.length} are shown.` : ""}`
    : "There are no disagreements.";
  $("disagreements-list").replaceChildren(...images.map((row) => card(row, classes, onChoose)));
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
