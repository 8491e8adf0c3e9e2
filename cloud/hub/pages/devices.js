// Devices: all, searched and paged by the hub; and one.
import { ask, link, path } from "./asking.js";
import { dialog, make } from "./dom.js";
import { chip, facts, pager, pairs, searching, short, table } from "./drawing.js";
import { devices as amount, ago, count, date, minute, NONE, size } from "./words.js";

const MOST = 50;
const HELP = "Parts of names and values, or NAME=PATTERN as in a cohort: region=north*, ring=0, state=blocked, keys=2.1 for a version.";

const versions = (device) => Object.entries(device.report?.applications || {}).map(([name, one]) => make("div", {}, `${name} ${one.trial || one.version || "none"}`, one.trial ? [" ", chip("trial")] : ""));

/** One row of the list. */
const row = (device) => [
  make("a", { href: link(["devices", device.id]), class: "mono" }, device.id), chip(device.state), ago(device.seen), versions(device),
  device.report?.target || NONE, Object.entries({ ...device.report?.attributes, ...device.labels }).map(([name, value]) => `${name}=${value}`).join(", "),
];

export const devices = {
  title: () => "Devices",
  every: 5,
  head: ({ query }) => searching(query.search || "", "Find devices", HELP, (words) => (location.hash = link(["devices"], { search: words }))),
  asks: ({ query }) => ({ page: path(["fleet", "devices"], { search: query.search, after: query.after, most: MOST }) }),
  parts: ({ query }) => [
    [({ page }) => page.total, ({ page }) => make("p", { role: "status", id: "found" }, amount(page.total))],
    [({ page }) => [page, minute()], ({ page }) => table(["device", "state", "seen", "versions", "~target", "~attributes"], page.devices.map(row), "No device fits.")],
    [({ page }) => page, ({ page }) => pager([
      ["First", query.after ? link(["devices"], { search: query.search }) : ""],
      ["Next", page.more ? link(["devices"], { search: query.search, after: page.devices.at(-1).id }) : ""],
    ])],
  ],
};

/** Whether the device may come; changed by operators, after a question. */
function admission({ device }, me, then) {
  if (me.scope !== "operator") return "";
  const blocked = device.state === "blocked";
  const text = blocked ? "Let it come again" : "Block";
  const says = blocked ? "It checks in and gets updates as before." : "The hub refuses it from now on, whatever session it has. What it runs, it keeps.";
  const act = async () => {
    await ask(path(["fleet", "devices", device.id]), "POST", { state: blocked ? "active" : "blocked" });
    then(blocked ? "the device may come again" : "the device is blocked");
  };
  const open = () => dialog(`${text}?`, make("p", {}, says), { text, kind: blocked ? "main" : "stop" }, act);
  return make("div", { class: "row orders" }, make("button", { id: "admission", type: "button", class: blocked ? "main" : "stop", click: open }, text));
}

function applications({ device }) {
  const rows = Object.entries(device.report?.applications || {}).map(([name, one]) => [
    name, one.version ? make("a", { href: link(["models", name, one.version]) }, one.version) : "none",
    one.trial ? [make("a", { href: link(["models", name, one.trial]) }, one.trial), " ", chip("trial")] : NONE,
    one.outcome ? [chip(one.outcome.kind), ` ${one.outcome.version} ${one.outcome.reason}`] : NONE,
    Object.entries(one.measures).map(([key, measure]) => make("div", {}, `${key} ${+measure.mean.toPrecision(4)} (${count(measure.number)})`)),
  ]);
  return [make("h2", {}, "Applications"), table(["application", "runs", "on trial", "last update", "~measures"], rows, "It has reported none.")];
}

export const device = {
  title: ({ parts }) => `Device ${parts[0]}`,
  asks: ({ parts }) => ({ device: path(["fleet", "devices", parts[0]]) }),
  parts: (address, me, then) => [
    [({ device }) => [device.state, device.seen, device.report, minute()], ({ device }) => {
      const report = device.report;
      return facts([
        { figure: device.state, label: "state", kind: device.state === "active" ? "good" : "poor" },
        { figure: ago(device.seen), label: "seen" },
        report?.target && { figure: report.target, label: "target" },
        report?.free && { figure: size(report.free), label: "free on disk" },
        report?.memory && { figure: size(report.memory), label: "memory" },
        report && report.battery >= 0 && { figure: `${report.battery} %`, label: report.charging ? "battery, charging" : "battery" },
        report?.metered && { figure: "metered", label: "network" },
      ]);
    }],
    [({ device }) => device.state, (data) => admission(data, me, then)],
    [({ device }) => device.report?.applications, applications],
    [({ device }) => [device.report?.attributes, device.report?.runtime, device.labels, device.created, device.certified, device.key], ({ device }) => [make("h2", {}, "What is known"),
      pairs({ ...device.report?.attributes, ...Object.fromEntries(Object.entries(device.labels).map(([name, value]) => [`${name} (label)`, value])), msedge: device.report?.runtime,
        enrolled: date(device.created), "certificate ends": date(device.certified), key: short(device.key) })]],
    [({ device }) => device.rollouts, ({ device }) => [make("h2", {}, "Rollouts"),
      table(["rollout", "how it ended here"], Object.entries(device.rollouts).map(([id, kind]) => [make("a", { href: link(["rollouts", id]) }, id), chip(kind)]), "It is in none.")]],
    [({ device }) => device.events, ({ device }) => [make("h2", {}, "Events"),
      table(["when", "what", "application", ""], device.events.map((one) => [date(one.time), chip(one.kind), `${one.application} ${one.version}`, one.text]), "None are kept.", "stack")]],
  ],
};
