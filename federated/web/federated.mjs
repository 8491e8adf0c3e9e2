// A web page or a Node program as a device of a federated run, beside devices with Python: the same messages, the same
// draws of examples and the same arithmetic, so that a model learns the same bits wherever its devices are.
//
//     import { load } from "./msedge.mjs";
//     import { Device, join } from "./federated.mjs";
//     const model = await load();             // built with the signatures gradients and evaluate
//     const device = new Device({ name: "page-1", model, inputs: { x }, labels });
//     await join({ url: "https://fleet.example.org:8470", token, device });
//
// It takes part in runs of the algorithms in ALGORITHMS, with parameters as float32 or float16. What else a server asks
// for it refuses with the reason, and the server goes on without it.

import { Generator, order, seedOf, split, supportQuery } from "./federated-draws.mjs";
import { Codec, FederatedError, pack, unpack } from "./federated-messages.mjs";
import { hex } from "./msedge-files.mjs";
import { ARRAYS } from "./msedge-flat.mjs";
import { kept } from "./msedge-state.mjs";

export { FederatedError };

const PROTOCOL = 1, MESSAGES = 2; // versions
const LARGEST = 1e30, MOST_EXAMPLES = 1e7;
const WAIT = 20, FIRST = 0.5, LONGEST = 30; // seconds
const PART = 50; // milliseconds of training between two pauses, in which a page can draw

/** Algorithms whose devices run SGD, and the defaults of what a message may leave out. mu: FedProx's penalty. */
const SGD = { rate: 0.05, tuning_rate: 0.05, momentum: 0, mu: 0, clip_norm: 0, weight_decay: 0 };
const ALGORITHMS = {
  fedavg: SGD, reptile: SGD, fedadam: SGD, fedyogi: SGD, fedadagrad: SGD, fedmomentum: SGD,
  fedprox: { ...SGD, mu: 0.1 },
};
/** Those that send changes of running statistics apart from those of parameters. */
const APART = new Set(["fedadam", "fedyogi", "fedadagrad", "fedmomentum"]);

// -- the device -------------------------------------------------------------------------------------------------------

/** Answers a server's messages with a model and examples that stay here. */
export class Device {
  #model;
  #columns;
  #labels;
  #batch;
  #grads;
  #statistics;
  #leaves;
  #secret;

  /**
   * inputs: arrays by the model's input names, all examples one after the other; labels: one for each example. secret:
   * 32 bytes that only this device has, which prove that a device that returns is the same one; by default kept in the
   * browser's IndexedDB, and in Node only while the program runs.
   */
  constructor({ name, model, inputs, labels, secret }) {
    if (typeof name !== "string" || !/^[\w.@:-]{1,200}$/.test(name)) {
      throw new FederatedError(`expected a device's name of letters, digits and .@:-_, got ${JSON.stringify(name)}`);
    }
    const { gradients, evaluate } = model.signatures;
    if (!gradients || !evaluate) {
      throw new FederatedError("expected a model with the signatures gradients and evaluate: convert it with --trainable");
    }
    if (evaluate.inputs.some((port) => port.shape[0] !== 1)) {
      throw new FederatedError("expected evaluate to take one example: build it with --input-shape evaluate/INPUT=1,…");
    }
    this.name = name;
    this.examples = labels?.length ?? 0;
    if (!this.examples) throw new FederatedError("expected at least one example with its label, got none");
    this.#model = model;
    this.#labels = labels;
    this.#secret = secret;
    this.#batch = gradients.inputs.find((port) => port.name === "labels").shape[0];
    this.#columns = gradients.inputs.map((port) => this.#column(port, port.name === "labels" ? labels : inputs?.[port.name]));
    this.#grads = gradients.outputs.filter((port) => port.name.startsWith("grad/")).map((port) => port.name.slice(5));
    this.#statistics = gradients.writes.filter((state) => !this.#grads.includes(state));
    const kept = new Set([...this.#grads, ...this.#statistics]);
    this.#leaves = model.states.filter((state) => kept.has(state.name)).sort((a, b) => (a.name < b.name ? -1 : 1));
    const other = this.#leaves.find((state) => state.dtype !== "float32");
    if (other) throw new FederatedError(`expected parameters of float32, got ${other.name} of ${other.dtype}`);
    Object.freeze(this);
  }

  /** An input's examples: their array, and how many elements each has. */
  #column({ name, dtype, shape }, array) {
    const width = shape.slice(1).reduce((product, size) => product * size, 1), kind = ARRAYS[dtype];
    if (!(array instanceof kind) || array.length !== width * this.examples) {
      const got = `${array?.constructor?.name ?? typeof array} of ${array?.length ?? "no"}`;
      throw new FederatedError(`${name}: expected ${kind.name} of ${this.examples} * ${width} elements, got ${got}`);
    }
    return { name, array, width };
  }

  /** The reply to a message. progress is called with {round, step, steps} on the way, and awaited. */
  async answer(message, progress = () => {}) {
    const { meta, arrays } = await unpack(message);
    let reply, data;
    try {
      if (meta.version !== MESSAGES) throw new FederatedError(`expected messages of version ${MESSAGES}, got ${meta.version}`);
      const answer = { hello: this.#hello, train: this.#train, evaluate: this.#evaluate }[meta.kind];
      if (!answer) throw new FederatedError(`a browser answers hello, train and evaluate, not ${String(meta.kind).slice(0, 80)}`);
      [reply, data] = await answer.call(this, meta, arrays, progress);
    } catch (error) {
      if (!(error instanceof FederatedError)) throw error;
      reply = { kind: "refusal", why: error.message.slice(0, 500) };
    }
    const same = Object.fromEntries(["run", "round", "attempt"].filter((key) => key in meta).map((key) => [key, meta[key]]));
    const content = data ? [["data", "uint8", [data.length], data]] : [];
    return pack({ version: MESSAGES, device: this.name, ...same, ...reply }, content);
  }

  async #hello(meta) {
    const secret = this.#secret ?? await secretOf(this.name);
    const key = await crypto.subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
    const proof = new Uint8Array(await crypto.subtle.sign("HMAC", key, new TextEncoder().encode(String(meta.run))));
    const examples = meta.private === true ? 1 : this.examples;
    return [{ kind: "hello", examples, bundle: this.#model.bundle, proof: hex(proof) }];
  }

  async #train(meta, arrays, progress) {
    const task = await this.#task(meta, arrays);
    const [train] = await this.#parts(meta);
    const generator = new Generator(await seedOf(meta.seed, "train", meta.round, this.name));
    const rows = order(train.length, generator, meta.steps, meta.batch).map((row) => train[row]);
    const told = (step) => progress({ round: meta.round, step, steps: meta.steps });
    const { params, loss } = await this.#descend(task, rows, meta.steps, task.algorithm, told);
    const moved = (name) => params.get(name).map((value, i) => value - task.params.get(name)[i]);
    const apart = APART.has(meta.algorithm.name) ? this.#statistics : [];
    const leaves = this.#leaves.map(({ name, shape }) => ({ path: [apart.includes(name) ? "statistics" : "params", name], shape }));
    leaves.sort((a, b) => (a.path[0] < b.path[0] ? -1 : a.path[0] > b.path[0] ? 1 : a.path[1] < b.path[1] ? -1 : 1));
    const data = await task.up.encode(leaves, flattened(leaves.map(({ path }) => moved(path[1]))));
    return [{ kind: "update", examples: train.length, loss: reported(loss) }, data];
  }

  async #evaluate(meta, arrays, progress) {
    const task = await this.#task(meta, arrays);
    const generator = new Generator(await seedOf(meta.seed, "evaluate", meta.round, this.name));
    const all = Int32Array.from({ length: this.examples }, (_, i) => i);
    const [train, held] = meta.held_out ? [all, []] : await this.#parts(meta);
    if (!meta.steps) {
      const sums = this.#measured(task.params, meta.held_out ? all : held);
      return [{ kind: "evaluation", before: sums, after: sums }];
    }
    const own = Array.from(train, (row) => this.#labels[row]);
    const labels = this.#labels.constructor.from(own);
    const [support, rest] = supportQuery(labels, meta.support, generator).map((part) => part.map((row) => train[row]));
    const query = meta.held_out ? rest : held;
    const batch = Math.min(meta.batch, support.length);
    if (batch !== this.#batch) {
      throw new FederatedError(`evaluate: expected ${this.#batch} examples or more to adapt on, got ${support.length}; raise evaluation.support`);
    }
    const rows = order(support.length, generator, meta.steps, batch).map((row) => support[row]);
    const before = this.#measured(task.params, query);
    const adapting = { ...task.algorithm, rate: task.algorithm.tuning_rate, mu: 0 };
    const { params } = await this.#descend(task, rows, meta.steps, adapting, () => progress({ round: meta.round }));
    return [{ kind: "evaluation", before, after: this.#measured(params, query) }];
  }

  /** What a message asks for, checked: the algorithm, the codecs, the parameters by name. */
  async #task(meta, arrays) {
    const whole = (key, least, most) => {
      if (!Number.isSafeInteger(meta[key]) || meta[key] < least || meta[key] > most) {
        throw new FederatedError(`${meta.kind}: expected ${key} from ${least} to ${most}, got ${meta[key]}`);
      }
    };
    whole("steps", meta.kind === "evaluate" ? 0 : 1, MOST_EXAMPLES);
    whole("batch", 1, MOST_EXAMPLES);
    whole("round", 0, 2 ** 31 - 1);
    whole("seed", 0, Number.MAX_SAFE_INTEGER);
    if (meta.steps * meta.batch > MOST_EXAMPLES) throw new FederatedError(`${meta.kind}: expected at most ${MOST_EXAMPLES} examples`);
    if (meta.bundle !== this.#model.bundle) {
      throw new FederatedError(
        `expected work on bundle ${this.#model.bundle.slice(0, 12)}, got ${String(meta.bundle).slice(0, 12)}; build the page's model from the server's bundle`,
      );
    }
    const name = meta.algorithm?.name;
    if (!Object.hasOwn(ALGORITHMS, name)) {
      throw new FederatedError(`expected an algorithm of ${Object.keys(ALGORITHMS).join(", ")}, got ${JSON.stringify(name)?.slice(0, 80)}`);
    }
    const algorithm = { ...ALGORITHMS[name], ...meta.algorithm }, privacy = meta.privacy ?? {};
    if (algorithm.clip_norm || algorithm.weight_decay) throw new FederatedError(`${name}: clip_norm and weight_decay are not computed in a browser`);
    if (privacy.secure || privacy.clip || privacy.noise !== "none") throw new FederatedError("privacy: clipping, noise and secure sums are not computed in a browser");
    if (meta.kind === "train" && meta.batch !== this.#batch) {
      throw new FederatedError(`expected batches of ${this.#batch}, for which the model was built, got ${meta.batch}; build it with --input-shape gradients/labels=${meta.batch}`);
    }
    if (meta.parts !== null) throw new FederatedError("expected the model as a whole; set codec.down to float32 or float16");
    const leaves = this.#leaves.map((leaf) => ({ ...leaf, path: ["params", leaf.name] }));
    const values = await new Codec(meta.down).decode(leaves, arrays.get("data") ?? new Uint8Array(0));
    const params = new Map();
    let at = 0;
    for (const { name: key, shape } of leaves) {
      const end = at + shape.reduce((product, size) => product * size, 1);
      params.set(key, values.slice(at, end));
      at = end;
    }
    return { algorithm, params, up: new Codec(meta.up) };
  }

  /** The numbers of the examples that are trained on, and of those kept to test with; the same ones in every round. */
  async #parts({ test, seed }) {
    if (!test) return [Int32Array.from({ length: this.examples }, (_, i) => i), new Int32Array(0)];
    if (!(test > 0 && test < 1)) throw new FederatedError(`expected a share to test with, got ${test}`);
    return split(this.#labels, 1 - test, new Generator(await seedOf(seed, "test", this.name)));
  }

  /** Steps of SGD over batches of rows; the parameters afterwards and the mean loss. The arithmetic is NumPy's float32. */
  async #descend({ params: start }, rows, steps, { rate, mu: penalty, momentum: share }, told) {
    const params = new Map([...start].map(([name, values]) => [name, values.slice()]));
    const f = Math.fround, step = f(rate), mu = f(penalty), momentum = f(share);
    const velocity = new Map(this.#grads.map((name) => [name, new Float32Array(params.get(name).length)]));
    let sum = 0, pause = performance.now() + PART;
    this.#model.setState(Object.fromEntries(params));
    for (let i = 0; i < steps; i += 1) {
      const batch = rows.subarray(i * this.#batch, (i + 1) * this.#batch);
      const found = this.#model.run(this.#examples(batch), "gradients");
      sum += found.loss[0];
      for (const name of this.#grads) {
        const values = params.get(name), slopes = found[`grad/${name}`], origin = start.get(name), moving = velocity.get(name);
        for (let j = 0; j < values.length; j += 1) {
          let slope = slopes[j];
          if (mu) slope = f(slope + f(mu * f(values[j] - origin[j])));
          if (momentum) slope = moving[j] = f(slope + f(momentum * moving[j]));
          values[j] -= f(step * slope);
        }
      }
      if (this.#statistics.length) {
        const state = this.#model.state();
        for (const name of this.#statistics) params.set(name, state[name]);
      }
      this.#model.setState(Object.fromEntries(params));
      if (performance.now() > pause) {
        await told(i + 1);
        await pausing();
        pause = performance.now() + PART;
      }
    }
    return { params, loss: sum / steps };
  }

  /** Sum of losses, how many are right, how many labels counted, over these examples. */
  #measured(params, rows) {
    let loss = 0, correct = 0, examples = 0;
    this.#model.setState(Object.fromEntries(params));
    for (const row of rows) {
      const found = this.#model.run(this.#examples([row]), "evaluate"), count = Number(found.examples[0]);
      loss += found.loss[0] * count;
      correct += Number(found.correct?.[0] ?? 0);
      examples += count;
    }
    return [reported(loss), correct, examples];
  }

  #examples(rows) {
    return Object.fromEntries(this.#columns.map(({ name, array, width }) => {
      const made = new array.constructor(rows.length * width);
      for (const [i, row] of rows.entries()) made.set(array.subarray(row * width, (row + 1) * width), i * width);
      return [name, made];
    }));
  }
}

/** Lets the page draw. Timers would be slowed down to one a second where the page is not in front. */
function pausing() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** A loss as a device reports it: null if it diverged. */
function reported(loss) {
  return Math.abs(loss) <= LARGEST ? loss : null;
}

function flattened(parts) {
  const made = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    made.set(part, at);
    at += part.length;
  }
  return made;
}

const SECRETS = new Map();

/** The secret of a device of this name: made once, then kept in IndexedDB, or without one while the program runs. */
async function secretOf(name) {
  const fresh = crypto.getRandomValues(new Uint8Array(32));
  if (globalThis.indexedDB) return kept(`federated/${name}`, fresh);
  if (!SECRETS.has(name)) SECRETS.set(name, fresh);
  return SECRETS.get(name);
}

// -- check-in ---------------------------------------------------------------------------------------------------------

/**
 * Checks in and answers messages until the run is over. url: of `msedge listen`, which must name this page's origin.
 * signal: an AbortSignal that ends it. patience: seconds without the server after which it gives up. onProgress is called
 * with {state: "waiting" | "training" | "answered" | "refused" | "lost", round, step, steps, why}.
 */
export async function join({ url, token, device, signal, patience = 600, onProgress = () => {} }) {
  const ask = (method, path, body) => patiently(() => request(url, token, method, path, body, signal), patience, signal, onProgress);
  const facts = await (await ask("POST", "/v1/check-in")).json();
  if (facts.protocol !== PROTOCOL) {
    throw new FederatedError(`expected a server of check-in protocol ${PROTOCOL}, got ${facts.protocol}; both ends need the same release`);
  }
  const beat = 1000 * facts.heartbeat;
  let last = performance.now();
  const alive = async () => {
    if (performance.now() - last < beat) return;
    last = performance.now();
    await request(url, token, "POST", "/v1/heartbeat", undefined, signal).catch((error) => {
      if (!(error instanceof Lost)) throw error;
    });
  };
  for (;;) {
    onProgress({ state: "waiting" });
    // Not longer than two heartbeats: a request that waits is a sign of life only when it ends.
    const response = await ask("GET", `/v1/work?wait=${Math.min(WAIT, 2 * facts.heartbeat)}`);
    last = performance.now();
    if (response.status === 410) return;
    if (response.status !== 200) continue;
    const ticket = response.headers.get("Msedge-Ticket");
    const message = new Uint8Array(await response.arrayBuffer());
    let path = `/v1/work/${ticket}`, body;
    try {
      body = await device.answer(message, async (step) => {
        onProgress({ state: "training", ...step });
        await alive();
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      path = `${path}/failure`;
      body = JSON.stringify({ why: String(error.message).slice(0, 500) });
    }
    const taken = await ask("POST", path, body);
    const why = taken.status === 204 ? undefined : (await taken.json().catch(() => ({}))).error;
    onProgress({ state: why === undefined ? "answered" : "refused", why });
  }
}

/** The server cannot be reached, for now. */
class Lost extends FederatedError {}

async function request(url, token, method, path, body, signal) {
  let response;
  try {
    const headers = { Authorization: `Bearer ${token}` };
    response = await fetch(new URL(path, url), { method, headers, body, signal, cache: "no-store", credentials: "omit" });
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new Lost(`${url}: no answer (${cause.message}); is this page's origin among those of --origin?`, { cause });
  }
  if (response.status === 401 || response.status === 403) {
    const { error } = await response.json().catch(() => ({}));
    throw new FederatedError(`${url}: ${error ?? `status ${response.status}`}`);
  }
  if (response.status >= 500) throw new Lost(`${url}: status ${response.status}`);
  return response;
}

async function patiently(ask, patience, signal, onProgress) {
  const until = performance.now() + 1000 * patience;
  for (let pause = FIRST; ; pause = Math.min(2 * pause, LONGEST)) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Lost) || performance.now() + 1000 * pause > until) throw error;
      onProgress({ state: "lost", why: error.message });
      await new Promise((resolve, reject) => {
        const timer = setTimeout(resolve, 1000 * pause * (0.5 + Math.random() / 2));
        signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
      });
    }
  }
}
