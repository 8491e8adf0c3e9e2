// Elements, sections that are drawn again when their data change, dialogs. Data are inserted as text, never as markup.

const DRAWN = new Set(["svg", "g", "line", "rect", "text", "polyline", "circle", "title"]);

/** An element: attributes by name, functions as listeners, then what is in it; null and "" are left out. */
export function make(tag, about = {}, ...inside) {
  const made = DRAWN.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...inside.flat(Infinity).filter((part) => part != null && part !== ""));
  return made;
}

/** Sections in a place. parts: for each what it shows of the data, and how that is drawn. What has the focus keeps it,
 * by its id, when its section is drawn again. */
export function sections(place, parts) {
  const places = parts.map(() => make("section"));
  const shown = [];
  place.replaceChildren(...places);
  return (data) => parts.forEach(([read, draw], i) => {
    const now = JSON.stringify([read(data)]);
    if (now === shown[i]) return;
    shown[i] = now;
    const focus = places[i].contains(document.activeElement) ? document.activeElement.id : "";
    places[i].replaceChildren(...[draw(data)].flat(Infinity).filter((part) => part != null && part !== ""));
    if (focus) document.getElementById(focus)?.focus();
  });
}

/** A dialog with a form. act: gets the form's data, and may throw what the dialog then shows. */
export function dialog(title, fields, button, act) {
  const told = make("p", { class: "poor", role: "alert" });
  const done = make("button", { class: `main ${button.kind || ""}`, id: "confirm" }, button.text);
  const send = async (event) => {
    event.preventDefault();
    done.disabled = true;
    try {
      await act(new FormData(form));
      box.close();
    } catch (error) {
      told.textContent = error.message;
      done.disabled = false;
    }
  };
  const cancel = make("button", { type: "button", click: () => box.close() }, "Cancel");
  const form = make("form", { submit: send }, make("h2", { id: "asked" }, title), fields, told, make("div", { class: "row" }, done, cancel));
  const box = make("dialog", { "aria-labelledby": "asked", close: () => box.remove() }, form);
  document.body.append(box);
  box.showModal();
}

/** A labelled field of a form. */
export function field(name, label, about = {}) {
  const { tag = "input", inside = [], help = "", ...rest } = about;
  const note = help && make("small", { class: "soft", id: `${name}-help` }, help);
  const made = make(tag, { name, id: `field-${name}`, "aria-describedby": help ? `${name}-help` : null, ...rest }, inside);
  return make("div", { class: "field" }, make("label", { for: `field-${name}` }, label), made, note);
}
