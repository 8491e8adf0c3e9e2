"use strict";
// A request for labels: keeps what was chosen in this browser, and saves it as answers.json.
const { ids, keys } = JSON.parse(document.getElementById("request").textContent);
const cards = [...document.querySelectorAll("section.card")], count = document.getElementById("count");
const kept = `msedge-labels-${ids.join("").slice(0, 64)}-${ids.length}`;
const answers = new Map();
try {
  for (const [id, label] of Object.entries(JSON.parse(localStorage.getItem(kept) ?? "{}"))) {
    if (ids.includes(id)) answers.set(id, label);
  }
} catch { /* the browser keeps nothing for files: choices last as long as the page */ }

function show(place) {
  const label = answers.get(ids[place]), chosen = answers.has(ids[place]) ? String(label ?? "") : undefined;
  for (const button of cards[place].querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.class === chosen));
  }
  cards[place].classList.toggle("done", chosen !== undefined);
  count.textContent = `${answers.size} of ${ids.length} done`;
}

function choose(place, label) {
  answers.set(ids[place], label);
  try { localStorage.setItem(kept, JSON.stringify(Object.fromEntries(answers))); } catch { /* as above */ }
  show(place);
}

function go(place) {
  cards[Math.max(0, Math.min(cards.length - 1, place))]?.focus();
}

for (const card of cards) {
  const place = Number(card.dataset.place);
  card.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose(place, button.dataset.class === "" ? null : Number(button.dataset.class));
  });
  card.addEventListener("keydown", (event) => {
    const chosen = keys.indexOf(event.key);
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") go(place + (event.key === "ArrowRight" ? 1 : -1));
    else if (event.key === "?") { choose(place, null); go(place + 1); }
    else if (chosen >= 0) { choose(place, chosen); go(place + 1); }
    else return;
    event.preventDefault();
  });
  show(place);
}

document.getElementById("save").addEventListener("click", () => {
  const text = JSON.stringify(Object.fromEntries(answers), null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "answers.json";
  link.click();
  URL.revokeObjectURL(link.href);
});
