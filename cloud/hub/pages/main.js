// Logging in, addresses, and the clock of the whole: each page is asked for again every few seconds while it is looked at.
import { ask } from "./asking.js";
import audit from "./audit.js";
import { device, devices } from "./devices.js";
import { field, make, sections } from "./dom.js";
import fleet from "./fleet.js";
import { model, models } from "./models.js";
import { approvals, rollout, rollouts } from "./rollouts.js";
import { span } from "./words.js";

const EVERY = 2; // seconds between two requests for a page's data, unless the page says otherwise
const SLOW = 30; // the most, while the hub does not answer
/** By the first part of an address: the page of all, and that of one with the parts that follow. */
const PAGES = { fleet: [fleet], devices: [devices, device], approvals: [approvals], rollouts: [rollouts, rollout], models: [models, model], audit: [audit] };

let me = { name: "", scope: "" };
let turn = 0; // grows with every page: what an older one was still waiting for is not drawn
let timer = 0;
let look = () => {};

const header = make("header"), content = make("main", { id: "content", tabindex: "-1" });
const notice = make("p", { role: "status", class: "notice" }), trouble = make("p", { role: "alert", class: "notice poor" });

/** A short message, for a while. */
function say(text) {
  notice.textContent = text;
  setTimeout(() => notice.textContent === text && (notice.textContent = ""), 8000);
}

/** A part of an address as it is meant; one that is written wrongly, as it is. */
function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What an address says: the page, its parts and its query. */
function address() {
  const [words, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = (words || "fleet").split("/").map(plain);
  const kinds = Object.hasOwn(PAGES, name) ? PAGES[name] : PAGES.fleet;
  return { name: Object.hasOwn(PAGES, name) ? name : "fleet", parts, query: Object.fromEntries(new URLSearchParams(query)), page: kinds[parts[0] ? kinds.length - 1 : 0] };
}

function navigation(here) {
  const links = Object.entries(PAGES).map(([name, [page]]) => make("a", { href: `#/${name}`, "aria-current": name === here ? "page" : null }, page.title({ parts: [] })));
  const out = async () => {
    await ask("v1/login", "DELETE").catch(() => {});
    me = { name: "", scope: "" };
    show();
  };
  header.replaceChildren(make("strong", {}, "msedge hub"), make("nav", { "aria-label": "Hub" }, links),
    make("div", { class: "who" }, make("span", { class: "soft" }, `${me.name}, ${me.scope}`), make("button", { type: "button", id: "logout", click: out }, "Log out")));
}

/** The form for the token. */
function login(why = "") {
  turn++;
  clearTimeout(timer);
  document.title = "Log in – msedge hub";
  header.replaceChildren(make("strong", {}, "msedge hub"));
  trouble.textContent = "";
  const told = make("p", { class: "poor", role: "alert" }, why);
  const send = async (event) => {
    event.preventDefault();
    try {
      me = await ask("v1/login", "POST", { token: new FormData(form).get("token").trim() });
      form.reset();
      show();
    } catch (error) {
      told.textContent = error.message;
    }
  };
  const token = field("token", "Token", { type: "password", autocomplete: "current-password", required: true, help: "An operator's decides, a viewer's looks: msedge hub token add NAME --scope operator" });
  const form = make("form", { class: "card login", submit: send }, make("h1", {}, "Log in"), token, told, make("button", { class: "main" }, "Log in"));
  content.replaceChildren(form);
  document.getElementById("field-token").focus();
}

/** Show the page of the address, and keep it up to date. */
function show() {
  if (!me.scope) return login();
  const own = ++turn, at = address(), { page } = at;
  clearTimeout(timer);
  navigation(at.name);
  const title = page.title(at);
  document.title = `${title} – msedge hub`;
  const place = make("div"), heading = make("h1", { tabindex: "-1" }, title);
  content.replaceChildren(heading, make("div", {}, page.head ? page.head(at) : ""), place);
  const draw = sections(place, page.parts(at, me, (text) => (say(text), look())));
  const asks = Object.entries(page.asks(at));
  let failed = 0, since = Date.now();
  look = async () => {
    clearTimeout(timer);
    try {
      const found = await Promise.all(asks.map(([, path]) => ask(path)));
      if (own !== turn) return;
      draw(Object.fromEntries(asks.map(([name], i) => [name, found[i]])));
      content.classList.remove("stale");
      trouble.textContent = "";
      failed = 0;
      since = Date.now();
    } catch (error) {
      if (own !== turn) return;
      if (error.status === 401) return login("Your login has ended.");
      failed++;
      content.classList.add("stale");
      const old = Date.now() - since > 5000 ? ` What you see is ${span((Date.now() - since) / 1000)} old.` : "";
      trouble.textContent = `${error.message}.${old}`;
    }
    timer = setTimeout(() => !document.hidden && look(), 1000 * Math.min((page.every || EVERY) * 2 ** failed, Math.max(SLOW, page.every || 0)));
  };
  look();
}

/** To another page: readers of screens are told by the heading, which gets the focus. */
function move() {
  if (!me.scope) return;
  show();
  content.querySelector("h1").focus();
}

async function begin() {
  const skip = make("a", { class: "skip", href: "#content", click: (event) => (event.preventDefault(), content.focus()) }, "Skip to the content");
  document.body.replaceChildren(skip, header, trouble, notice, content);
  addEventListener("hashchange", move);
  document.addEventListener("visibilitychange", () => !document.hidden && me.scope && look());
  try {
    me = await ask("v1/login");
    show();
  } catch (error) {
    login(error.message);
  }
}

begin();
