// What tests ask of the modules of a folder, in one process: node device.mjs FOLDER TASK, with JSON on stdin and stdout.
//
//     draws    [{seed, count, steps, batch, labels, share, some}] -> the draws of each
//     codec    {names, leaves, values, data} -> {data, values}: encoded and decoded, as base64
//     answer   {examples, messages: [base64]} -> [base64 or "error: …"], of a device that has these examples
//     join     {url, token, examples} -> the states that it had; {"wait": round} in examples: stops there
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, task] = process.argv;
const from = (name) => import(pathToFileURL(`${folder}/${name}`));
const given = JSON.parse(readFileSync(0));
const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const text = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
const floats = (content) => new Float32Array(bytes(content).buffer);

async function device({ name, inputs, labels }) {
  const { load } = await from("msedge.mjs"), { Device } = await from("federated.mjs");
  const model = await load(), shown = model.signatures.gradients.inputs.find((port) => port.name === "labels");
  const kind = shown.dtype === "int64" ? BigInt64Array : shown.dtype === "int32" ? Int32Array : Float32Array;
  const arrays = Object.fromEntries(Object.entries(inputs).map(([key, content]) => [key, floats(content)]));
  return new Device({ name, model, inputs: arrays, labels: new kind(bytes(labels).buffer), secret: new Uint8Array(32) });
}

const TASKS = {
  async draws() {
    const { Generator, order, split, supportQuery } = await from("federated-draws.mjs");
    return given.map(({ seed, count, steps, batch, labels, share, some }) => {
      const generator = new Generator(BigInt(seed));
      const lists = (parts) => parts.map((part) => [...part]);
      const whole = [...order(count, generator, steps, batch)];
      const kinds = [Int32Array.from(labels), Float32Array.from(labels)];
      return [whole, ...kinds.flatMap((kind) => [split(kind, share, generator), supportQuery(kind, some, generator)].map(lists))];
    });
  },
  async codec() {
    const { Codec } = await from("federated-messages.mjs"), codec = new Codec(given.names);
    const data = await codec.encode(given.leaves, floats(given.values));
    return { data: text(data), values: text(await codec.decode(given.leaves, bytes(given.data))) };
  },
  async answer() {
    const made = await device(given.examples), found = [];
    for (const message of given.messages) {
      found.push(await made.answer(bytes(message)).then(text, (error) => `${error.name}: ${error.message}`));
    }
    return found;
  },
  async join() {
    const { join } = await from("federated.mjs"), states = [];
    await join({
      url: given.url, token: given.token, device: await device(given.examples),
      onProgress: ({ state, why }) => states.push(why === undefined ? state : `${state}: ${why}`),
    });
    return states;
  },
};
process.stdout.write(JSON.stringify(await TASKS[task]()));
