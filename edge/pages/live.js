"use strict";
// Keeps a page of runs up to date: asks which sections have changed, and fetches those.
const EVERY = 1500; // milliseconds between two questions
const seen = new Map();
const status = document.getElementById("live"), button = document.getElementById("pause"), main = document.querySelector("main");
let paused = false;

function section(name) {
  let found = document.getElementById(`part-${name}`);
  if (!found) {
    found = document.createElement("div");
    found.id = `part-${name}`;
    main.append(found);
  }
  return found;
}

/** Replace a section's content; what was opened stays open, what was scrolled stays there, the focus too. */
function put(name, text) {
  const at = section(name), content = new DOMParser().parseFromString(text, "text/html").body;
  const open = [...at.querySelectorAll("details")].map((one) => one.open);
  const boxes = ".graph, .scroll";
  const scrolled = [...at.querySelectorAll(boxes)].map((one) => [one.scrollLeft, one.scrollTop]);
  const focus = ".graph, summary", focused = [...at.querySelectorAll(focus)].indexOf(document.activeElement);
  at.replaceChildren(...content.childNodes);
  at.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(open[i]); });
  at.querySelectorAll(boxes).forEach((one, i) => { if (scrolled[i]) one.scrollTo(...scrolled[i]); });
  if (focused >= 0) at.querySelectorAll(focus)[focused]?.focus({ preventScroll: true });
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

async function refresh() {
  const now = await (await get("state.json")).json();
  document.title = `${now.title} – msedge`;
  for (const [name, digest] of now.sections) {
    if (seen.get(name) === digest) continue;
    put(name, await (await get(`section/${name}`)).text());
    seen.set(name, digest);
  }
  return now.state;
}

async function loop() {
  for (;;) {
    if (!paused && !(document.hidden && seen.size)) {
      try {
        const state = await refresh(), at = new Date().toLocaleTimeString("en-GB");
        status.textContent = paused ? `paused at ${at}` : `${state} · updated ${at}`;
        status.className = "soft";
      } catch (error) {
        status.textContent = error instanceof TypeError ? "no answer: the command that serves this page has ended" : error.message;
        status.className = "poor";
      }
    }
    await new Promise((done) => setTimeout(done, EVERY));
  }
}

button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Go on" : "Pause";
  button.setAttribute("aria-pressed", String(paused));
});
loop();
