// What waits for a person: rollouts, and loops; all rollouts, and one with its progress.
import { link, path } from "./asking.js";
import { make } from "./dom.js";
import { chip, curves, facts, pairs, steps, table, verdicts } from "./drawing.js";
import { card } from "./fleet.js";
import { card as cycle } from "./loops.js";
import { orders, starting } from "./orders.js";
import { ago, count, date, minute, NONE, percent, span } from "./words.js";

const cards = (found, nothing) => (found.length ? make("div", { class: "cards" }, found) : make("p", { class: "soft" }, nothing));
const all = (found, me, then) => found.map((one) => card(one, orders(one, me, then)));
const waiting = ({ loops }, waits = true) => loops.filter((one) => (one.status === "waits") === waits);

/** Of each channel the newest version, if no rollout ever had it. */
function fresh({ applications }) {
  const found = new Map();
  for (const [name, { channels, rolled }] of Object.entries(applications))
    for (const [channel, versions] of Object.entries(channels)) {
      const version = versions.at(-1), key = `${name} ${version}`;
      if (version && !rolled.includes(version)) found.set(key, { name, version, channels: [...(found.get(key)?.channels || []), channel] });
    }
  return [...found.values()];
}

export const approvals = {
  title: () => "Approvals",
  asks: () => ({ paused: "v1/rollouts?status=paused", running: "v1/rollouts?status=running", releases: "v1/releases", loops: "v1/loops" }),
  parts: (address, me, then) => [
    [({ paused, loops }) => [paused, waiting(loops), waiting(loops).length && minute()], ({ paused, loops }) => [make("h2", {}, "Waiting for a decision"),
      cards([...waiting(loops).map((one) => cycle(one, me, then)), ...all(paused.rollouts, me, then)], "Nothing waits.")]],
    [({ running }) => running, ({ running }) => [make("h2", {}, "Under way"), cards(all(running.rollouts, me, then), "No rollout is under way.")]],
    [({ loops }) => [waiting(loops, false), minute()], ({ loops }) => (waiting(loops, false).length ? [make("h2", {}, "Loops"),
      cards(waiting(loops, false).map((one) => cycle(one, me, then)), "")] : "")],
    [({ releases }) => fresh(releases), ({ releases }) => [make("h2", {}, "Released, and not rolled out"),
      table(["version", "channels", ""], fresh(releases).map(({ name, version, channels }) => [
        make("a", { href: link(["models", name, version]) }, `${name} ${version}`), channels.join(", "), starting(name, version, channels, me, then)]))]],
    [() => me.scope, () => (me.scope === "operator" ? "" : make("p", { class: "soft" }, "You may look. An operator's token decides."))],
  ],
};

export const rollouts = {
  title: () => "Rollouts",
  asks: () => ({ all: "v1/rollouts?most=200" }),
  parts: () => [
    [({ all }) => [all, minute()], ({ all }) => table(["version", "state", "#devices", "#failed", "within", "~started", "~why"], all.rollouts.map((one) => [
      make("a", { href: link(["rollouts", one.id]) }, `${one.plan.application} ${one.plan.version}`), chip(one.status), count(one.members), count(one.bad),
      percent(one.percent), ago(one.started), one.reason]), "No version was rolled out yet.")],
    [({ all }) => all.total, ({ all }) => (all.total > all.rollouts.length ? make("p", { class: "soft" }, `The newest ${all.rollouts.length} of ${count(all.total)}.`) : "")],
  ],
};

/** Where the evidence of a step stands, between passing and stopping. */
function evidence({ rollout }) {
  if (rollout.status !== "running" && rollout.status !== "paused") return "";
  const { judge, steps: all } = rollout.plan;
  const pass = Math.log(judge.beta), stop = -Math.log(judge.alpha / (all.length + Object.keys(judge.measures).length));
  const at = Math.min(Math.max((rollout.evidence - pass) / (stop - pass), 0), 1);
  const mark = make("i", { class: "mark" });
  mark.style.left = `${100 * at}%`;
  const middle = make("i", { class: "middle" });
  middle.style.left = `${(100 * -pass) / (stop - pass)}%`;
  const worst = Object.entries(rollout.harm).map(([name, value]) => `${name} ${value}`).join(", ");
  return [make("h2", {}, "Evidence in this step"),
    make("div", { class: "gauge", role: "img", "aria-label": `Evidence against the version: ${rollout.evidence}; it passes at ${pass.toFixed(1)} and is stopped at ${stop.toFixed(1)}` }, middle, mark),
    make("p", { class: "ends soft" }, make("span", {}, `passes at ${pass.toFixed(1)}`), make("b", {}, `${rollout.evidence}`), make("span", {}, `stops at ${stop.toFixed(1)}`)),
    worst ? make("p", { class: "soft small" }, `Against devices without the version, stopped at ${stop.toFixed(1)}: ${worst}`) : ""];
}

function figures({ rollout }) {
  const of = (verdict) => link(["devices"], { search: `rollout=${rollout.id} verdict=${verdict}` });
  return facts([
    { figure: count(rollout.members), label: "devices were given it", to: link(["devices"], { search: `rollout=${rollout.id}` }) },
    { figure: count(rollout.good), label: "did well", kind: rollout.good ? "good" : "", to: rollout.good ? of("good") : "" },
    { figure: count(rollout.bad), label: "failed", kind: rollout.bad ? "poor" : "", to: rollout.bad ? of("bad") : "" },
    { figure: count(rollout.open), label: "not known yet", to: rollout.open ? of("open") : "" },
    rollout.status === "aborted" && { figure: count(rollout.returning), label: "are still to return" },
    { figure: percent(rollout.percent), label: `of the cohort, step ${rollout.step + 1} of ${rollout.plan.steps.length}` },
  ]);
}

const clock = (time) => date(time).slice(5, 16);

function progress({ rollout, progress }) {
  const series = [
    { label: "devices", kind: "c0", values: progress.members }, { label: "did well", kind: "c3", values: progress.good }, { label: "failed", kind: "c1", values: progress.bad },
  ];
  const events = rollout.decisions.map((one) => ({ time: one.time, label: `${date(one.time)}: ${one.kind} ${one.text}` }));
  return [make("h2", {}, "Progress"), curves("Devices over time", progress.times, series, events, clock)];
}

const patterns = (cohort) => Object.entries(cohort).map(([name, all]) => `${name}=${all.join("|")}`).join(", ") || "all";

export const rollout = {
  title: ({ parts }) => `Rollout ${parts[0]}`,
  asks: ({ parts }) => ({ rollout: path(["rollouts", parts[0]]), progress: path(["rollouts", parts[0], "progress"]) }),
  parts: (address, me, then) => [
    [({ rollout }) => [rollout.status, rollout.reason, rollout.plan], ({ rollout }) => [
      make("p", { class: "row" }, make("a", { href: link(["models", rollout.plan.application, rollout.plan.version]) }, `${rollout.plan.application} ${rollout.plan.version}`), chip(rollout.status)),
      rollout.reason ? make("p", {}, rollout.reason) : ""]],
    [({ rollout }) => rollout.status, ({ rollout }) => orders(rollout, me, then)],
    [({ rollout }) => [rollout.members, rollout.good, rollout.bad, rollout.open, rollout.returning, rollout.step, rollout.status], figures],
    [({ rollout }) => [rollout.step, rollout.open, rollout.members, rollout.status, rollout.good, rollout.bad, rollout.neutral], ({ rollout }) => [steps(rollout), verdicts(rollout)]],
    [({ rollout }) => [rollout.evidence, rollout.harm, rollout.status], evidence],
    [({ rollout, progress }) => [progress, rollout.decisions], progress],
    [({ rollout }) => rollout.decisions, ({ rollout }) => [make("h2", {}, "Decisions"),
      table(["when", "what", "by", "why"], rollout.decisions.toReversed().map((one) => [date(one.time), one.kind, one.by, one.text || NONE]), "None.", "stack")]],
    [({ rollout }) => rollout.plan, ({ rollout }) => [make("h2", {}, "Plan"), pairs({
      channel: rollout.plan.channel, devices: patterns(rollout.plan.cohort), steps: rollout.plan.steps.map(percent).join(", "),
      "least time of a step": span(rollout.plan.soak), "decided after": span(rollout.plan.patience), priority: String(rollout.plan.priority),
      "may fail": percent(100 * rollout.plan.judge.acceptable), "may not pass": percent(100 * rollout.plan.judge.unacceptable) })]],
  ],
};
