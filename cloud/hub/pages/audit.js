// The audit log, the newest entries first; the hub searches.
import { link, path } from "./asking.js";
import { make } from "./dom.js";
import { pager, searching, short, table } from "./drawing.js";
import { count, date } from "./words.js";

const MOST = 50;
const HELP = "Who did it, what it was, or a part of it, such as the id of a device or a rollout.";

const said = (data) => Object.entries(data).map(([name, value]) => make("div", {}, make("span", { class: "soft" }, `${name} `), typeof value !== "string" ? JSON.stringify(value) : /^[0-9a-f]{64}$/.test(value) ? short(value) : value));

export default {
  title: () => "Audit log",
  every: 5,
  head: ({ query }) => searching(query.search || "", "Find entries", HELP, (words) => (location.hash = link(["audit"], { search: words }))),
  asks: ({ query }) => ({ page: path(["audit", "latest"], { search: query.search, before: query.before, most: MOST }) }),
  parts: ({ query }) => [
    [({ page }) => [page.number, page.head], ({ page }) => [
      make("p", {}, `${count(page.number)} entries, the last with hash `, make("code", { class: "hash", id: "head" }, page.head)),
      make("p", { class: "row" }, make("a", { class: "button", href: "v1/audit/export", download: "audit.jsonl", id: "export" }, "Export"),
        make("span", { class: "soft small" }, "Keep the hash elsewhere: msedge hub audit --from audit.jsonl --verify --head HASH notices every change."))]],
    [({ page }) => page.entries, ({ page }) => table(["#", "when", "who", "what", ""], page.entries.map((one) => [String(one.number), date(one.time), one.who, one.what, said(one.data)]), "No entry fits.", "stack")],
    [({ page }) => page, ({ page }) => pager([
      ["Newest", query.before ? link(["audit"], { search: query.search }) : ""],
      ["Older", page.more ? link(["audit"], { search: query.search, before: page.entries.at(-1).number }) : ""],
    ])],
  ],
};
