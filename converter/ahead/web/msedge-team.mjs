// Several threads for one model: this one leads every run, workers take part in it.

import { MsedgeError } from "./msedge-errors.mjs";

const COMING = 32, PATIENCE = 41, PLACES = 48; // words of the threads' common memory (lite_runtime/kernels/walker.py)
const POLLS = 2000n; // of a thread that waits for others before it gives way: some 10 microseconds
const WORD = 8, LINE = 64;
const REST = 0.02; // milliseconds
const SECONDS = 20; // for a worker to start
const TRIALS = 2, AGAIN = 64, DOUBT = 32;

/**
 * What a thread calls when it has waited for others for long: it stops if one has failed, and otherwise leaves its
 * processor to others for a moment, which browsers do not allow to a page's own thread.
 */
export function givingWay(memory, failed) {
  const words = new Int32Array(memory.buffer), at = failed / 4, rests = globalThis.document === undefined;
  return () => {
    if (rests ? Atomics.wait(words, at, 0, REST) === "not-equal" : Atomics.load(words, at)) {
      throw new Error("another thread stopped");
    }
  };
}

/**
 * Whether a program's next run uses the team. The first runs do not; later ones if the team has been faster than one
 * thread, which a busy machine prevents: then one thread runs alone, for longer each time. Now and then it runs alone
 * to be measured again, because engines make code faster while it runs.
 */
class Doubt {
  #rests = TRIALS;
  #runs = 0;
  #alone = Infinity;
  #doubt = 1;

  shared() {
    this.#runs += 1;
    if (this.#rests > 0) this.#rests -= 1;
    else return this.#runs % AGAIN !== 0;
    return false;
  }

  learn(shared, took) {
    if (!shared) {
      this.#alone = took;
    } else if (took <= this.#alone) {
      this.#doubt = 1;
    } else {
      this.#rests = 1 + Math.floor(this.#doubt * (took / this.#alone - 1));
      this.#doubt = Math.min(2 * this.#doubt, DOUBT);
    }
  }
}

/** A team of threads, the calling one included. */
export class Team {
  #lead;
  #words;
  #counters;
  #map;
  #workers = [];
  #doubts = new Map();

  /** Starts the workers. map: see `mapped`; instance: this thread's. */
  static async started(module, memory, instance, map) {
    const team = new Team();
    team.#lead = instance.exports.lead;
    team.#words = new Int32Array(memory.buffer);
    team.#map = map;
    team.#counters = new BigInt64Array(memory.buffer, map.sync, PLACES);
    team.#counters[PATIENCE] = POLLS;
    try {
      await Promise.all(map.stacks.map((stack, i) => team.#start({ module, memory, map, stack, number: i + 1 })));
    } catch (cause) {
      team.close();
      throw new MsedgeError(
        `threads: a worker does not start (${cause.message}); serve msedge-worker.mjs beside msedge.mjs with the page's ` +
          "own headers, and allow it in worker-src or script-src, or load with threads: 1",
        { cause },
      );
    }
    return team;
  }

  /** Runs the program of a context; name: which it is. If a thread fails, all do, and the team is of no use any more. */
  run(context, name) {
    if (!this.#doubts.has(name)) this.#doubts.set(name, new Doubt());
    const doubt = this.#doubts.get(name), shared = doubt.shared(), begin = performance.now();
    if (shared) {
      // Before anybody wakes: a worker that sees this polls until the run begins, however late that is.
      Atomics.store(this.#counters, COMING, 1n);
      Atomics.add(this.#words, this.#map.wake / 4, 1);
      Atomics.notify(this.#words, this.#map.wake / 4);
    }
    try {
      this.#lead(context, this.#map.sync, shared ? BigInt(this.#workers.length + 1) : 1n);
    } catch (cause) {
      Atomics.store(this.#words, this.#map.failed / 4, 1);
      this.close();
      throw cause;
    }
    doubt.learn(shared, performance.now() - begin);
  }

  /** Ends the workers. */
  close() {
    for (const worker of this.#workers) worker.terminate();
  }

  async #start(given) {
    const url = new URL("./msedge-worker.mjs", import.meta.url), node = typeof globalThis.Worker !== "function";
    const Kind = node ? (await import("node:worker_threads")).Worker : globalThis.Worker;
    const worker = new Kind(url, { type: "module" });
    this.#workers.push(worker);
    await new Promise((done, failed) => {
      const late = setTimeout(() => failed(new Error(`no answer in ${SECONDS} seconds`)), 1000 * SECONDS);
      const told = (error) => {
        clearTimeout(late);
        if (error) failed(new Error(error));
        else done();
      };
      if (node) {
        worker.once("message", (data) => told(data.error));
        worker.once("error", (error) => told(error.message));
      } else {
        worker.onmessage = ({ data }) => told(data.error);
        worker.onerror = (event) => told(event.message || "it cannot be loaded");
      }
      worker.postMessage(given);
    });
    worker.unref?.();
  }
}

/** Places of a team's memory, from `take`: sync, wake, failed, and for each worker its state and the end of its stack. */
export function mapped(threads, stack, take) {
  const workers = Array.from({ length: threads - 1 }, (_, i) => i);
  return {
    sync: take(WORD * (PLACES + threads)),
    wake: take(LINE),
    failed: take(LINE),
    states: workers.map(() => take(LINE)),
    stacks: workers.map(() => take(stack) + stack),
  };
}
