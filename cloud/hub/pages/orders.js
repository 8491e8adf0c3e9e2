// What an operator may do to a rollout: each is asked once more, with a reason for the audit log.
import { ask, path } from "./asking.js";
import { dialog, field, make } from "./dom.js";
import { devices } from "./words.js";

const WHY = () => field("why", "Reason, for the audit log", { maxlength: 500, autocomplete: "off" });

const ORDERS = {
  resume: {
    text: "Approve", kind: "main", asks: "Let it go on?",
    says: () => "The step begins anew: what spoke against it does not count any more.",
  },
  pause: {
    text: "Pause", kind: "", asks: "Pause it?",
    says: () => "No more devices get the version, until it is approved. Those that have it keep it.",
  },
  abort: {
    text: "Abort", kind: "stop", asks: "Abort it?",
    says: (rollout) => `This cannot be undone. Given the version so far: ${devices(rollout.members)}.`,
    more: () => make("label", { class: "row" }, make("input", { type: "checkbox", name: "back", checked: true }), "They return to what they had before"),
  },
};
const ALLOWED = { running: ["pause", "abort"], paused: ["resume", "abort"], completed: ["abort"], aborted: [] };

/** The buttons for a rollout; none for a viewer. then: called when an order was carried out. */
export function orders(rollout, me, then) {
  if (me.scope !== "operator") return "";
  const made = (ALLOWED[rollout.status] || []).map((name) => {
    const order = ORDERS[name], over = name === "abort" && rollout.status === "completed";
    const [text, asks] = over ? ["Take back", "Take it back?"] : [order.text, order.asks];
    const act = async (form) => {
      const back = name === "abort" ? { back: form.get("back") === "on" } : {};
      await ask(path(["rollouts", rollout.id, name]), "POST", { why: form.get("why").trim(), ...back });
      then(`${rollout.plan.application} ${rollout.plan.version}: ${text.toLowerCase()} was carried out`);
    };
    const open = () => dialog(`${rollout.plan.application} ${rollout.plan.version}: ${asks}`,
      [make("p", {}, order.says(rollout)), order.more ? order.more() : "", WHY()], { text, kind: order.kind }, act);
    return make("button", { class: order.kind, id: `${name}-${rollout.id}`, type: "button", click: open }, text);
  });
  return made.length ? make("div", { class: "row orders" }, made) : "";
}

const numbers = (text) => text.split(/[\s,;%]+/).filter((word) => word).map(Number);

/** "region=north*, ring=0|1" as a cohort. */
function cohort(text) {
  const found = {};
  for (const word of text.split(",").map((one) => one.trim()).filter((one) => one)) {
    const [key, ...rest] = word.split("=");
    if (!rest.length) throw new Error(`expected NAME=PATTERN, got ${word}`);
    found[key.trim()] = rest.join("=").split("|").map((one) => one.trim());
  }
  return found;
}

/** A button that rolls a version out. channels: those that list it. */
export function starting(application, version, channels, me, then) {
  if (me.scope !== "operator" || !channels.length) return "";
  const act = async (form) => {
    const plan = {
      application, version, channel: form.get("channel"), steps: numbers(form.get("steps")), cohort: cohort(form.get("cohort")),
      soak: 60 * Number(form.get("soak")), patience: 3600 * Number(form.get("patience")), priority: Number(form.get("priority")),
    };
    const made = await ask(path(["rollouts"]), "POST", plan);
    then(`${application} ${version}: its rollout began`);
    location.hash = `#/rollouts/${encodeURIComponent(made.id)}`;
  };
  const fields = () => [
    make("p", {}, "The first step is the canary: the hub stops the rollout by itself if its devices do badly."),
    field("channel", "Channel", { tag: "select", inside: channels.map((name) => make("option", {}, name)) }),
    field("steps", "Steps, in percent of the devices", { value: "1, 5, 25, 100", required: true, inputmode: "text" }),
    field("cohort", "Devices", { placeholder: "all", help: "region=north*, ring=0|1", autocomplete: "off" }),
    make("div", { class: "half-fields" },
      field("soak", "Least minutes of a step", { type: "number", min: 0, step: "any", value: 60, required: true }),
      field("patience", "Hours until it is decided", { type: "number", min: 0, step: "any", value: 24, required: true }),
      field("priority", "Priority", { type: "number", min: -1000, max: 1000, step: 1, value: 0, required: true })),
  ];
  const open = () => dialog(`Roll out ${application} ${version}`, fields(), { text: "Start" }, act);
  return make("button", { class: "main", id: `start-${application}-${version}`, type: "button", click: open }, "Roll out…");
}
