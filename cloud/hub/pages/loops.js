// Loops: what a cycle does, and the step that waits for a person.
import { ask, path } from "./asking.js";
import { dialog, field, make } from "./dom.js";
import { chip, pairs } from "./drawing.js";
import { ago } from "./words.js";

const DECISIONS = {
  approve: { text: "Approve", kind: "main", says: (loop) => `The step "${loop.step}" begins.` },
  reject: { text: "Reject", kind: "stop", says: () => "The cycle ends as failed, and what it released is taken back." },
};

/** The buttons for a step that waits; none for a viewer. then: called when a decision was stored. */
function decisions(loop, me, then) {
  if (me.scope !== "operator" || loop.status !== "waits") return "";
  const made = Object.entries(DECISIONS).map(([name, { text, kind, says }]) => {
    const act = async (form) => {
      await ask(path(["loops", loop.name, name]), "POST", { step: loop.step, why: form.get("why").trim() });
      then(`${loop.name}, ${loop.step}: ${text.toLowerCase()} was carried out`);
    };
    const open = () => dialog(`${loop.name}: ${text.toLowerCase()} the step "${loop.step}"?`,
      [make("p", {}, says(loop)), field("why", "Reason, for the audit log", { maxlength: 500, autocomplete: "off" })], { text, kind }, act);
    return make("button", { class: kind, id: `${name}-loop-${loop.name}`, type: "button", click: open }, text);
  });
  return make("div", { class: "row orders" }, made);
}

/** A value in few signs: numbers rounded, digests cut. */
const short = (value) => (typeof value === "number" ? String(+value.toPrecision(4)) : String(value).replace(/\b([0-9a-f]{12})[0-9a-f]{20,}\b/, "$1…"));

/** What the steps of a cycle gave so far. */
const results = (loop) => pairs(Object.fromEntries(Object.entries(loop.results).map(([step, found]) => [
  step, Object.entries(found).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${short(value)}`).join(", ") || "done"])));

const state = (loop) => (loop.status === "waits" ? `waits before ${loop.step}` : loop.status === "running" ? loop.step : loop.outcome || "watches");

/** A loop in a card, with what people may decide. */
export const card = (loop, me, then) => make("div", { class: "card" },
  make("h3", {}, `${loop.name}, cycle ${loop.number}`, chip(state(loop))),
  loop.cause.text ? make("p", {}, loop.cause.text) : "", loop.reason ? make("p", { class: "poor" }, loop.reason) : "",
  loop.began ? make("p", { class: "soft small" }, `began ${ago(loop.began)}`) : "", Object.keys(loop.results).length ? results(loop) : "",
  loop.troubles.length ? make("p", { class: "poor small" }, loop.troubles.at(-1)) : "", decisions(loop, me, then));
