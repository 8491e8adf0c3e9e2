// What tests ask of a built folder, in one process: node run.mjs FOLDER TASK, with JSON on stdin and on stdout.
//
//     run     {runs: [{signature, inputs: {name: base64}}], state: {name: base64} or null}, run in this order after a
//             self-test -> {outputs: [{name: base64}], state: {name: base64}, compared, signatures, states, bundle}
//     fails   {name: numbers}, inputs of a run -> {error, before, after: the state}
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
  noSignature: async () => (await load()).run((await load()).sampleInputs(), "other"),
  noState: async () => (await load()).setState({ h: new Float32Array(1) }),
  noObject: async () => (await load()).setState(null),
  notArrays: async () => (await load()).run(all(await load(), (a) => Array.from(a))),
};
function all(model, change) {
  return Object.fromEntries(Object.entries(model.sampleInputs()).map(([name, array]) => [name, change(array)]));
}

let answer;
if (task === "run") {
  const model = await load(), { runs, state } = JSON.parse(readFileSync(0));
  const arrays = (given, like) => Object.fromEntries(Object.entries(given).map(
    ([name, text]) => [name, new like[name].constructor(Uint8Array.from(Buffer.from(text, "base64")).buffer)],
  ));
  const texts = (given) => Object.fromEntries(Object.entries(given).map(([name, array]) => [name, base64(array)]));
  if (state) model.setState(arrays(state, model.state()));
  const before = JSON.stringify(texts(model.state())), compared = model.selfTest();
  if (JSON.stringify(texts(model.state())) !== before) throw new Error("the self-test changed the state");
  const outputs = runs.map(({ signature, inputs }) => {
    return texts(model.run(arrays(inputs, model.sampleInputs(signature)), signature));
  });
  const { signatures, states, bundle } = model;
  answer = { outputs, state: texts(model.state()), compared, signatures, states, bundle };
} else if (task === "fails") {
  const model = await load(), given = JSON.parse(readFileSync(0)), like = model.sampleInputs();
  const inputs = Object.fromEntries(Object.entries(given).map(([name, list]) => {
    return [name, like[name].constructor.from(list, like[name] instanceof BigInt64Array ? BigInt : Number)];
  }));
  model.run(model.sampleInputs());
  const shown = () => JSON.stringify(Object.values(model.state()).map(base64));
  const before = shown(), error = await told(() => model.run(inputs));
  answer = { error, before, after: shown() };
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
