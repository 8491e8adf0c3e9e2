// Runs a model that `msedge build` made: the programs and constants in model.msflat, by a module of kernels.
//
//     import { load } from "./msedge.mjs";
//     const model = await load();
//     const { scores } = model.run({ image: new Int8Array(3072) });
//
// For browsers and Node 20 or later. No dependencies, no eval; a Content-Security-Policy needs 'wasm-unsafe-eval' in
// script-src and, for files that are fetched, their origin in connect-src.

import { compiled, memoryOf, slots, sources } from "./msedge-engine.mjs";
import { article, MsedgeError } from "./msedge-errors.mjs";
import { bytesOf } from "./msedge-files.mjs";
import { ARRAYS, block, FIRST_FREE, half, readFlat, sizeOf } from "./msedge-flat.mjs";
import { givingWay, mapped, Team } from "./msedge-team.mjs";

export { MsedgeError };

const MODEL = "model.msflat", PROCESSING = "processing.json";
const FAULT = 1; // a base
const CONTEXT = 7; // words of the walker's context
const ALIGN = 64;

/**
 * Loads a model. Every digest and every operand's bounds are checked before it is returned.
 *
 *     load()                          the files beside this one
 *     load(folder, {threads, …})      the files in a folder, given by its URL or, in Node, its path
 *     load({files, threads, …})
 *
 * threads: how many; by default as many as gain and the machine has, or one where memory cannot be shared. files: sources
 * (URLs, paths, bytes) by file name, instead of those in the folder. onProgress: called with {file, loaded, total}, in
 * bytes, while files come from a server. relaxed: false leaves out relaxed SIMD instructions.
 */
export async function load(folder = new URL(".", import.meta.url), options = {}) {
  const named = typeof folder === "string" || folder instanceof URL;
  const { files, threads, relaxed, onProgress = () => {} } = named ? options : folder;
  const source = sources(named ? folder : new URL(".", import.meta.url), files);
  const flat = await bytesOf(source(MODEL), MODEL, (loaded, first) => {
    onProgress({ file: MODEL, loaded, total: sizeOf(first) });
  });
  const head = await readFlat(flat), progress = onProgress;
  const engine = await compiled(source, head.digest, { threads, relaxed, progress });
  const map = placed(head, engine), memory = memoryOf(map.end, engine.threads > 1);
  const env = map.team ? { memory, give_way: givingWay(memory, map.team.failed) } : { memory };
  const instance = await WebAssembly.instantiate(engine.module, { env });
  const team = map.team && await Team.started(engine.module, memory, instance, map.team);
  return new Model(flat, head, engine, map, memory, instance.exports.run, team, source);
}

/** Where everything lies in memory; the end of it. */
function placed(head, { heap, stack, threads }) {
  let end = heap;
  const take = (bytes) => {
    const at = Math.ceil(end / ALIGN) * ALIGN;
    end = at + bytes;
    return at;
  };
  const fixed = FIRST_FREE + head.constants.length + head.states.length;
  const most = Math.max(...head.signatures.map((signature) => signature.buffers.length));
  const team = threads > 1 ? mapped(threads, stack, take) : null;
  const context = take(8 * CONTEXT), table = take(8 * head.kernels.length), bases = take(8 * (fixed + most));
  const places = [0, take(8), take(head.arena)];
  for (const held of [...head.constants, ...head.states]) places.push(take(held.bytes));
  const programs = head.signatures.map((signature) => take(signature.program.bytes));
  // Signatures share the memory of their buffers: a run copies its inputs there, and its results from there.
  const shared = take(0), ends = [shared];
  const buffers = head.signatures.map((signature) => {
    end = shared;
    const own = signature.buffers.map((buffer) => take(buffer.bytes));
    ends.push(end);
    return own;
  });
  return { fixed, team, context, table, bases, places, programs, buffers, end: Math.max(...ends) };
}

/** A loaded model. Runs are synchronous; results are new arrays. */
export class Model {
  #memory;
  #alone;
  #team;
  #context;
  #fault;
  #free;
  #programs;
  #states;
  #source;
  #processing;
  #ended = "";

  /** Made by `load`. */
  constructor(flat, head, engine, map, memory, alone, team, source) {
    const { fixed, context, table, bases, places, programs, buffers } = map;
    this.#memory = memory;
    this.#alone = alone;
    this.#team = team;
    this.#source = source;
    this.#context = context;
    this.#fault = places[FAULT];
    this.#free = bases + 8 * fixed;
    const bytes = new Uint8Array(memory.buffer), firstState = FIRST_FREE + head.constants.length;
    for (const [i, constant] of head.constants.entries()) bytes.set(block(flat, constant), places[FIRST_FREE + i]);
    this.#words(bases, places);
    this.#words(table, slots(engine.module, head.kernels));
    this.#words(context, [0, 0, bases, table]);
    const kept = (at, size) => block(flat, { at, bytes: size }).slice(); // of the file, no more than this is needed
    this.#states = new Map(head.states.map((state, i) => {
      return [state.name, { ...state, place: places[firstState + i], initial: kept(state.at, state.bytes) }];
    }));
    this.#programs = new Map(head.signatures.map((signature, i) => {
      const program = programs[i], own = [...places, ...buffers[i]];
      bytes.set(block(flat, signature.program), program);
      const sampled = (port) => (port.sample ? kept(port.sample, port.bytes) : null);
      const placed = (port) => ({ ...port, place: own[port.base] + port.offset, sample: sampled(port) });
      const inputs = signature.inputs.filter((port) => port.base < firstState || port.base >= fixed).map(placed);
      const given = signature.outputs.filter((port) => port.state === 0).map(placed);
      const next = signature.outputs.filter((port) => port.state !== 0)
        .map((port) => ({ ...placed(port), to: places[firstState + port.state - 1] }));
      return [signature.name, { ...signature, place: program, buffers: buffers[i], inputs, outputs: given, next }];
    }));
    this.resetState();
    const shown = ({ name, dtype, shape }) => Object.freeze({ name, dtype, shape: Object.freeze([...shape]) });
    const ports = (list) => Object.freeze(list.map(shown));
    this.signatures = Object.freeze(Object.fromEntries([...this.#programs.values()].map(
      ({ name, inputs, outputs, next }) => {
        const writes = Object.freeze(next.map(({ state }) => head.states[state - 1].name));
        return [name, Object.freeze({ inputs: ports(inputs), outputs: ports(outputs), writes })];
      },
    )));
    this.states = ports(head.states);
    this.bundle = head.bundle;
    this.madeBy = head.madeBy;
    this.memoryBytes = memory.buffer.byteLength;
    this.threads = engine.threads;
    this.kernels = engine.file;
    Object.freeze(this);
  }

  /**
   * Runs a signature, the first by default, on arrays by input name; returns arrays by output name. If it succeeds, the
   * values that it gives for states become the state.
   */
  run(inputs, signature) {
    const program = this.#program(signature);
    if (this.#ended) throw new MsedgeError(`the model ${this.#ended}; load it again`);
    checkArrays(inputs, program.inputs, "input");
    for (const port of program.inputs) this.#view(port).set(inputs[port.name]);
    this.#words(this.#context, [program.place, program.program.bytes / 8]);
    this.#words(this.#free, program.buffers);
    try {
      if (this.#team) this.#team.run(this.#context, program.name);
      else this.#alone(this.#context);
    } catch (cause) {
      if (this.#team) this.#ended = "stopped in an earlier run";
      throw new MsedgeError(`the model stopped (${cause.message}): its files are damaged; build them again`, { cause });
    }
    const fault = new BigInt64Array(this.#memory.buffer, this.#fault, 1), found = fault[0];
    if (found !== 0n) {
      fault[0] = 0n;
      const where = program.nodes[Number(found >> 8n)] ?? "a step";
      throw new MsedgeError(`${where}: an index is outside the tensor that it indexes; check the model's index inputs`);
    }
    const outputs = Object.fromEntries(program.outputs.map((port) => [port.name, this.#view(port).slice()]));
    const bytes = new Uint8Array(this.#memory.buffer);
    for (const port of program.next) bytes.copyWithin(port.to, port.place, port.place + port.bytes);
    return outputs;
  }

  /**
   * Inputs for `run` from pictures (ImageData, or what a canvas draws) and sounds (AudioBuffer, or samples and their rate),
   * by the processing that the bundle declares for `predict`; names that it does not declare are taken as they are.
   */
  async prepare(files) {
    const { prepared } = await import("./msedge-input.mjs");
    this.#processing ??= JSON.parse(new TextDecoder().decode(await bytesOf(this.#source(PROCESSING), PROCESSING)));
    return prepared(this.#processing, files, this.#program("predict").inputs);
  }

  /** Ends the model's workers. It cannot be run any more. */
  close() {
    this.#team?.close();
    this.#ended = "was closed";
  }

  /** Copies of all state, by name. */
  state() {
    return Object.fromEntries([...this.#states.values()].map((state) => [state.name, this.#view(state).slice()]));
  }

  /** Replaces states by these arrays: all of them or, if one does not fit, none; states that are left out stay. */
  setState(state) {
    const given = state !== null && typeof state === "object" ? Object.keys(state) : [];
    const unknown = given.filter((name) => !this.#states.has(name));
    if (unknown.length || state === null || typeof state !== "object") {
      const names = [...this.#states.keys()].join(", ") || "none";
      throw new MsedgeError(`state: expected names of ${names}, got ${unknown.join(", ") || "no object"}`);
    }
    const states = given.map((name) => this.#states.get(name));
    checkArrays(state, states, "state");
    for (const each of states) this.#view(each).set(state[each.name]);
  }

  /** Returns all state to its values in the file. */
  resetState() {
    const bytes = new Uint8Array(this.#memory.buffer);
    for (const state of this.#states.values()) bytes.set(state.initial, state.place);
  }

  /** All state as the bytes of a state file (.msstate), as msedge's Python reads and writes them. */
  async stateFile() {
    const { written } = await import("./msedge-state.mjs"), state = this.state();
    return written(this.states.map((port) => ({ ...port, array: state[port.name] })), this.bundle);
  }

  /** Replaces all state by that of a state file, also of another model whose states are the same. */
  async loadStateFile(source) {
    const { read } = await import("./msedge-state.mjs"), state = await read(await bytesOf(source, "state file"));
    checkArrays(state, [...this.#states.values()], "state");
    this.setState(state);
  }

  /** Keeps all state in the browser's database (IndexedDB), by default under the model's digest. */
  async saveState(key = this.bundle) {
    const { put } = await import("./msedge-state.mjs");
    await put(key, await this.stateFile());
  }

  /** Replaces all state by what `saveState` kept; false if there is nothing under the key. */
  async loadState(key = this.bundle) {
    const { get } = await import("./msedge-state.mjs"), found = await get(key);
    if (found) await this.loadStateFile(found);
    return found !== undefined;
  }

  /** Inputs by name of a signature's sample in the file. */
  sampleInputs(signature) {
    return samples(this.#program(signature).inputs);
  }

  /**
   * Runs the sample of every signature from the initial state and compares: integers must be equal, floats may differ by
   * `allowed`, a share of the largest magnitude. Returns a row for each output that has a sample, or throws MsedgeError for
   * the first that differs. The state is afterwards what it was before.
   */
  selfTest() {
    const state = this.state();
    try {
      return [...this.#programs.values()].flatMap((program) => this.#test(program));
    } finally {
      this.setState(state);
    }
  }

  #test(program) {
    this.resetState();
    let got;
    for (let i = 0; i < program.runs; i += 1) got = this.run(samples(program.inputs), program.name);
    const compared = program.outputs.filter((port) => port.sample), expected = samples(compared);
    return compared.map(({ name, dtype }) => {
      const allowed = dtype.startsWith("float") ? program.tolerance : 0;
      const largest = distance(got[name], expected[name], dtype);
      if (!(largest <= allowed)) {
        throw new MsedgeError(
          `self-test: output ${name} of ${program.name} differs by ${largest} of its largest magnitude, where ` +
            `${allowed} is allowed; this engine computes wrongly, or the files are damaged: build them again`,
        );
      }
      return { signature: program.name, name, largest, allowed };
    });
  }

  #program(signature = this.#programs.keys().next().value) {
    const program = this.#programs.get(signature);
    if (!program) throw new MsedgeError(`expected a signature of ${[...this.#programs.keys()].join(", ")}, got ${signature}`);
    return program;
  }

  #words(at, list) {
    new BigInt64Array(this.#memory.buffer, at, list.length).set(list.map(BigInt));
  }

  #view(port) {
    return new ARRAYS[port.dtype](this.#memory.buffer, port.place, port.elements);
  }
}

/** Arrays by name are those of these ports: names, types and lengths. */
function checkArrays(arrays, ports, what) {
  const given = arrays !== null && typeof arrays === "object" ? Object.keys(arrays) : [];
  const names = ports.map((port) => port.name);
  if (given.length !== names.length || names.some((name) => !given.includes(name))) {
    throw new MsedgeError(`${what}s: expected the names ${names.join(", ") || "none"}, got ${given.join(", ") || "none"}`);
  }
  for (const port of ports) {
    const array = arrays[port.name], kind = ARRAYS[port.dtype];
    if (!(array instanceof kind) || array.length !== port.elements) {
      const got = array?.constructor?.name ?? typeof array, many = array?.length ?? "no";
      throw new MsedgeError(
        `${what} ${port.name}: expected ${article(kind.name)} of ${port.elements} elements ` +
          `(${port.dtype} [${port.shape}]), got ${article(got)} of ${many}`,
      );
    }
  }
}

/** The sample's arrays of these ports, by name. */
function samples(ports) {
  return Object.fromEntries(ports.map(({ name, dtype, sample }) => [name, new ARRAYS[dtype](sample.slice().buffer)]));
}

/** The largest difference, divided by the largest magnitude; infinite where integers, NaN or infinities differ. */
function distance(got, expected, dtype) {
  let largest = 0, scale = 1e-6;
  for (let i = 0; i < expected.length; i += 1) {
    const [a, b] = dtype === "float16" ? [half(got[i]), half(expected[i])] : [got[i], expected[i]];
    if (a === b || (a !== a && b !== b)) {
      scale = Number.isFinite(b) ? Math.max(scale, Math.abs(b)) : scale;
    } else if (dtype.startsWith("float") && Number.isFinite(a) && Number.isFinite(b)) {
      scale = Math.max(scale, Math.abs(b));
      largest = Math.max(largest, Math.abs(a - b));
    } else {
      return Infinity;
    }
  }
  return largest / scale;
}
