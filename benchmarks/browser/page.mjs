// What the page does for the driver: times contenders in turns, or one contender from nothing to its first result.
import { CONTENDERS } from "/page/contenders.mjs";

const ARRAYS = {
  float32: Float32Array, int8: Int8Array, uint8: Uint8Array, int32: Int32Array, int64: BigInt64Array, bool: Uint8Array,
};
const TURN = 12; // least milliseconds of a turn, far above the clock's steps
const WARM = 3;

async function inputsOf(job) {
  const bytes = await (await fetch(job.inputs)).arrayBuffer();
  const found = {};
  let at = 0;
  for (const port of job.ports) {
    const count = port.shape.reduce((product, size) => product * size, 1);
    found[port.name] = new ARRAYS[port.dtype](bytes, at, count);
    at = Math.ceil((at + found[port.name].byteLength) / 8) * 8;
  }
  return found;
}

/** Seconds per run: `count` runs, one after the other. */
async function turn(contender, inputs, ports, count) {
  const start = performance.now();
  for (let i = 0; i < count; i += 1) {
    const result = contender.run(inputs, ports);
    if (result instanceof Promise) await result;
  }
  return (performance.now() - start) / count / 1000;
}

/** The largest difference of two lists of outputs as a share of the largest magnitude; outputs pair by their sizes. */
function difference(ours, theirs) {
  const left = Object.values(theirs);
  let worst = 0;
  for (const a of Object.values(ours)) {
    const found = left.filter((b) => b.length === a.length);
    if (!found.length) return Infinity;
    worst = Math.max(worst, Math.min(...found.map((b) => distance(a, b))));
  }
  return worst;
}

function distance(a, b) {
  let largest = 0, scale = 1e-9;
  for (let i = 0; i < a.length; i += 1) {
    scale = Math.max(scale, Math.abs(Number(a[i])), Math.abs(Number(b[i])));
    largest = Math.max(largest, Math.abs(Number(a[i]) - Number(b[i])));
  }
  return largest / scale;
}

/** Seconds per run of every contender, `rounds` times in turns, whose order rotates; errors of those that do not run. */
globalThis.contest = async (job) => {
  const inputs = await inputsOf(job), ready = [], failed = {};
  for (const { name, where } of job.contenders) {
    try {
      const contender = await CONTENDERS[name](where, job.threads);
      const outputs = await contender.run(inputs, job.ports);
      for (let i = 0; i < WARM; i += 1) await turn(contender, inputs, job.ports, 1);
      let count = 1;
      while (await turn(contender, inputs, job.ports, count) * 1000 * count < TURN) count *= 2;
      ready.push({ ...contender, name, outputs, count, seconds: [] });
    } catch (error) {
      failed[name] = `${error.name ?? "error"}: ${error.message ?? error}`;
    }
  }
  for (let round = 0; round < job.rounds; round += 1) {
    for (let k = 0; k < ready.length; k += 1) {
      const one = ready[(k + round) % ready.length];
      one.seconds.push(await turn(one, inputs, job.ports, one.count));
    }
  }
  const ours = ready.find(({ name }) => name === "msedge");
  return {
    failed,
    ran: ready.map(({ name, seconds, outputs }) => ({
      name, seconds, difference: ours && name !== "msedge" ? difference(ours.outputs, outputs) : 0,
    })),
  };
};

/** Seconds from nothing (the runtime is not loaded) to the first result, without fetching the inputs. */
globalThis.first = async (job) => {
  const inputs = await inputsOf(job), { name, where } = job.contenders[0];
  const start = performance.now();
  const contender = await CONTENDERS[name](where, job.threads);
  await contender.run(inputs, job.ports);
  return (performance.now() - start) / 1000;
};
