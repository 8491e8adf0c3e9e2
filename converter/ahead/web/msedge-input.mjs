// A model's inputs from pictures and sounds, by the processing that its bundle declares (processing.json): the steps that
// the gateway takes (edge/gateway/processing), one row after the other. Other sources are not read here.

import { ARRAYS } from "./msedge-flat.mjs";
import { fail, STEPS } from "./msedge-steps.mjs";

/** The modules that read what an input begins with, fetched where one is declared: read(item, options), STEPS. */
const SOURCES = { image: () => import("./msedge-picture.mjs"), audio: () => import("./msedge-sound.mjs") };

/** Inputs for a run: files by the names that the declaration gives them, one or a list of as many as the batch has. */
export async function prepared(declaration, files, ports) {
  const given = { ...files };
  for (const { name, feeds, steps } of declaration.inputs ?? []) {
    if (!Object.hasOwn(given, name)) continue;
    const port = ports.find((each) => each.name === feeds), [source, ...others] = steps;
    if (!port) fail(`it feeds ${feeds}, which is no input of this signature`);
    if (!Object.hasOwn(SOURCES, source.step)) {
      fail(`${name} begins with ${source.step}, and what is read here is ${Object.keys(SOURCES).join(" and ")}`);
    }
    const kind = await SOURCES[source.step](), known = { ...kind.STEPS, ...STEPS };
    const unknown = others.find(({ step }) => !Object.hasOwn(known, step));
    if (unknown) fail(`the step ${unknown.step} of ${name} is not one of ${Object.keys(known).join(", ")}`);
    const rows = Array.isArray(given[name]) ? given[name] : [given[name]];
    delete given[name];
    given[feeds] = joined(rows.map((row) => others.reduce(applied(known), kind.read(row, source))), port);
  }
  return given;
}

const applied = (known) => (tensor, step) => known[step.step](tensor, step);

function joined(rows, port) {
  const alone = rows.length === 1 && `${rows[0].shape}` === `${port.shape}`; // a model without an axis for rows
  const wanted = alone ? port.shape : port.shape.slice(1), count = port.shape.reduce((product, size) => product * size, 1);
  const made = new ARRAYS[port.dtype](count);
  if (!alone && rows.length !== port.shape[0]) fail(`${port.name} takes ${port.shape[0]} rows, got ${rows.length}`);
  for (const [i, { data, shape, dtype }] of rows.entries()) {
    if (`${shape}` !== `${wanted}` || dtype !== port.dtype) {
      fail(`its steps make ${dtype} [${shape}] for ${port.name}, which takes ${port.dtype} [${wanted}]`);
    }
    made.set(data, i * data.length);
  }
  return made;
}
