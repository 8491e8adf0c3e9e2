// Parts of several pages.
import { make } from "./dom.js";
import { count, devices, NONE, percent, share } from "./words.js";

const GRADES = {
  running: "busy", paused: "fair", completed: "good", aborted: "poor", active: "good", blocked: "poor",
  committed: "good", trial: "busy", good: "good", neutral: "soft", open: "busy",
  "self-test": "poor", "too-slow": "poor", "too-large": "poor", "rolled-back": "poor", broken: "poor",
};

/** A word with the colour of what it means. */
export const chip = (word) => make("span", { class: `chip ${GRADES[word] || "soft"}` }, word);

/** Cards of figures: {figure, label, kind, to}; `to` is where it leads. */
export function facts(found) {
  const card = ({ figure, label, kind = "", to = "" }) => {
    const inside = [make("b", { class: kind }, figure), make("span", {}, label)];
    return to ? make("a", { class: "fact", href: to }, inside) : make("div", {}, inside);
  };
  return make("div", { class: "facts" }, found.filter((one) => one).map(card));
}

/** A table. heads: names of columns; # marks figures, ~ columns that phones leave out. rows: of texts and elements. kind:
 * "stack": phones have the cells of a row below each other. */
export function table(heads, rows, nothing = "None.", kind = null) {
  if (!rows.length) return make("p", { class: "soft" }, nothing);
  const kinds = heads.map((head) => ({ "#": "n", "~": "spare" })[head[0]] || null);
  const names = heads.map((head, i) => (kinds[i] ? head.slice(1) : head));
  const top = names.map((name, i) => make("th", { class: kinds[i], scope: "col" }, name));
  const lines = rows.map((row) => make("tr", {}, row.map((cell, i) => make("td", { class: kinds[i] }, cell))));
  return make("div", { class: "scroll" }, make("table", { class: kind }, make("thead", {}, make("tr", {}, top)), make("tbody", {}, lines)));
}

/** Names and values, those without a value left out. */
export function pairs(found) {
  const rows = Object.entries(found).filter(([, value]) => value !== "" && value != null);
  return rows.length ? make("dl", { class: "pairs" }, rows.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])) : make("p", { class: "soft" }, "None.");
}

/** A bar of shares of a whole: {label, number, kind}. */
export function bar(title, parts, whole) {
  const shown = parts.filter((part) => part.number);
  const words = shown.map((part) => `${part.label} ${count(part.number)}`).join(", ") || "none";
  const made = shown.map((part) => {
    const piece = make("i", { class: part.kind, title: `${part.label}: ${count(part.number)} (${share(part.number, whole)})` });
    piece.style.flexGrow = part.number;
    return piece;
  });
  const rest = whole - shown.reduce((sum, part) => sum + part.number, 0);
  if (rest > 0) {
    const empty = make("i");
    empty.style.flexGrow = rest;
    made.push(empty);
  }
  return make("div", { class: "bar", role: "img", "aria-label": `${title}: ${words}` }, made);
}

export const VERDICTS = [["good", "good"], ["bad", "poor"], ["neutral", "c1"], ["open", "c0"]];
const WORDS = { good: "good", bad: "failed", neutral: "neither", open: "open" };

/** How a rollout's devices fared, as a bar and in words. */
export function verdicts(rollout) {
  const parts = VERDICTS.map(([name, kind]) => ({ label: WORDS[name], number: rollout[name], kind }));
  const words = parts.filter((part) => part.number).map((part) => make("span", {}, make("i", { class: part.kind }), `${count(part.number)} ${part.label}`));
  return [bar("Devices", parts, rollout.members), make("p", { class: "legend" }, devices(rollout.members), words)];
}

/** The steps of a rollout: those that are over, the one that is under way with the share of its devices that is decided. */
export function steps(rollout) {
  const decided = rollout.members ? 1 - rollout.open / rollout.members : 0;
  const over = rollout.status === "completed";
  const made = rollout.plan.steps.map((step, i) => {
    const fill = make("i");
    fill.style.width = `${100 * (over || i < rollout.step ? 1 : i === rollout.step ? decided : 0)}%`;
    const here = i === rollout.step && !over;
    return make("li", { class: `${i < rollout.step || over ? "over" : here ? "here" : ""} ${rollout.status}`, "aria-current": here ? "step" : null }, make("div", {}, fill), percent(step));
  });
  return make("ol", { class: "steps", "aria-label": "Steps" }, made);
}

const HIGH = 170, LEFT = 48, RIGHT = 10, TOP = 10, BOTTOM = 22;

/** Round numbers from 0 to at or above `most`, whole ones. */
function marks(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1) / 3));
  const step = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s * 4 >= most) || 1);
  return Array.from({ length: Math.max(2, Math.ceil(most / step - 1e-9) + 1) }, (_, i) => i * step);
}

/** Curves over times (seconds since 1970). series: {label, kind, values}. events: {time, label}, as lines across. */
export function curves(title, times, series, events, write) {
  const picture = make("svg", { role: "img", "aria-label": title });
  const legend = series.map((one) => make("span", { class: "soft" }, make("i", { class: one.kind }), one.label));
  const made = make("figure", {}, make("figcaption", {}, make("span", {}, title), legend), picture);
  const draw = () => {
    const wide = Math.max(240, picture.clientWidth), at = marks(Math.max(...series.flatMap((one) => one.values)));
    const first = times[0], last = times[times.length - 1];
    const up = (value) => HIGH - BOTTOM - (value / at[at.length - 1]) * (HIGH - BOTTOM - TOP);
    const across = (time) => LEFT + ((time - first) / (last - first)) * (wide - LEFT - RIGHT);
    const words = (x, y, text, anchor) => make("text", { x, y, "text-anchor": anchor }, text);
    const levels = at.map((value) => [make("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: up(value), y2: up(value) }), words(LEFT - 6, up(value) + 4, count(value), "end")]);
    const cuts = events.filter((one) => one.time >= first && one.time <= last).map((one) => make("g", {}, make("title", {}, one.label), make("line", { class: "cut", x1: across(one.time), x2: across(one.time), y1: TOP, y2: HIGH - BOTTOM })));
    const lines = series.map((one) => make("polyline", { class: one.kind, points: one.values.map((value, i) => `${across(times[i]).toFixed(1)},${up(value).toFixed(1)}`).join(" ") }));
    picture.setAttribute("viewBox", `0 0 ${wide} ${HIGH}`);
    picture.replaceChildren(...levels.flat(), ...cuts, ...lines, words(LEFT, HIGH - 5, write(first), "start"), words(wide - RIGHT, HIGH - 5, write(last), "end"));
  };
  // One unit of the picture is one pixel, so that text keeps its size on phones.
  new ResizeObserver(draw).observe(picture);
  return made;
}

/** Links to other parts of a long list. */
export function pager(links) {
  const shown = links.filter(([, to]) => to);
  return shown.length ? make("nav", { class: "row pager", "aria-label": "Pages" }, shown.map(([text, to]) => make("a", { class: "button", href: to }, text))) : "";
}

/** A form that searches. then: gets the words. */
export function searching(words, label, help, then) {
  const input = make("input", { type: "search", id: "search", name: "search", value: words, maxlength: 200, autocomplete: "off", "aria-describedby": "search-help" });
  const send = (event) => {
    event.preventDefault();
    then(input.value.trim());
  };
  const form = make("form", { class: "row search", role: "search", submit: send }, make("label", { for: "search" }, label), input, make("button", { class: "main" }, "Search"));
  return [form, make("p", { class: "soft small", id: "search-help" }, help)];
}

export const short = (digest) => make("code", { title: digest }, digest.length > 20 ? `${digest.slice(0, 16)}…` : digest || NONE);
