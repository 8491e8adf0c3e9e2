// A federated run: this page trains what a server asks for on its own digits, and sends changes of the model, no digits.

import { load } from "./digits/msedge.mjs";
import { Device, join } from "./digits/federated.mjs";
import { examples } from "./digits.mjs";
import { part } from "./answers.mjs";

const SAID = {
  waiting: () => "waiting for work",
  training: ({ round, step, steps }) => `round ${round + 1}: step ${step ?? 0} of ${steps ?? "?"}`,
  answered: () => "sent a change of the model",
  refused: ({ why }) => `the server refused the answer: ${why}`,
  lost: ({ why }) => `trying again: ${why}`,
};
let leaving = null;

async function takePart(event) {
  event.preventDefault();
  const [url, name, token] = ["server", "device", "token"].map((id) => part(id).value.trim()), size = examples.inputs[0].length;
  const x = new Float32Array(examples.inputs.length * size);
  for (const [i, input] of examples.inputs.entries()) x.set(input, i * size);
  const labels = BigInt64Array.from(examples.labels, BigInt), count = labels.length;
  leaving = new AbortController();
  part("join").disabled = !(part("leave").disabled = false);
  let answered = 0;
  const onProgress = (progress) => {
    answered += progress.state === "answered";
    part("round-said").textContent = `${count} digits here; ${SAID[progress.state](progress)}`;
  };
  try {
    // A model of its own: what this page learned for its user stays as it is.
    const device = new Device({ name, model: await load(), inputs: { x }, labels });
    await join({ url, token, device, signal: leaving.signal, patience: 60, onProgress });
    part("round-said").textContent = `The run is over; this page answered ${answered} times.`;
  } catch (error) {
    part("round-said").textContent = leaving.signal.aborted ? "left the run" : error.message;
  }
  part("leave").disabled = !(part("join").disabled = false);
}

/** Makes this part of the page ready. */
export function start() {
  part("rounds").addEventListener("submit", takePart);
  part("leave").addEventListener("click", () => leaving.abort());
  part("join").disabled = false;
}
