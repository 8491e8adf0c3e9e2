// What tests ask of a built folder, in one process: node run.mjs FOLDER TASK, with JSON on stdin and on stdout.
//
//     run     {inputs: {name: base64}} -> {outputs: {name: base64}, compared, inputs, outputs (ports)}
//     load    a file of models, each after its length in 4 bytes -> for each "" or "ErrorName: message"
//     throw   a JavaScript expression's name in CALLS -> "ErrorName: message"
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, task, argument] = process.argv;
const { load, MsedgeError } = await import(pathToFileURL(`${folder}/msedge.mjs`));
const kernels = readFileSync(`${folder}/kernels.wasm`), flat = readFileSync(`${folder}/model.msflat`);
const told = async (action) => {
  try {
    await action();
    return "";
  } catch (error) {
    return `${error instanceof MsedgeError ? "MsedgeError" : `${error.name} (not expected)`}: ${error.message}`;
  }
};
const base64 = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");

const CALLS = {
  noFile: () => load({ model: `${folder}/none.msflat` }),
  noSource: () => load({ model: 3 }),
  noKernels: () => load({ kernels: Buffer.from("nothing") }),
  noModel: () => load({ model: new Uint8Array(4) }),
  noInputs: async () => (await load()).run(),
  unknown: async () => (await load()).run({ ...(await load()).sampleInputs(), other: new Uint8Array(1) }),
  wrongType: async () => (await load()).run(all(await load(), (a) => new Uint8ClampedArray(a.length))),
  wrongLength: async () => (await load()).run(all(await load(), (a) => a.slice(1))),
  notArrays: async () => (await load()).run(all(await load(), (a) => Array.from(a))),
};
function all(model, change) {
  return Object.fromEntries(Object.entries(model.sampleInputs()).map(([name, array]) => [name, change(array)]));
}

let answer;
if (task === "run") {
  const model = await load(), sample = model.sampleInputs();
  const given = JSON.parse(readFileSync(0)).inputs;
  const inputs = Object.fromEntries(Object.entries(given).map(([name, text]) => {
    const bytes = Buffer.from(text, "base64");
    return [name, new sample[name].constructor(Uint8Array.from(bytes).buffer)];
  }));
  const first = model.run(inputs), compared = model.selfTest(), second = model.run(inputs);
  const outputs = Object.fromEntries(Object.entries(second).map(([name, array]) => [name, base64(array)]));
  const same = Object.entries(first).every(([name, array]) => base64(array) === outputs[name]);
  answer = { outputs, compared, same, ports: { inputs: model.inputs, outputs: model.outputs }, bundle: model.bundle };
} else if (task === "load") {
  const models = readFileSync(argument), found = [];
  for (let at = 0; at < models.length; ) {
    const size = models.readUInt32LE(at);
    const model = models.subarray(at + 4, at + 4 + size);
    found.push(await told(() => load({ model, kernels })));
    at += 4 + size;
  }
  answer = found;
} else if (task === "throw") {
  answer = Object.fromEntries(await Promise.all(Object.entries(CALLS).map(async ([name, call]) => [name, await told(call)])));
}
console.log(JSON.stringify(answer));
