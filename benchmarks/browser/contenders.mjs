// One function for each contender: (folder or file of the model, threads) -> a function from arrays to arrays.
//
// Each run takes the inputs as JavaScript's arrays and gives the outputs as such, as a program would use it.

export const CONTENDERS = { msedge, onnxruntime, litert };

async function msedge(where, threads) {
  const { load } = await import(`${where}msedge.mjs`);
  const model = await load({ threads });
  return { run: (inputs) => model.run(inputs) };
}

async function onnxruntime(where, threads) {
  const ort = await import("/npm/onnxruntime-web/dist/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = "/npm/onnxruntime-web/dist/";
  ort.env.wasm.numThreads = threads;
  const session = await ort.InferenceSession.create(where, { graphOptimizationLevel: "all", executionProviders: ["wasm"] });
  const sizes = session.inputMetadata.map(({ shape }) => shape.map((size) => (typeof size === "number" ? size : 1)));
  const run = async (inputs, ports) => {
    const given = inOrder(ports, sizes).map((port, i) => new ort.Tensor(port.dtype, inputs[port.name], sizes[i]));
    const results = await session.run(Object.fromEntries(session.inputNames.map((name, i) => [name, given[i]])));
    return Object.fromEntries(session.outputNames.map((name) => [name, results[name].data]));
  };
  return { run };
}

async function litert(where, threads) {
  const { Tensor, loadAndCompile, loadLiteRt } = await import("@litertjs/core");
  await loadLiteRt("/npm/@litertjs/core/wasm/", { threads: threads > 1 });
  const model = await loadAndCompile(where, { accelerator: "wasm", cpuOptions: { numThreads: threads } });
  const sizes = model.getInputDetails().map(({ shape }) => [...shape]), outputs = model.getOutputDetails();
  const run = async (inputs, ports) => {
    const given = inOrder(ports, sizes).map((port, i) => new Tensor(inputs[port.name], sizes[i]));
    const results = await model.run(given);
    const found = Object.fromEntries(results.map((tensor, i) => [outputs[i].name, tensor.toTypedArray()]));
    for (const tensor of [...given, ...results]) tensor.delete();
    return found;
  };
  return { run };
}

/** Ports in the order of a file's inputs, whose names and layouts are its own: by the number of elements. */
function inOrder(ports, sizes) {
  const count = (shape) => shape.reduce((product, size) => product * size, 1), left = [...ports];
  return sizes.map((shape) => left.splice(left.findIndex((port) => count(port.shape) === count(shape)), 1)[0]);
}
