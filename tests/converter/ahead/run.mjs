// What tests ask of a built folder, in one process: node run.mjs FOLDER TASK, with JSON on stdin and on stdout.
//
//     run     {runs: [{signature, inputs: {name: base64}}], state: {name: base64} or null}, run in this order after a
//             self-test, by `threads` -> {outputs: [{name: base64}], state: {name: base64}, compared, signatures, states,
//             bundle, kernels, threads}
//     fails   {name: numbers}, inputs of a run -> {error, before, after: the state}
//     load    a file of models -> for each "" or "ErrorName: message"
//     states  the same for state files
//     state   a state file that is read, another that is written -> {names, same: what that one holds}
//     prepare    a picture, {width, height, data: base64 of RGBA} -> the first output for it, in base64
//     engines    what loading says where WebAssembly, SIMD or memory is lacking
//     unshared, workers, stops    how several threads fail: without shared memory, without a worker, in a run
//     throw   a JavaScript expression's name in CALLS -> "ErrorName: message"
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, task, argument, last] = process.argv;
const { load, MsedgeError } = await import(pathToFileURL(`${folder}/msedge.mjs`));
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
  noFile: () => load(`${folder}/none`),
  noSource: () => load({ files: { "model.msflat": 3 } }),
  noList: () => load({ files: { "kernels.json": Buffer.from("{}") } }),
  noKernels: () => load({ threads: 1, files: { "kernels.wasm": Buffer.from("nothing") } }),
  noModel: () => load({ files: { "model.msflat": new Uint8Array(4) } }),
  threads: () => load({ threads: 1.5 }),
  closed: async () => {
    const model = await load();
    model.close();
    model.run(model.sampleInputs());
  },
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

/** What an action on each file of a file of files says: each after its length in 4 bytes. */
async function each(action) {
  const files = readFileSync(argument), found = [];
  for (let at = 0; at < files.length; ) {
    const size = files.readUInt32LE(at), file = files.subarray(at + 4, at + 4 + size);
    found.push(await told(() => action(file)));
    at += 4 + size;
  }
  return found;
}

let answer;
if (task === "run") {
  const { runs, state, threads } = JSON.parse(readFileSync(0)), model = await load({ threads });
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
  const { signatures, states, bundle, kernels } = model;
  answer = { outputs, state: texts(model.state()), compared, signatures, states, bundle, kernels, threads: model.threads };
  model.close();
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
  answer = await each((model) => load({ threads: 1, files: { "model.msflat": model } }));
} else if (task === "states") {
  const model = await load();
  answer = await each((file) => model.loadStateFile(file));
} else if (task === "state") {
  const model = await load();
  await model.loadStateFile(argument);
  const file = await model.stateFile(), other = await load();
  writeFileSync(last, file);
  await other.loadStateFile(file);
  const shown = (from) => JSON.stringify(Object.entries(from.state()).map(([name, array]) => [name, base64(array)]));
  answer = { names: Object.keys(model.state()).sort(), same: shown(model) === shown(other) };
} else if (task === "prepare") {
  const { width, height, data } = JSON.parse(readFileSync(0)), model = await load();
  const inputs = await model.prepare({ file: { width, height, data: new Uint8ClampedArray(Buffer.from(data, "base64")) } });
  answer = base64(Object.values(model.run(inputs))[0]);
} else if (task === "engines") {
  const { compile, Memory } = WebAssembly, WholeAssembly = WebAssembly;
  const refuse = (name) => async () => Promise.reject(new WholeAssembly.CompileError(name));
  WebAssembly.compile = refuse("invalid value type 'v128'"); // as engines without SIMD say
  const noSimd = await told(() => load({ threads: 1 }));
  WebAssembly.compile = compile;
  WebAssembly.Memory = function refused() {
    throw new RangeError("could not allocate memory");
  };
  const noMemory = await told(() => load({ threads: 1 }));
  WebAssembly.Memory = Memory;
  delete globalThis.WebAssembly;
  const noWebAssembly = await told(() => load({ threads: 1 }));
  globalThis.WebAssembly = WholeAssembly;
  answer = { noSimd, noMemory, noWebAssembly, whole: await told(() => load({ threads: 1 })) };
} else if (task === "unshared") {
  globalThis.crossOriginIsolated = false; // as in a page without the headers
  const { threads, kernels } = await load();
  answer = { default: { threads, kernels }, asked: await told(() => load({ threads: 2 })) };
} else if (task === "workers") {
  answer = await told(() => load({ threads: 2 }));
} else if (task === "stops") {
  // The engine's memory, so that bases can be made wrong behind the model's back.
  const { Memory } = WebAssembly, made = [];
  WebAssembly.Memory = class extends Memory {
    constructor(...given) {
      super(...given);
      made.push(this);
    }
  };
  const model = await load({ threads: 2 }), inputs = model.sampleInputs(), words = new BigInt64Array(made[0].buffer);
  for (let i = 0; i < 3; i += 1) model.run(inputs);
  const last = BigInt(made[0].buffer.byteLength) - 64n;
  for (const [i, word] of words.entries()) if (word > 4096n && word < last && word % 64n === 0n) words[i] = last + 2n ** 31n;
  const once = () => told(() => model.run(inputs));
  answer = { first: await once(), second: await once() };
} else if (task === "throw") {
  answer = Object.fromEntries(await Promise.all(Object.entries(CALLS).map(async ([name, call]) => [name, await told(call)])));
}
console.log(JSON.stringify(answer));
