// The fleet at a glance: how many devices, whether they check in, which versions run, which rollouts are under way.
import { link } from "./asking.js";
import { make } from "./dom.js";
import { bar, chip, facts, steps, table, verdicts } from "./drawing.js";
import { count, share } from "./words.js";

const COLOURS = ["c0", "c1", "c2", "c3"];

/** What devices check in as, in figures that lead to them. */
function numbers({ fleet }) {
  const health = fleet.health;
  const blocked = fleet.states.blocked || 0;
  const trial = Object.values(health.trial).reduce((a, b) => a + b, 0);
  return facts([
    { figure: count(fleet.devices), label: "devices", to: link(["devices"]) },
    { figure: share(health.current, health.current + health.late + health.never), label: "checked in lately", kind: health.late ? "" : "good" },
    { figure: count(health.late), label: "late", kind: health.late ? "fair" : "", to: health.late ? link(["devices"], { search: "seen=late" }) : "" },
    health.never && { figure: count(health.never), label: "never seen", to: link(["devices"], { search: "seen=never" }) },
    trial && { figure: count(trial), label: "versions on trial" },
    { figure: count(health.failed), label: "failed their last update", kind: health.failed ? "poor" : "", to: health.failed ? link(["devices"], { search: "update=failed" }) : "" },
    blocked && { figure: count(blocked), label: "blocked", to: link(["devices"], { search: "state=blocked" }) },
  ]);
}

/** The versions of one application: the most frequent four in colours, the others together. */
function application(name, versions, outcomes) {
  const found = Object.entries(versions).sort((a, b) => b[1] - a[1]);
  const total = found.reduce((sum, [, number]) => sum + number, 0);
  const parts = found.map(([version, number], i) => ({ label: version || "none", number, kind: COLOURS[i] || "rest" }));
  const rows = parts.map((part, i) => [
    [make("i", { class: `dot ${part.kind}` }), found[i][0] ? make("a", { href: link(["models", name, found[i][0]]) }, part.label) : "none yet"],
    found[i][0] ? make("a", { href: link(["devices"], { search: `${name}=${found[i][0]}` }) }, count(part.number)) : count(part.number),
    share(part.number, total),
  ]);
  const ends = Object.entries(outcomes || {}).sort((a, b) => b[1] - a[1]).map(([kind, number]) => [chip(kind), ` ${count(number)} `]);
  return make("div", { class: "card" }, make("h3", {}, name), bar(name, parts, total), table(["version", "#devices", "#share"], rows),
    ends.length ? make("p", { class: "soft" }, "Last updates ended: ", ends) : "");
}

/** A rollout in a card that leads to it. */
export function card(rollout, more = "") {
  const to = link(["rollouts", rollout.id]);
  return make("div", { class: "card" }, make("h3", {}, make("a", { href: to }, `${rollout.plan.application} ${rollout.plan.version}`), chip(rollout.status)),
    rollout.reason ? make("p", {}, rollout.reason) : "", steps(rollout), verdicts(rollout), more);
}

export default {
  title: () => "Fleet",
  asks: () => ({ fleet: "v1/fleet", running: "v1/rollouts?status=running&most=20", paused: "v1/rollouts?status=paused&most=20" }),
  parts: () => [
    [({ fleet }) => [fleet.devices, fleet.states, fleet.health], numbers],
    [({ running, paused }) => [running, paused], ({ running, paused }) => {
      const found = [...paused.rollouts, ...running.rollouts], left = paused.total + running.total - found.length;
      return [make("h2", {}, "Rollouts under way"),
        found.length ? make("div", { class: "cards" }, found.map((one) => card(one))) : make("p", { class: "soft" }, "None."),
        left ? make("p", {}, make("a", { href: link(["rollouts"]) }, `and ${count(left)} more`)) : ""];
    }],
    [({ fleet }) => [fleet.versions, fleet.health.outcomes], ({ fleet }) => [make("h2", {}, "Versions"),
      Object.keys(fleet.versions).length ? make("div", { class: "cards" }, Object.entries(fleet.versions).sort().map(([name, versions]) => application(name, versions, fleet.health.outcomes[name])))
        : make("p", { class: "soft" }, "No device has reported yet.")]],
  ],
};
