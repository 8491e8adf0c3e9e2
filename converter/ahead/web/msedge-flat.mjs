// Reads a flat file: its tables, checked. The format is described in converter/ahead/flat.py.

import { hex, sha256 } from "./msedge-files.mjs";
import { MsedgeError } from "./msedge-errors.mjs";

const MAGIC = "MSFLAT\r\n", VERSION = 2, HEADER = 192, DIGEST = 32, ALIGN = 64;
const DIRECTORY = 64, SIZE = 12; // places in the header: the tables', the file's bytes
const ARENA = 2; // a base; 0 is nothing
const KERNEL = 0, LENGTH = 1, FLAGS = 2, HEAD = 3, JUMP = 4; // words of a record; a flag
const READ = 0, SCRATCH = 3; // roles of operands
const MOST_ELEMENTS = 2 ** 32, MOST_SIGNATURES = 64, MOST_RUNS = 2;

/** The first base that is a constant. */
export const FIRST_FREE = 3;

/** Tables of a flat file, with the words of a row; texts are bytes. */
const TABLES = {
  texts: 0, sizes: 1, kernels: 1, constants: 2, states: 5, buffers: 2, ports: 8, nodes: 1, signatures: 15,
};

/** Array types by dtype, in the order of a flat file's numbers; bool has bytes of 0 and 1, float16 its bits. */
export const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float16: Uint16Array, float32: Float32Array,
  float64: Float64Array,
};
const DTYPES = Object.keys(ARRAYS);

/** The number whose float16 has these bits. */
export function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/** The bytes of a whole file, from its first ones; undefined if there are too few of them. */
export function sizeOf(flat) {
  return flat.length < SIZE + 4 ? undefined : new DataView(flat.buffer, flat.byteOffset).getUint32(SIZE, true);
}

export function block(flat, { at, bytes }) {
  return flat.subarray(at, at + bytes);
}

/** A flat file's tables, checked: structure, digest, and the bounds of every block and operand. */
export async function readFlat(flat) {
  if (flat.length < HEADER + DIGEST) fail(`${HEADER + DIGEST} bytes or more`, `${flat.length}`);
  const view = new DataView(flat.buffer, flat.byteOffset, flat.length);
  const magic = String.fromCharCode(...flat.subarray(0, MAGIC.length));
  if (magic !== MAGIC) fail(`${JSON.stringify(MAGIC)} at its start`, JSON.stringify(magic));
  const version = view.getUint32(8, true), size = sizeOf(flat);
  if (version !== VERSION) {
    throw new MsedgeError(
      `model: expected a flat file of version ${VERSION}, got version ${version}; ` +
        "use the msedge.mjs of the same build, or build the model again",
    );
  }
  if (size !== flat.length) fail(`${size} bytes, as its header says`, `${flat.length}`);
  const end = flat.length - DIGEST;
  const digest = hex(flat.subarray(end)), found = await sha256(flat.subarray(0, end));
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
