// A thread of a model: takes part in its runs. It polls for the next one for a moment, then sleeps until it is woken.

import { givingWay } from "./msedge-team.mjs";

const POLLS = 20000n, LINGER = 1; // between looks at the clock; milliseconds until it sleeps

const port = typeof self === "object" && typeof self.postMessage === "function"
  ? self
  : (await import("node:worker_threads")).parentPort;

function follow({ module, memory, map, stack, number }) {
  const words = new Int32Array(memory.buffer), wake = map.wake / 4, state = map.states[number - 1];
  const { exports } = new WebAssembly.Instance(module, { env: { memory, give_way: givingWay(memory, map.failed) } });
  exports.stack.value = stack;
  const runs = new BigInt64Array(memory.buffer, state, 1);
  port.postMessage({});
  for (;;) {
    const seen = Atomics.load(words, wake);
    let latest = performance.now(), run = runs[0];
    do {
      exports.serve(map.sync, state, POLLS, BigInt(number));
      if (runs[0] !== run) [latest, run] = [performance.now(), runs[0]];
    } while (performance.now() - latest < LINGER);
    Atomics.wait(words, wake, seen);
  }
}

function start(given) {
  try {
    follow(given);
  } catch (error) {
    // The other threads would wait for this one for ever: they stop too.
    Atomics.store(new Int32Array(given.memory.buffer), given.map.failed / 4, 1);
    port.postMessage({ error: error.message });
  }
}

if (port === globalThis.self) port.onmessage = ({ data }) => start(data);
else port.once("message", start);
