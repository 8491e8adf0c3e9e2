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

const MAGIC = "MSFLAT\r\n", VERSION = 1, HEADER = 64, DIGEST = 32, ALIGN = 64, PAGE = 65536;
const FAULT = 1, ARENA = 2; // entries of the table of bases; 0 is always 0
const KERNEL = 0, LENGTH = 1, FLAGS = 2, HEAD = 3, JUMP = 4; // words of a record; a flag
const READ = 0, SCRATCH = 3; // roles of operands
const CONTEXT = 7; // words of the walker's context
const KERNELS = "msedge.kernels"; // the custom section that names a module's kernels
const MOST_ELEMENTS = 2 ** 32;

/** Array types by dtype; bool has bytes of 0 and 1, float16 its bits. */
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float16: Uint16Array, float32: Float32Array,
  float64: Float64Array,
};

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
  if (found !== head.kernels_sha256) {
    throw new MsedgeError(
      `kernels: expected the module with the SHA-256 ${head.kernels_sha256}, got ${found}; ` +
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
  #head;
  #memory;
  #run;
  #context;
  #fault;
  #inputs;
  #outputs;

  /** Made by `load`. */
  constructor(flat, head, module, instance) {
    this.#flat = flat;
    this.#head = head;
    const { memory, run, heap } = instance.exports;
    this.#memory = memory;
    this.#run = run;
    let free = heap.value;
    const take = (bytes) => {
      const at = Math.ceil(free / ALIGN) * ALIGN;
      free = at + bytes;
      return at;
    };
    const context = take(8 * CONTEXT), fault = take(8), table = take(8 * head.kernels.length);
    const bases = take(8 * head.bases), program = take(head.program.bytes);
    const places = new Map([[FAULT, fault], [ARENA, take(head.arena)]]);
    for (const constant of head.constants) places.set(constant.base, take(constant.bytes));
    for (const port of [...head.inputs, ...head.outputs]) {
      if (!places.has(port.base)) places.set(port.base, take(port.bytes));
    }
    grow(memory, take(0));
    const bytes = new Uint8Array(memory.buffer);
    const words = (at, count) => new BigInt64Array(memory.buffer, at, count);
    bytes.set(block(flat, head.program), program);
    for (const constant of head.constants) bytes.set(block(flat, constant), places.get(constant.base));
    for (const [base, place] of places) words(bases, head.bases)[base] = BigInt(place);
    words(table, head.kernels.length).set(slots(module, head.kernels));
    words(context, 4).set([program, head.program.bytes / 8, bases, table].map(BigInt));
    this.#context = context;
    this.#fault = fault;
    const placed = (port) => ({ ...port, place: places.get(port.base) + port.offset });
    this.#inputs = new Map(head.inputs.map((port) => [port.name, placed(port)]));
    this.#outputs = new Map(head.outputs.map((port) => [port.name, placed(port)]));
    const shown = ({ name, dtype, shape }) => Object.freeze({ name, dtype, shape: Object.freeze([...shape]) });
    this.inputs = Object.freeze(head.inputs.map(shown));
    this.outputs = Object.freeze(head.outputs.map(shown));
    this.bundle = head.bundle;
    this.signature = head.signature;
    this.madeBy = head.made_by;
    this.memoryBytes = memory.buffer.byteLength;
    Object.freeze(this);
  }

  /** Runs the model on arrays by input name; returns arrays by output name. */
  run(inputs) {
    const given = inputs !== null && typeof inputs === "object" ? Object.keys(inputs) : [];
    const unknown = given.filter((name) => !this.#inputs.has(name));
    const missing = [...this.#inputs.keys()].filter((name) => !given.includes(name));
    if (unknown.length || missing.length) {
      const names = [...this.#inputs.keys()].join(", ");
      throw new MsedgeError(`inputs: expected the names ${names}, got ${given.join(", ") || "none"}`);
    }
    for (const port of this.#inputs.values()) {
      const array = inputs[port.name], kind = ARRAYS[port.dtype];
      if (!(array instanceof kind) || array.length !== port.elements) {
        const got = array?.constructor?.name ?? typeof array, many = array?.length ?? "no";
        throw new MsedgeError(
          `input ${port.name}: expected ${article(kind.name)} of ${port.elements} elements ` +
            `(${port.dtype} [${port.shape}]), got ${article(got)} of ${many}`,
        );
      }
    }
    for (const port of this.#inputs.values()) this.#view(port).set(inputs[port.name]);
    try {
      this.#run(this.#context);
    } catch (cause) {
      throw new MsedgeError(`the model stopped (${cause.message}): its files are damaged; build them again`, { cause });
    }
    const fault = new BigInt64Array(this.#memory.buffer, this.#fault, 1), found = fault[0];
    if (found !== 0n) {
      fault[0] = 0n;
      const where = this.#head.nodes[Number(found >> 8n)] ?? "a step";
      throw new MsedgeError(`${where}: an index is outside the tensor that it indexes; check the model's index inputs`);
    }
    return Object.fromEntries([...this.#outputs.values()].map((port) => [port.name, this.#view(port).slice()]));
  }

  /** Inputs by name of the sample in the file. */
  sampleInputs() {
    return this.#sample("inputs");
  }

  /**
   * Runs the sample in the file and compares: integers must be equal, floats may differ by `allowed`, a share of the
   * largest magnitude. Returns a row for each output, or throws MsedgeError for the first that differs.
   */
  selfTest() {
    const got = this.run(this.#sample("inputs")), expected = this.#sample("outputs");
    return this.#head.outputs.map(({ name, dtype }) => {
      const allowed = dtype.startsWith("float") ? this.#head.sample.tolerance : 0;
      const largest = distance(got[name], expected[name], dtype);
      if (!(largest <= allowed)) {
        throw new MsedgeError(
          `self-test: output ${name} differs by ${largest} of its largest magnitude, where ${allowed} is allowed; ` +
            "this engine computes wrongly, or the files are damaged: build them again",
        );
      }
      return { name, largest, allowed };
    });
  }

  #sample(side) {
    const ports = this.#head[side], blocks = this.#head.sample[side];
    return Object.fromEntries(
      ports.map(({ name, dtype }, i) => [name, new ARRAYS[dtype](block(this.#flat, blocks[i]).slice().buffer)]),
    );
  }

  #view(port) {
    return new ARRAYS[port.dtype](this.#memory.buffer, port.place, port.elements);
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

/** The head of a flat file, checked: structure, digest, types, and the bounds of every block and operand. */
async function readFlat(flat) {
  if (flat.length < HEADER + DIGEST) fail(`${HEADER + DIGEST} bytes or more`, `${flat.length}`);
  const view = new DataView(flat.buffer, flat.byteOffset, flat.length);
  const magic = String.fromCharCode(...flat.subarray(0, MAGIC.length));
  if (magic !== MAGIC) fail(`${JSON.stringify(MAGIC)} at its start`, JSON.stringify(magic));
  const version = view.getUint32(8, true), length = view.getUint32(12, true), size = view.getUint32(16, true);
  if (version !== VERSION) {
    throw new MsedgeError(
      `model: expected a flat file of version ${VERSION}, got version ${version}; ` +
        "use the msedge.mjs of the same build, or build the model again",
    );
  }
  if (size !== flat.length) fail(`${size} bytes, as its header says`, `${flat.length}`);
  const end = flat.length - DIGEST;
  if (HEADER + length > end) fail(`a head within ${end} bytes`, `one that ends at ${HEADER + length}`);
  const digest = hex(flat.subarray(end)), found = hex(await sha256(flat.subarray(0, end)));
  if (digest !== found) fail(`contents with the SHA-256 ${digest}`, found);
  let head;
  try {
    head = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(flat.subarray(HEADER, HEADER + length)));
  } catch (cause) {
    fail("a head of JSON", cause.message);
  }
  checkHead(head, HEADER + length, end);
  checkOperands(head, flat);
  return head;
}

function fail(expected, got) {
  throw new MsedgeError(`model: the flat file is damaged: expected ${expected}, got ${got}; build it again`);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function checkInteger(value, what, low, high) {
  if (!Number.isSafeInteger(value) || value < low || value > high) {
    fail(`${what} to be an integer of ${low} to ${high}`, JSON.stringify(value) ?? "nothing");
  }
}

function checkList(value, what, check) {
  if (!Array.isArray(value)) fail(`${what} to be a list`, JSON.stringify(value)?.slice(0, 40) ?? "nothing");
  value.forEach((each, i) => check(each, `${what}[${i}]`));
}

function checkText(value, what) {
  if (typeof value !== "string") fail(`${what} to be text`, JSON.stringify(value)?.slice(0, 40) ?? "nothing");
}

function checkHead(head, start, end) {
  if (!isObject(head)) fail("a head that is an object", JSON.stringify(head).slice(0, 40));
  const checkBlock = (value, what, unit = 1) => {
    if (!isObject(value)) fail(`${what} to be a block`, JSON.stringify(value)?.slice(0, 40) ?? "nothing");
    checkInteger(value.at, `${what}.at`, start, end);
    checkInteger(value.bytes, `${what}.bytes`, 0, end - value.at);
    if (value.at % ALIGN || value.bytes % unit) fail(`${what} at a multiple of ${ALIGN}, of whole words`, `${value.at}`);
  };
  for (const name of ["made_by", "bundle", "signature", "target", "kernels_sha256"]) checkText(head[name], name);
  checkList(head.kernels, "kernels", checkText);
  checkList(head.nodes, "nodes", checkText);
  checkInteger(head.arena, "arena", 0, MOST_ELEMENTS);
  checkInteger(head.bases, "bases", ARENA + 1, 1 << 24);
  checkInteger(head.steps, "steps", 0, 1 << 24);
  checkBlock(head.program, "program", 8);
  checkBlock(head.operands, "operands", 4);
  const taken = new Set([0, FAULT, ARENA]);
  const checkBase = (base, what) => {
    checkInteger(base, what, ARENA + 1, head.bases - 1);
    if (taken.has(base)) fail(`${what} to be a base of its own`, `${base}, which is taken`);
    taken.add(base);
  };
  checkList(head.constants, "constants", (constant, what) => {
    checkBlock(constant, what);
    checkBase(constant.base, `${what}.base`);
  });
  checkList(head.inputs, "inputs", (port, what) => {
    checkPort(port, what);
    checkBase(port.base, `${what}.base`);
    checkInteger(port.offset, `${what}.offset`, 0, 0);
  });
  checkList(head.outputs, "outputs", checkPort);
  for (const side of ["inputs", "outputs"]) {
    if (new Set(head[side].map((port) => port.name)).size !== head[side].length) fail(`${side} of different names`, "equal ones");
    checkList(head.sample?.[side], `sample.${side}`, checkBlock);
    const sizes = head[side].map((port) => port.bytes), found = head.sample[side].map((each) => each.bytes);
    if (`${sizes}` !== `${found}`) fail(`sample.${side} of ${sizes} bytes`, `${found}`);
  }
  const share = head.sample.tolerance;
  if (typeof share !== "number" || !(share >= 0)) fail("sample.tolerance to be a number of 0 or more", `${share}`);
}

function checkPort(port, what) {
  if (!isObject(port)) fail(`${what} to be an object`, JSON.stringify(port)?.slice(0, 40) ?? "nothing");
  checkText(port.name, `${what}.name`);
  if (!Object.hasOwn(ARRAYS, port.dtype)) fail(`${what}.dtype of ${Object.keys(ARRAYS)}`, JSON.stringify(port.dtype));
  checkList(port.shape, `${what}.shape`, (size, where) => checkInteger(size, where, 0, MOST_ELEMENTS));
  port.elements = port.shape.reduce((product, size) => product * size, 1);
  checkInteger(port.elements, `the elements of ${what}`, 0, MOST_ELEMENTS);
  port.bytes = port.elements * ARRAYS[port.dtype].BYTES_PER_ELEMENT;
}

/** Every operand lies in its buffer, none that is written lies in a constant or an input, and outputs are there. */
function checkOperands(head, flat) {
  const sizes = new Map([[0, 0], [ARENA, head.arena]]), writable = new Set([ARENA]);
  for (const constant of head.constants) sizes.set(constant.base, constant.bytes);
  for (const port of head.inputs) sizes.set(port.base, port.bytes);
  for (const [i, port] of head.outputs.entries()) {
    checkInteger(port.base, `outputs[${i}].base`, ARENA, head.bases - 1);
    if (!sizes.has(port.base)) {
      checkInteger(port.offset, `outputs[${i}].offset`, 0, 0);
      sizes.set(port.base, port.bytes);
      writable.add(port.base);
    }
    checkInteger(port.offset, `outputs[${i}].offset`, 0, sizes.get(port.base) - port.bytes);
    if (port.offset % ARRAYS[port.dtype].BYTES_PER_ELEMENT) fail(`outputs[${i}] at whole elements`, `${port.offset}`);
  }
  const words = Array.from(new BigInt64Array(block(flat, head.program).slice().buffer), Number);
  const rows = new Uint32Array(block(flat, head.operands).slice().buffer);
  let at = 0, row = 0;
  for (let step = 0; step < head.steps; step += 1) {
    const where = `step ${step}`, count = rows[row];
    checkInteger(words[at + LENGTH], `${where}: its length`, HEAD, words.length - at);
    checkInteger(count, `${where}: its operands`, 0, (words[at + LENGTH] - HEAD) >> 1);
    if (row + 1 + 2 * count > rows.length) fail(`${where}: rows of ${count} operands`, `${rows.length - row - 1} words`);
    checkInteger(words[at + KERNEL], `${where}: its kernel`, 0, head.kernels.length - 1);
    checkInteger(words[at + FLAGS], `${where}: its flags`, 0, Number.MAX_SAFE_INTEGER);
    if (words[at + FLAGS] % 8 >= JUMP) fail(`${where}: no jump`, "one");
    for (let i = 0; i < count; i += 1) {
      const base = words[at + HEAD + 2 * i], offset = words[at + HEAD + 2 * i + 1];
      const bytes = rows[row + 1 + 2 * i], role = rows[row + 2 + 2 * i], what = `${where}: operand ${i}`;
      if (!sizes.has(base)) fail(`${what} in a buffer`, `base ${base}`);
      checkInteger(offset, `${what}: its offset`, 0, sizes.get(base) - bytes);
      checkInteger(role, `${what}: its role`, READ, SCRATCH);
      if (role !== READ && base !== 0 && !writable.has(base)) fail(`${what} to be read`, "one that is written");
    }
    at += words[at + LENGTH];
    row += 1 + 2 * count;
  }
  if (at !== words.length || row !== rows.length) fail(`a program of ${head.steps} steps`, `${words.length} words`);
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
    return BigInt(at + 1);
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
