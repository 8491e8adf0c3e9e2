"use strict";
// Shared by the pages. Data from the gateway is always inserted as text, never as markup.

/** Create an element: attributes by name, functions as event listeners, then its children; null and "" are left out. */
function make(tag, about = {}, ...inside) {
  const drawn = ["svg", "g", "line", "rect", "text", "polyline", "circle", "title"].includes(tag);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...inside.flat().filter((part) => part != null && part !== ""));
  return made;
}

const KEPT = "msedge-token";
/** The token is kept for this tab only. */
const token = {
  get: () => sessionStorage.getItem(KEPT) || "",
  set: (text) => (text ? sessionStorage.setItem(KEPT, text) : sessionStorage.removeItem(KEPT)),
};

/** fetch with the token; the path is relative to this page's folder, as a proxy may serve the gateway under a prefix. */
function ask(path, { headers = {}, ...rest } = {}) {
  const all = new Headers(headers);
  if (token.get()) all.set("Authorization", `Bearer ${token.get()}`);
  return fetch(new URL(path.replace(/^\//, ""), new URL(".", location.href)), { ...rest, headers: all });
}

/** A form for the token; `then` is called after a change. */
function tokenForm(then) {
  const field = make("input", { type: "password", id: "token", autocomplete: "off", placeholder: "API token", value: token.get() });
  const keep = (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    then();
  };
  return make("form", { class: "row", submit: keep }, make("label", { for: "token", class: "soft" }, "Token"), field, make("button", {}, "Use"));
}

function heading(title, chip, ...links) {
  const anchors = links.map(([to, words]) => make("a", { href: to }, words));
  return make("h1", {}, title, chip, make("nav", {}, anchors));
}
