const EVERY = 1000; // milliseconds between two requests for the status
const KEPT_POINTS = 180; // points in a curve
const HIGH = 160, LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 22;
const GRADES = { READY: "good", LOADING: "fair", UNLOADING: "fair", UNAVAILABLE: "poor", ready: "good", starting: "fair", draining: "fair" };

const NONE = "–";
const count = (n) => (n < 1e6 ? Math.round(n).toLocaleString("en") : n.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }));
const rate = (n) => (n && n < 10 ? n.toPrecision(2) : count(n));
const share = (n) => `${+(100 * n).toPrecision(n < 0.995 ? 2 : 4)} %`;
function seconds(s) {
  if (!s) return s === 0 ? "0" : NONE;
  for (const [unit, size] of [["µs", 1e-6], ["ms", 1e-3]]) if (s < 999.5 * size) return `${+(s / size).toPrecision(3)} ${unit}`;
  return `${+s.toPrecision(3)} s`;
}
function size(bytes) {
  let at = 0;
  for (; bytes >= 1000 && at < 4; at++) bytes /= 1024;
  return `${at ? bytes.toPrecision(3) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
}
function span(s) {
  const parts = [["d", Math.floor(s / 86400)], ["h", Math.floor(s / 3600) % 24], ["min", Math.floor(s / 60) % 60], ["s", Math.floor(s) % 60]];
  const first = parts.findIndex(([, n]) => n);
  return first < 0 ? "0 s" : parts.slice(first, first + 2).map(([unit, n]) => `${n} ${unit}`).join(" ");
}

/** Tick marks from 0 to a round number at or above `most`, in steps of 1, 2 or 5 times a power of ten. */
function marks(most) {
  if (!(most > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(most / 3));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s * 4 >= most);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => i * step);
}

const words = (x, y, text, anchor) => make("text", { x, y, "text-anchor": anchor }, text);

/** Grid lines with labels, and the function from values to pixels. */
function levels(wide, most, write) {
  const at = marks(most);
  const up = (value) => HIGH - BOTTOM - (value / at[at.length - 1]) * (HIGH - BOTTOM - TOP);
  const lines = at.map((value) => [
    make("line", { x1: LEFT, x2: wide - RIGHT, y1: up(value), y2: up(value) }),
    words(LEFT - 6, up(value) + 4, write(value), "end"),
  ]);
  return [lines.flat(), up];
}

function figure(title, names, draw) {
  const picture = make("svg", { role: "img", "aria-label": title });
  const legend = names.map((name, i) => make("span", { class: "soft" }, make("i", { class: `c${i}` }), name));
  const made = make("figure", {}, make("figcaption", {}, title, legend), picture);
  // One unit of the picture is one pixel, so that text keeps its size on phones.
  requestAnimationFrame(() => {
    const wide = Math.max(200, picture.clientWidth);
    picture.setAttribute("viewBox", `0 0 ${wide} ${HIGH}`);
    picture.append(...draw(wide));
  });
  return made;
}

/** Curves of the values seen so far; null leaves a gap. `series`: name -> values, oldest first. */
function curves(title, series, write) {
  const names = Object.keys(series);
  return figure(title, names.length > 1 ? names : [], (wide) => {
    const all = Object.values(series).flat().filter((v) => v != null);
    const [parts, up] = levels(wide, Math.max(0, ...all), write);
    const across = (i) => wide - RIGHT - 3 - (i / (KEPT_POINTS - 1)) * (wide - LEFT - RIGHT - 3);
    Object.values(series).forEach((values, which) => {
      const last = values.length - 1;
      let run = [];
      const flush = () => {
        if (run.length > 1) parts.push(make("polyline", { class: `c${which}`, points: run.join(" ") }));
        run = [];
      };
      values.forEach((v, i) => (v == null ? flush() : run.push(`${across(last - i).toFixed(1)},${up(v).toFixed(1)}`)));
      flush();
      if (values[last] != null) parts.push(make("circle", { class: `c${which}`, cx: across(0), cy: up(values[last]), r: 3 }));
    });
    const ago = Math.round((KEPT_POINTS * EVERY) / 60000);
    return [...parts, words(LEFT, HIGH - 6, `${ago} min ago`, "start"), words(wide - RIGHT, HIGH - 6, "now", "end")];
  });
}

/** Bars of a histogram, from its first filled bucket to its last. */
function bars(title, { bounds, counts }, write) {
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) return make("figure", {}, make("figcaption", {}, title), make("p", { class: "soft" }, "Nothing yet."));
  const from = counts.findIndex((n) => n), to = counts.findLastIndex((n) => n);
  return figure(title, [], (wide) => {
    const shown = counts.slice(from, to + 1);
    const [parts, up] = levels(wide, Math.max(...shown) / total, share);
    const each = Math.min(56, (wide - LEFT - RIGHT) / shown.length), gap = Math.min(3, each / 5);
    const upper = (i) => (from + i < bounds.length ? write(bounds[from + i]) : "more");
    // As many labels under the bars as there is room for.
    const every = Math.ceil(54 / each);
    shown.forEach((n, i) => {
      const x = LEFT + i * each;
      const tip = from + i < bounds.length ? `up to ${upper(i)}` : `above ${write(bounds[bounds.length - 1])}`;
      parts.push(make("g", {}, make("title", {}, `${tip}: ${count(n)} (${share(n / total)})`),
        make("rect", { class: "hit", x, y: TOP, width: each, height: HIGH - BOTTOM - TOP }),
        make("rect", { x: x + gap / 2, y: up(n / total), width: each - gap, height: Math.max(n ? 1 : 0, HIGH - BOTTOM - up(n / total)), rx: 2 })));
      if ((shown.length - 1 - i) % every === 0) parts.push(words(x + each / 2, HIGH - 6, upper(i), "middle"));
    });
    return parts;
  });
}

function table(heads, rows) {
  const head = heads.map((text) => make("th", { class: KINDS[text[0]] }, text.replace(/^[#~]/, "")));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)));
}

const cell = (text, kind = "n") => make("td", { class: kind }, text);

function facts(s) {
  const limit = s.memory.limit ? ` of ${size(s.memory.limit)}` : "";
  const pairs = [
    [rate(s.flow.requests), "requests per second"],
    [rate(s.flow.rows), "rows per second"],
    [seconds(s.latency.p50), "p50 latency"],
    [seconds(s.latency.p99), "p99 latency"],
    [count(s.in_flight), "in progress"],
    [count(s.queued.rows), "rows waiting"],
    [size(s.memory.process), `memory; models ${size(s.memory.models)}${limit}`],
    [seconds(s.lag), "event loop delay"],
  ];
  return make("div", { class: "facts" }, pairs.map(([big, small]) => make("div", {}, make("b", {}, big), make("span", {}, small))));
}

const HEADS = ["", "state", "#answered", "#failed", "~rows per batch", "~waiting", "~p50", "#p99", "~memory"];
const KINDS = { "#": "n", "~": "n spare" };

function modelRow(m) {
  const tags = [...m.labels, ...(m.share > 0 && m.share < 1 ? [share(m.share)] : [])].map((text) => make("span", { class: "tag" }, text));
  const notes = [m.reason, m.signer ? `signed by ${m.signer}` : "", m.compiling ? "runs by reference, slower, until its kernels are compiled" : ""];
  if (m.personal && m.personal.hits + m.personal.misses) notes.push(`personal: ${count(m.personal.hits)} answered by personal versions, ${count(m.personal.misses)} by the common model; ${count(m.personal.devices)} of ${count(m.personal.capacity)} devices in memory, ${size(m.personal.bytes)}`);
  if (m.shadow) notes.push(`shadow: ${m.shadow.agreement == null ? NONE : share(m.shadow.agreement)} of rows agree in ${count(m.shadow.compared)} copies, largest difference ${m.shadow.difference == null ? "infinite" : m.shadow.difference.toPrecision(2)}`);
  const told = notes.filter(Boolean).join("; ");
  const row = make("tr", { class: told ? "told" : null },
    make("td", { class: "name" }, m.name, make("small", {}, `version ${m.version || NONE} `, tags)),
    cell(m.state.toLowerCase(), GRADES[m.state]), cell(count(m.answered)), cell(count(m.failed), m.failed ? "n poor" : "n"),
    cell(m.batches ? (m.rows / m.batches).toFixed(1) : NONE, "n spare"), cell(count(m.queued), "n spare"),
    cell(seconds(m.latency.p50), "n spare"), cell(seconds(m.latency.p99)), cell(size(m.bytes), "n spare"));
  return told ? [row, make("tr", {}, make("td", { colspan: HEADS.length, class: "soft notes" }, told))] : [row];
}

function kernels(k) {
  const told = k.of ? `Compiling kernels, once on this machine: ${count(k.done)} of ${count(k.of)}.` : k.problem ? `Kernels cannot be compiled: ${k.problem}` : "";
  return told ? make("p", { class: k.of ? "soft" : "poor" }, told) : "";
}

function sources(found) {
  return table(["", "state", "#read", ""], found.map((f) => make("tr", {},
    make("td", { class: "name" }, f.name), cell(f.state, f.state === "ok" ? "good" : "poor"), cell(`${span(f.age)} ago`), cell(f.reason, "soft notes"))));
}

/** Trusted keys; `expires` in seconds since 1970. */
function keys(found) {
  const told = found.map((k) => `${k.name} (ed25519:${k.key.slice(0, 16)}${k.expires ? `, ${k.expires * 1000 < Date.now() ? "expired" : "expires"} ${new Date(k.expires * 1000).toISOString().slice(0, 10)}` : ""})`);
  return found.length ? make("p", { class: "soft" }, `Bundles must be signed by ${told.join(" or ")}.`) : "";
}

function refused(counts) {
  const rows = Object.entries(counts).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
  if (!rows.length) return make("p", { class: "soft" }, "No requests.");
  const bar = (n) => {
    const made = make("i");
    made.style.width = `${(100 * n) / rows[0][1]}%`;
    return make("td", {}, made);
  };
  return make("div", { class: "scroll" }, make("table", { class: "bars" }, make("tbody", {}, rows.map(([why, n]) => make("tr", {}, cell(why, ""), cell(count(n)), bar(n))))));
}

/** Requests and rows per second since the previous status; without a recent one, those of the last minute. */
function flow(before, now) {
  const passed = before ? now.uptime - before.uptime : 0;
  const since = (which) => (now.answered[which] - before.answered[which]) / passed;
  const found = passed > 0.2 && passed < 10 ? { requests: since("requests"), rows: since("rows") } : now.recent;
  // The counts of an unloaded version are no longer included.
  return found.requests < 0 ? now.recent : found;
}

const seen = [];
const pick = (read) => seen.map((s) => s && read(s));
/** Sections: the data that each shows, and how it is drawn. A section is redrawn only if its data has changed. */
const SECTIONS = [
  [(s) => [s.flow, s.latency, s.in_flight, s.queued, s.memory, s.lag], facts],
  [() => [seen.length && performance.now()], () => make("div", { class: "charts" },
    curves("Requests per second", { all: pick((s) => s.flow.requests) }, rate),
    curves("Latency", { p50: pick((s) => s.latency.p50), p95: pick((s) => s.latency.p95), p99: pick((s) => s.latency.p99) }, seconds))],
  [(s) => [s.latencies, s.batches], (s) => make("div", { class: "charts" },
    bars("Requests of the last minute by latency", s.latencies, seconds),
    bars("Rows of the last minute by batch size", s.batches, count))],
  [(s) => [s.models, s.unlisted, s.kernels, s.keys], (s) => [make("h2", {}, "Models"), kernels(s.kernels), keys(s.keys),
    s.models.length ? table(HEADS, s.models.flatMap(modelRow)) : make("p", { class: "soft" }, "None."),
    s.unlisted ? make("p", { class: "soft" }, `and ${count(s.unlisted)} more, used less recently`) : ""]],
  [(s) => s.sources, (s) => [make("h2", {}, "Sources"), s.sources.length ? sources(s.sources) : make("p", { class: "soft" }, "None.")]],
  [(s) => s.refused, (s) => [make("h2", {}, "Refused"), refused(s.refused)]],
];

const main = document.querySelector("main");
const head = make("header", {}, heading("msedge gateway")), notice = make("p", { "aria-live": "polite" });
const places = SECTIONS.map(() => make("section"));
const shown = [];
let last = null, answered = 0, pause = EVERY, locked = false;

function draw(s) {
  const chip = make("span", { class: `chip ${GRADES[s.state]}` }, s.state);
  head.replaceChildren(heading(s.name, chip, ["docs", "requests"], ["metrics", "metrics"]), make("div", { class: "soft" }, `msedge ${s.version}, up ${span(s.uptime)}`));
  SECTIONS.forEach(([read, render], i) => {
    const now = JSON.stringify(read(s));
    if (now === shown[i]) return;
    shown[i] = now;
    places[i].replaceChildren(...[render(s)].flat());
  });
}

const sentence = async (reply) => (await reply.json().catch(() => ({}))).error || `status ${reply.status}`;

/** Stop asking until there is a new token: the gateway limits invalid tokens per client. */
function lock(why) {
  locked = true;
  const open = () => {
    locked = false;
    notice.replaceChildren();
  };
  notice.replaceChildren(tokenForm(open), make("span", { class: "soft" }, why));
}

async function look() {
  try {
    const reply = await ask("status.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    pause = 1000 * Number(reply.headers.get("Retry-After")) || EVERY;
    if (reply.status === 401 || reply.status === 403) return lock(await sentence(reply));
    if (!reply.ok) throw new Error(await sentence(reply));
    const now = await reply.json();
    now.flow = flow(last, now);
    last = now;
    answered = performance.now();
    notice.replaceChildren();
    main.classList.remove("stale");
  } catch (error) {
    main.classList.add("stale");
    const since = answered ? ` for ${span((performance.now() - answered) / 1000)}` : "";
    notice.replaceChildren(make("span", { class: "poor" }, `No answer${since}: ${error.message}`));
  }
  seen.push(main.classList.contains("stale") ? null : last);
  if (seen.length > KEPT_POINTS) seen.shift();
  if (last) draw(last);
}

async function run() {
  if (!document.hidden && !locked) await look();
  setTimeout(run, pause);
}

main.replaceChildren(head, notice, ...places, make("footer", {}, "Updated once a second; paused while this tab is in the background."));
addEventListener("resize", () => {
  shown.length = 0;
  if (last) draw(last);
});
run();
