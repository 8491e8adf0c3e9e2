// Runs a model that `msedge build` made: model.msflat (the program and its constants) by kernels.wasm.
//
//     import { load } from "./msedge.mjs";
//     const model = await load();
//     const { scores } = model.run({ image: new Int8Array(3072) });
//
// For browsers and Node 20 or later. No dependencies, no eval; a Content-Security-Policy needs 'wasm-unsafe-eval' in
// script-src and, for files that are fetched, their origin in connect-src.

/** Any error of this module: what was expected, what was found, and what to do. */
export class MsedgeError extends Error {
  /** @param {string} message @param {ErrorOptions=} options */
  constructor(message, options) {
    super(message, options);
    this.name = "MsedgeError";
  }
}

const MAGIC = "MSFLAT\r\n", VERSION = 2, HEADER = 192, DIGEST = 32, ALIGN = 64, PAGE = 65536;
const DIRECTORY = 64, FIRST_FREE = 3; // the tables' places in the header; the first base that is a constant
const FAULT = 1, ARENA = 2; // bases; 0 is nothing
const KERNEL = 0, LENGTH = 1, FLAGS = 2, HEAD = 3, JUMP = 4; // words of a record; a flag
const READ = 0, SCRATCH = 3; // roles of operands
const CONTEXT = 7; // words of the walker's context
const KERNELS = "msedge.kernels"; // the custom section that names a module's kernels
const MOST_ELEMENTS = 2 ** 32, MOST_SIGNATURES = 64, MOST_RUNS = 2;

/** Tables of a flat file, with the words of a row; texts are bytes. */
const TABLES = {
  texts: 0, sizes: 1, kernels: 1, constants: 2, states: 5, buffers: 2, ports: 8, nodes: 1, signatures: 15,
};

/** Array types by dtype, in the order of a flat file's numbers; bool has bytes of 0 and 1, float16 its bits. */
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float16: Uint16Array, float32: Float32Array,
  float64: Float64Array,
};
const DTYPES = Object.keys(ARRAYS);

/**
 * Loads a model. Every digest and every operand's bounds are checked before it is returned.
 * @param {{model?: any, kernels?: any}} sources URLs, paths (in Node), or bytes; by default the files beside this one.
 */
export async function load(sources = {}) {
  const beside = (name) => new URL(`./${name}`, import.meta.url);
  const flat = await bytesOf(sources.model ?? beside("model.msflat"), "model");
  const wasm = await bytesOf(sources.kernels ?? beside("kernels.wasm"), "kernels");
  const head = await readFlat(flat);
  const found = hex(await sha256(wasm));
  if (found !== head.digest) {
    throw new MsedgeError(
      `kernels: expected the module with the SHA-256 ${head.digest}, got ${found}; ` +
        "use the kernels.wasm that was built together with the model",
    );
  }
  let module, instance;
  try {
    module = await WebAssembly.compile(wasm);
    instance = await WebAssembly.instantiate(module, {});
  } catch (cause) {
    const why = `kernels: WebAssembly does not start here (${cause.message})`;
    throw new MsedgeError(`${why}; it needs 128-bit SIMD, and 'wasm-unsafe-eval' in a page's script-src`, { cause });
  }
  return new Model(flat, head, module, instance);
}

/** A loaded model. Runs are synchronous; results are new arrays. */
export class Model {
  #flat;
  #memory;
  #run;
  #context;
  #fault;
  #free;
  #programs;
  #states;

  /** Made by `load`. */
  constructor(flat, head, module, instance) {
    this.#flat = flat;
    const { memory, run, heap } = instance.exports;
    this.#memory = memory;
    this.#run = run;
    let end = heap.value;
    const take = (bytes) => {
      const at = Math.ceil(end / ALIGN) * ALIGN;
      end = at + bytes;
      return at;
    };
    const fixed = FIRST_FREE + head.constants.length + head.states.length;
    const most = Math.max(...head.signatures.map((signature) => signature.buffers.length));
    const context = take(8 * CONTEXT), table = take(8 * head.kernels.length), bases = take(8 * (fixed + most));
    const places = [0, take(8), take(head.arena)];
    for (const held of [...head.constants, ...head.states]) places.push(take(held.bytes));
    const programs = head.signatures.map((signature) => take(signature.program.bytes));
    // Signatures share the memory of their buffers: a run copies its inputs there, and its results from there.
    const shared = take(0), ends = [];
    const buffers = head.signatures.map((signature) => {
      end = shared;
      const own = signature.buffers.map((buffer) => take(buffer.bytes));
      ends.push(end);
      return own;
    });
    grow(memory, Math.max(shared, ...ends));
    const bytes = new Uint8Array(memory.buffer);
    const words = (at, list) => new BigInt64Array(memory.buffer, at, list.length).set(list.map(BigInt));
    for (const [i, constant] of head.constants.entries()) bytes.set(block(flat, constant), places[FIRST_FREE + i]);
    words(bases, places);
    words(table, slots(module, head.kernels));
    words(context, [0, 0, bases, table]);
    this.#context = context;
    this.#fault = places[FAULT];
    this.#free = bases + 8 * fixed;
    const firstState = FIRST_FREE + head.constants.length;
    this.#states = new Map(head.states.map((state, i) => [state.name, { ...state, place: places[firstState + i] }]));
    this.#programs = new Map(head.signatures.map((signature, i) => {
      const program = programs[i], own = [...places, ...buffers[i]];
      bytes.set(block(flat, signature.program), program);
      const placed = (port) => ({ ...port, place: own[port.base] + port.offset });
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
    Object.freeze(this);
  }

  /**
   * Runs a signature, the first by default, on arrays by input name; returns arrays by output name. If it succeeds, the
   * values that it gives for states become the state.
   */
  run(inputs, signature) {
    const program = this.#program(signature);
    checkArrays(inputs, program.inputs, "input");
    for (const port of program.inputs) this.#view(port).set(inputs[port.name]);
    const words = (at, list) => new BigInt64Array(this.#memory.buffer, at, list.length).set(list.map(BigInt));
    words(this.#context, [program.place, program.program.bytes / 8]);
    words(this.#free, program.buffers);
    try {
      this.#run(this.#context);
    } catch (cause) {
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
    for (const state of this.#states.values()) bytes.set(block(this.#flat, state), state.place);
  }

  /** Inputs by name of a signature's sample in the file. */
  sampleInputs(signature) {
    return this.#sample(this.#program(signature).inputs);
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
    for (let i = 0; i < program.runs; i += 1) got = this.run(this.#sample(program.inputs), program.name);
    const compared = program.outputs.filter((port) => port.sample !== 0), expected = this.#sample(compared);
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

  #sample(ports) {
    return Object.fromEntries(ports.map(({ name, dtype, sample, bytes }) => {
      return [name, new ARRAYS[dtype](block(this.#flat, { at: sample, bytes }).slice().buffer)];
    }));
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

// -- files ------------------------------------------------------------------------------------------------------------

async function bytesOf(source, what) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new MsedgeError(`${what}: expected a URL, a path or bytes, got ${article(typeof source)}`);
  }
  const node = typeof process === "object" && process.versions?.node !== undefined;
  const remote = /^(https?|data|blob):/.test(String(source));
  try {
    if (node && !remote) {
      const { readFile } = await import("node:fs/promises");
      const isUrl = source instanceof URL || source.startsWith("file:");
      const read = await readFile(isUrl ? new URL(source) : source);
      return new Uint8Array(read.buffer, read.byteOffset, read.byteLength);
    }
    const response = await fetch(source);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return new Uint8Array(await response.arrayBuffer());
  } catch (cause) {
    throw new MsedgeError(`${what}: ${source} cannot be read: ${cause.message}; check the address`, { cause });
  }
}

async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) {
    throw new MsedgeError("digests cannot be checked in an insecure context; serve the page by https or from localhost");
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function block(flat, { at, bytes }) {
  return flat.subarray(at, at + bytes);
}

/** A flat file's tables, checked: structure, digest, and the bounds of every block and operand. */
async function readFlat(flat) {
  if (flat.length < HEADER + DIGEST) fail(`${HEADER + DIGEST} bytes or more`, `${flat.length}`);
  const view = new DataView(flat.buffer, flat.byteOffset, flat.length);
  const magic = String.fromCharCode(...flat.subarray(0, MAGIC.length));
  if (magic !== MAGIC) fail(`${JSON.stringify(MAGIC)} at its start`, JSON.stringify(magic));
  const version = view.getUint32(8, true), size = view.getUint32(12, true);
  if (version !== VERSION) {
    throw new MsedgeError(
      `model: expected a flat file of version ${VERSION}, got version ${version}; ` +
        "use the msedge.mjs of the same build, or build the model again",
    );
  }
  if (size !== flat.length) fail(`${size} bytes, as its header says`, `${flat.length}`);
  const end = flat.length - DIGEST;
  const digest = hex(flat.subarray(end)), found = hex(await sha256(flat.subarray(0, end)));
  if (digest !== found) fail(`contents with the SHA-256 ${digest}`, found);
  return new Reader(flat, view, end).whole();
}

function fail(expected, got) {
  throw new MsedgeError(`model: the flat file is damaged: expected ${expected}, got ${got}; build it again`);
}

function check(value, what, low, high) {
  if (!Number.isSafeInteger(value) || value < low || value > high) fail(`${what} of ${low} to ${high}`, `${value}`);
  return value;
}

function differing(rows, what) {
  if (new Set(rows.map((row) => row.name)).size !== rows.length) fail(`${what} of different names`, "equal ones");
  return rows;
}

/** Reads the tables of a flat file; the format is described in converter/ahead/flat.py. */
class Reader {
  constructor(flat, view, end) {
    Object.assign(this, { flat, view, end, read: new Map(), tables: {} });
    for (const [i, [name, words]] of Object.entries(TABLES).entries()) {
      const at = this.word(DIRECTORY + 8 * i), count = this.word(DIRECTORY + 8 * i + 4), bytes = 4 * words || 1;
      check(at, `the table of ${name} at a place`, HEADER, end);
      check(count, `rows of ${name}`, 0, Math.floor((end - at) / bytes));
      if (at % 4) fail(`${name} at whole words`, `${at}`);
      this.tables[name] = { at, count, bytes };
    }
    const { at, count } = this.tables.texts;
    if (!count || flat[at + count - 1]) fail("texts that end with a zero byte", "others");
  }

  word(at) {
    return this.view.getUint32(at, true);
  }

  /** The table of these rows, if it has them. */
  within(name, first, many) {
    check(first, `a row of ${name}`, 0, this.tables[name].count);
    check(many, `a number of ${name}`, 0, this.tables[name].count - first);
    return this.tables[name];
  }

  /** The words of some rows, each as an array. */
  rows(name, first = 0, many = this.tables[name].count) {
    const { at, bytes } = this.within(name, first, many);
    const row = (i) => Array.from({ length: bytes / 4 }, (_, j) => this.word(at + bytes * (first + i) + 4 * j));
    return Array.from({ length: many }, (_, i) => row(i));
  }

  text(offset) {
    const { at, count } = this.tables.texts;
    check(offset, "a text", 0, count - 1);
    if (!this.read.has(offset)) {
      const begin = at + offset, text = this.flat.subarray(begin, this.flat.indexOf(0, begin));
      try {
        this.read.set(offset, new TextDecoder("utf-8", { fatal: true }).decode(text));
      } catch {
        fail("texts in UTF-8", `others at ${begin}`);
      }
    }
    return this.read.get(offset);
  }

  block(at, bytes, what) {
    check(at, `${what} at a place`, HEADER, this.end);
    check(bytes, `bytes of ${what}`, 0, this.end - at);
    if (at % ALIGN) fail(`${what} at a multiple of ${ALIGN}`, `${at}`);
    return { at, bytes };
  }

  tensor([text, number, rank, first], what) {
    const name = this.text(text), dtype = DTYPES[check(number, `the dtype of ${what}`, 0, DTYPES.length - 1)];
    const shape = this.rows("sizes", first, rank).map(([size]) => size);
    const elements = shape.includes(0) ? 0 : shape.reduce((product, size) => Math.min(product * size, 2 ** 52), 1);
    check(elements, `elements of ${what}`, 0, MOST_ELEMENTS);
    return { name, dtype, shape, elements, bytes: elements * ARRAYS[dtype].BYTES_PER_ELEMENT };
  }

  whole() {
    const text = (at) => this.text(this.word(at));
    this.arena = this.word(16);
    this.kernels = this.rows("kernels").map(([name]) => this.text(name));
    this.nodes = this.rows("nodes").map(([name]) => this.text(name));
    this.constants = this.rows("constants").map(([at, bytes], i) => this.block(at, bytes, `constant ${i}`));
    this.states = differing(this.rows("states").map((row, i) => {
      const tensor = this.tensor(row, `state ${i}`);
      return { ...tensor, ...this.block(row[4], tensor.bytes, `state ${i}`) };
    }), "states");
    this.held = [...this.constants, ...this.states];
    this.free = FIRST_FREE + this.held.length;
    check(this.tables.signatures.count, "signatures", 1, MOST_SIGNATURES);
    const signatures = differing(this.rows("signatures").map((row) => this.signature(row)), "signatures");
    const { arena, kernels, constants, states } = this, digest = hex(this.flat.subarray(32, 64));
    return { madeBy: text(20), bundle: text(24), target: text(28), digest, arena, kernels, constants, states, signatures };
  }

  signature([text, runs, bits, steps, program, words, operands, count, ...ranges]) {
    const [node, nodes, buffer, buffers, port, inputs, outputs] = ranges;
    const name = this.text(text), tolerance = new Float32Array(Uint32Array.of(bits).buffer)[0];
    check(runs, `runs of ${name}`, 1, MOST_RUNS);
    if (!(tolerance >= 0)) fail(`a tolerance of 0 or more for ${name}`, `${tolerance}`);
    this.within("nodes", node, nodes);
    const made = {
      name, runs, tolerance, steps,
      program: this.block(program, 8 * words, `the program of ${name}`),
      operands: this.block(operands, 4 * count, `the operands of ${name}`),
      nodes: this.nodes.slice(node, node + nodes),
      buffers: this.rows("buffers", buffer, buffers).map(([bytes, role]) => {
        return { bytes, written: check(role, `the role of a buffer of ${name}`, 0, 1) === 1 };
      }),
      inputs: differing(this.rows("ports", port, inputs).map((row) => this.port(row, name)), `inputs of ${name}`),
      outputs: differing(this.rows("ports", port + inputs, outputs).map((row) => this.port(row, name)), `outputs of ${name}`),
    };
    this.checkPorts(made);
    this.checkOperands(made);
    return made;
  }

  port(row, signature) {
    const what = `a port of ${signature}`, [base, offset, state, sample] = row.slice(4);
    return { ...this.tensor(row, what), base, offset, state: check(state, `the state of ${what}`, 0, this.states.length), sample };
  }

  /** A buffer's bytes by its base; undefined for a base that names none. */
  bytesOf(base, buffers) {
    if (base < ARENA || base >= this.free) return base === 0 ? 0 : buffers[base - this.free]?.bytes;
    return base === ARENA ? this.arena : this.held[base - FIRST_FREE].bytes;
  }

  /** Every input has a buffer or a state of its own; outputs lie in buffers; samples are there. */
  checkPorts({ name, buffers, inputs, outputs }) {
    const firstState = this.free - this.states.length, taken = new Set();
    for (const port of inputs) {
      const what = `input ${port.name} of ${name}`, buffer = buffers[port.base - this.free];
      const state = this.states[port.base - firstState];
      check(port.base, `the base of ${what}`, firstState, this.free + buffers.length - 1);
      check(port.offset, `the offset of ${what}`, 0, 0);
      check(port.state, `the state of ${what}`, 0, 0);
      if (state ? state.dtype !== port.dtype || state.bytes !== port.bytes : buffer.bytes !== port.bytes) {
        fail(`${what} of ${(state ?? buffer).bytes} bytes`, `${port.dtype}, ${port.bytes}`);
      }
      if (!state && (buffer.written || taken.has(port.base))) fail(`${what} with a buffer of its own`, "a shared one");
      if (!state) this.block(port.sample, port.bytes, `the sample of ${what}`);
      taken.add(port.base);
    }
    for (const port of outputs) {
      const what = `output ${port.name} of ${name}`, bytes = this.bytesOf(port.base, buffers);
      if (port.base < ARENA || bytes === undefined) fail(`${what} in a buffer`, `base ${port.base}`);
      check(port.offset, `the offset of ${what}`, 0, bytes - port.bytes);
      if (port.offset % ARRAYS[port.dtype].BYTES_PER_ELEMENT) fail(`${what} at whole elements`, `${port.offset}`);
      const state = this.states[port.state - 1];
      if (!state && port.sample) this.block(port.sample, port.bytes, `the sample of ${what}`);
      if (state && (state.dtype !== port.dtype || state.bytes !== port.bytes)) {
        fail(`${what} like the state ${state.name} (${state.dtype}, ${state.bytes} bytes)`, `${port.dtype}, ${port.bytes}`);
      }
    }
  }

  /** Every operand lies in its buffer, and none that is written lies in a constant, a state or an input. */
  checkOperands({ name, steps, program, operands, buffers }) {
    const sizes = Array.from({ length: this.free + buffers.length }, (_, base) => this.bytesOf(base, buffers));
    const writable = (base) => base === 0 || base === ARENA || (base >= this.free && buffers[base - this.free].written);
    const words = Array.from(new BigInt64Array(block(this.flat, program).slice().buffer), Number);
    const rows = new Uint32Array(block(this.flat, operands).slice().buffer);
    let at = 0, row = 0;
    for (let step = 0; step < steps; step += 1) {
      const where = `${name}, step ${step}`, count = rows[row];
      check(words[at + LENGTH], `${where}: its length`, HEAD, words.length - at);
      check(count, `${where}: its operands`, 0, (words[at + LENGTH] - HEAD) >> 1);
      if (row + 1 + 2 * count > rows.length) fail(`${where}: rows of ${count} operands`, `${rows.length - row - 1} words`);
      check(words[at + KERNEL], `${where}: its kernel`, 0, this.kernels.length - 1);
      check(words[at + FLAGS], `${where}: its flags`, 0, Number.MAX_SAFE_INTEGER);
      if (words[at + FLAGS] % 8 >= JUMP) fail(`${where}: no jump`, "one");
      for (let i = 0; i < count; i += 1) {
        const base = words[at + HEAD + 2 * i], offset = words[at + HEAD + 2 * i + 1];
        const bytes = rows[row + 1 + 2 * i], role = rows[row + 2 + 2 * i], what = `${where}: operand ${i}`;
        if (sizes[base] === undefined) fail(`${what} in a buffer`, `base ${base}`);
        check(offset, `${what}: its offset`, 0, sizes[base] - bytes);
        check(role, `${what}: its role`, READ, SCRATCH);
        if (role !== READ && !writable(base)) fail(`${what} to be read`, "one that is written");
      }
      at += words[at + LENGTH];
      row += 1 + 2 * count;
    }
    if (at !== words.length || row !== rows.length) fail(`${name}: a program of ${steps} steps`, `${words.length} words`);
  }
}

// -- memory and numbers -----------------------------------------------------------------------------------------------

function grow(memory, bytes) {
  const pages = Math.ceil(bytes / PAGE) - memory.buffer.byteLength / PAGE;
  try {
    if (pages > 0) memory.grow(pages);
  } catch (cause) {
    throw new MsedgeError(`the model needs ${Math.ceil(bytes / 2 ** 20)} MiB of memory, which this engine refuses`, { cause });
  }
}

/** The places of kernels in a module's table of functions: the custom section names them in the order of the table. */
function slots(module, kernels) {
  const [section] = WebAssembly.Module.customSections(module, KERNELS);
  const names = section ? new TextDecoder().decode(section).split("\n") : [];
  return kernels.map((name) => {
    const at = names.indexOf(name);
    if (at < 0) throw new MsedgeError(`kernels: expected a module with ${name}, got one of ${names.join(" ") || "none"}`);
    return at + 1;
  });
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

/** The number whose float16 has these bits. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

function article(name) {
  return `${/^[AEIOU]/i.test(name) && !/^Uint/.test(name) ? "an" : "a"} ${name}`;
}
