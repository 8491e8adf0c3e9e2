// Models: the versions that the repository has, and where each comes from and where it runs.
import { link, path } from "./asking.js";
import { make } from "./dom.js";
import { chip, facts, pairs, short, table } from "./drawing.js";
import { starting } from "./orders.js";
import { count, date, NONE, size } from "./words.js";

/** Versions of one application, those of the longest channel last in it first. */
function versions(name, { versions, channels }, running) {
  const place = (version) => Math.max(-1, ...Object.values(channels).map((all) => all.indexOf(version)));
  const sorted = versions.toSorted((a, b) => place(b) - place(a) || (a < b ? 1 : -1));
  const rows = sorted.map((version) => [
    make("a", { href: link(["models", name, version]) }, version),
    Object.entries(channels).filter(([, all]) => all.includes(version)).map(([channel, all]) => (all.at(-1) === version ? `${channel} (newest)` : channel)).join(", ") || NONE,
    make("a", { href: link(["devices"], { search: `${name}=${version}` }) }, count(running?.[version] || 0)),
  ]);
  return [make("h2", {}, name), table(["version", "channels", "#devices"], rows, "No version yet.")];
}

export const models = {
  title: () => "Models",
  every: 10,
  asks: () => ({ releases: "v1/releases", fleet: "v1/fleet" }),
  parts: () => [
    [({ releases, fleet }) => [releases, fleet.versions], ({ releases, fleet }) => {
      const found = Object.entries(releases.applications);
      return found.length ? found.map(([name, about]) => versions(name, about, fleet.versions[name])) : make("p", { class: "soft" }, "This hub has no repository, or it has no application yet.");
    }],
  ],
};

/** The chain of what the version was made of, and the devices that run it. */
function chain({ one }) {
  const links = one.chain.map((made, i) => make("li", { class: made.kind === "release" ? "here" : "" }, make("b", {}, `${i + 1} · ${made.kind}`),
    make("code", { title: made.digest }, made.digest.length > 24 ? made.digest.slice(0, 16) : made.digest), make("span", {}, made.text),
    make("i", {}, made.sources.length ? `made from ${made.sources.map((at) => at + 1).join(", ")}` : "from outside")));
  const where = make("li", {}, make("b", {}, `${links.length + 1} · devices`), make("a", { href: link(["devices"], { search: `${one.application}=${one.version}` }) }, `${count(one.devices)} run it`), make("i", {}, `made from ${links.length}`));
  return [make("h2", {}, "Lineage"), make("ol", { class: "chain" }, links, where)];
}

export const model = {
  title: ({ parts }) => `${parts[0]} ${parts[1]}`,
  every: 10,
  asks: ({ parts }) => ({ one: path(["releases", parts[0], parts[1]]) }),
  parts: (address, me, then) => [
    [({ one }) => [one.devices, one.channels, one.files], ({ one }) => facts([
      { figure: count(one.devices), label: "devices run it", to: link(["devices"], { search: `${one.application}=${one.version}` }) },
      { figure: one.channels.join(", ") || "none", label: "channels" },
      { figure: size(Object.values(one.files).reduce((sum, file) => sum + file.size, 0)), label: `in ${Object.keys(one.files).length} files` },
    ])],
    [({ one }) => one.channels, ({ one }) => {
      const button = starting(one.application, one.version, one.channels, me, then);
      return button ? make("div", { class: "row orders" }, button) : "";
    }],
    [({ one }) => [one.chain, one.devices], chain],
    [({ one }) => one.files, ({ one }) => [make("h2", {}, "Files"), table(["file", "#size", "bundle", "~SHA-256", "#pieces"],
      Object.entries(one.files).map(([name, file]) => [name, size(file.size), short(file.digest), short(file.sha256), count(file.pieces)]))]],
    [({ one }) => one.requirements, ({ one }) => [make("h2", {}, "What a device must have"), pairs({
      memory: one.requirements.memory ? size(one.requirements.memory) : "", latency: one.requirements.latency_ms ? `${one.requirements.latency_ms} ms at most` : "",
      targets: one.requirements.targets.join(", "), msedge: one.requirements.runtime })]],
    [({ one }) => one.rollouts, ({ one }) => [make("h2", {}, "Rollouts"), table(["rollout", "state", "started"],
      one.rollouts.map((each) => [make("a", { href: link(["rollouts", each.id]) }, each.id), chip(each.status), date(each.started)]), "It was not rolled out.")]],
  ],
};
