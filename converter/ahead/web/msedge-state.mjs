// A model's state as a file (.msstate, which msedge's Python reads and writes too), and in the browser's database.
//
// The file: a header of 64 bytes, a table with a row of 96 bytes for each section, the sections, each at a multiple of 64.
// The section `manifest` is JSON, deflated or not: {state, tensors, model, metadata}; `weights` has arrays. A row of
// tensors is [dtype, shape, offset, bytes, digest], or [dtype, shape, contents in base64]; a state is a number of such a
// row, or [dtype, shape] of zeros. Digests are BLAKE2b-256.

import { blake2b } from "./msedge-blake.mjs";
import { MsedgeError } from "./msedge-errors.mjs";
import { hex } from "./msedge-files.mjs";
import { ARRAYS } from "./msedge-flat.mjs";

const MAGIC = "\x89MSSTAT\n", ENDIAN = 0x01020304, FORMAT = 2, NEEDS = 1 << 10;
const HEADER = 64, ROW = 96, DIGEST = 32, ALIGN = 64, NAME = 32, PAGE = 4096, PAGE_FROM = 1 << 20;
const MOST_SECTIONS = 1024, MOST_TEXT = 1 << 25, ZEROS = 8;
const DATABASE = "msedge", STORE = "state";

const aligned = (at, to) => Math.ceil(at / to) * to;

// -- writing ----------------------------------------------------------------------------------------------------------

/** A state file's bytes. states: [{name, dtype, shape, array}]; model: the bundle's digest. */
export function written(states, model) {
  const weights = [], tensors = [], state = {};
  let end = 0;
  for (const { name, dtype, shape, array } of states.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
    const content = new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at = aligned(end, ALIGN);
    weights.push([at, content]);
    state[name] = tensors.push([dtype, shape, at, content.length, hex(blake2b(content))]) - 1;
    end = at + content.length;
  }
  const data = new Uint8Array(end);
  for (const [at, content] of weights) data.set(content, at);
  const text = new TextEncoder().encode(JSON.stringify({ metadata: {}, model, state, tensors }));
  return laidOut([["manifest", text], ["weights", data]]);
}

function laidOut(sections) {
  let end = HEADER + ROW * sections.length;
  const places = sections.map(([name, content]) => {
    const at = aligned(end, name === "weights" && content.length >= PAGE_FROM ? PAGE : ALIGN);
    end = at + content.length;
    return at;
  });
  const bytes = new Uint8Array(end), view = new DataView(bytes.buffer);
  bytes.set(Uint8Array.from(MAGIC, (letter) => letter.charCodeAt(0)));
  view.setUint32(8, ENDIAN, true);
  view.setUint16(12, FORMAT, true);
  view.setUint16(14, sections.length, true);
  view.setUint32(16, NEEDS, true);
  view.setBigUint64(24, BigInt(end), true);
  for (const [i, [name, content]] of sections.entries()) {
    const row = HEADER + ROW * i;
    bytes.set(new TextEncoder().encode(name), row);
    view.setBigUint64(row + 32, BigInt(places[i]), true);
    view.setBigUint64(row + 40, BigInt(content.length), true);
    view.setUint32(row + 48, 1, true); // required
    view.setUint32(row + 52, NEEDS, true);
    bytes.set(blake2b(content), row + 64);
    bytes.set(content, places[i]);
  }
  bytes.set(headDigest(bytes, sections.length), HEADER - DIGEST);
  return bytes;
}

function headDigest(bytes, count) {
  const signed = HEADER - DIGEST, table = bytes.subarray(HEADER, HEADER + ROW * count);
  const both = new Uint8Array(signed + table.length);
  both.set(bytes.subarray(0, signed));
  both.set(table, signed);
  return blake2b(both);
}

// -- reading ----------------------------------------------------------------------------------------------------------

function fail(expected, got) {
  throw new MsedgeError(`state file: expected ${expected}, got ${got}; it is damaged, or no state file: save it again`);
}

function same(digest, wanted, what) {
  if (hex(digest) !== hex(wanted)) fail(`${what} with the digest ${hex(wanted)}`, hex(digest));
}

/** The arrays of a state file, by name. Everything is checked that its reader relies on. */
export async function read(bytes) {
  const sections = sectionsOf(bytes);
  for (const name of ["manifest", "weights"]) if (!sections.has(name)) fail(`a section ${name}`, "none");
  const { state, tensors } = await manifestOf(sections.get("manifest")), weights = sections.get("weights");
  if (!isObject(state) || !Array.isArray(tensors)) fail("a manifest with state and tensors", "another");
  let room = ZEROS * weights.length + ZEROS * bytes.length;
  return Object.fromEntries(Object.entries(state).map(([name, row]) => {
    const zeros = Array.isArray(row), found = zeros ? row : Number.isInteger(row) && tensors[row];
    if (!Array.isArray(found)) fail(`a tensor for ${name}`, `${row}`);
    const [dtype, shape, ...rest] = found;
    const size = sizeOf(dtype, shape, name);
    if (zeros && (room -= size) < 0) fail(`${name} with room for its zeros`, `${size} bytes`);
    const content = zeros ? new Uint8Array(size) : contentOf(rest, weights, name);
    if (content.length !== size) fail(`${size} bytes of ${name}`, `${content.length}`);
    return [name, new ARRAYS[dtype](content.slice().buffer)];
  }));
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function sectionsOf(bytes) {
  if (bytes.length < HEADER) fail(`${HEADER} bytes or more`, `${bytes.length}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const magic = String.fromCharCode(...bytes.subarray(0, MAGIC.length)), format = view.getUint16(12, true);
  if (magic !== MAGIC || view.getUint32(8, true) !== ENDIAN) fail("a state file", JSON.stringify(magic));
  if (format !== FORMAT) fail(`format ${FORMAT}`, `${format}, of another version of msedge`);
  const count = view.getUint16(14, true), size = view.getBigUint64(24, true);
  if (size !== BigInt(bytes.length)) fail(`${size} bytes, as its header says`, `${bytes.length}`);
  const fits = count <= MOST_SECTIONS && HEADER + ROW * count <= bytes.length;
  if (!fits) fail("a table of sections within the file", `${count} rows`);
  same(headDigest(bytes, count), bytes.subarray(HEADER - DIGEST, HEADER), "a header and table");
  const found = new Map();
  for (let row = HEADER; row < HEADER + ROW * count; row += ROW) {
    const name = new TextDecoder().decode(bytes.subarray(row, row + NAME)).replace(/\0+$/, "");
    const [at, many] = [32, 40].map((place) => Number(view.getBigUint64(row + place, true)));
    if (!(at + many <= bytes.length)) fail(`the section ${name} within the file`, `${at} to ${at + many}`);
    const content = bytes.subarray(at, at + many);
    same(blake2b(content), bytes.subarray(row + 64, row + 96), `the section ${name}`);
    found.set(name, content);
  }
  return found;
}

async function manifestOf(section) {
  try {
    const text = section[0] === 0x78 ? await inflated(section) : section;
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(text));
  } catch (cause) {
    return fail("a manifest of JSON", cause.message);
  }
}

async function inflated(section) {
  const parts = [], stream = new Blob([section]).stream().pipeThrough(new DecompressionStream("deflate"));
  let count = 0;
  for (const reader = stream.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    parts.push(value);
    if ((count += value.length) > MOST_TEXT) throw new Error(`more than ${MOST_TEXT} bytes`);
  }
}

function sizeOf(dtype, shape, name) {
  const whole = Array.isArray(shape) && shape.every((size) => Number.isSafeInteger(size) && size >= 0);
  if (!Object.hasOwn(ARRAYS, dtype) || !whole) {
    fail(`${name} with a dtype and a shape`, JSON.stringify([dtype, shape])?.slice(0, 80));
  }
  const bytes = shape.reduce((product, size) => product * size, ARRAYS[dtype].BYTES_PER_ELEMENT);
  if (!(bytes <= 2 ** 32)) fail(`${name} of at most 4 GiB`, `${bytes} bytes`);
  return bytes;
}

function contentOf([at, bytes, digest], weights, name) {
  if (typeof at === "string") {
    try {
      return Uint8Array.from(atob(at), (letter) => letter.charCodeAt(0));
    } catch {
      return fail(`${name} in base64`, at.slice(0, 40));
    }
  }
  const whole = Number.isSafeInteger(at) && Number.isSafeInteger(bytes);
  const inside = whole && at >= 0 && bytes >= 0 && at + bytes <= weights.length;
  if (!inside) fail(`${name} within the weights`, `${bytes} bytes at ${at}`);
  const content = weights.subarray(at, at + bytes);
  if (hex(blake2b(content)) !== digest) fail(`${name} with the digest ${digest}`, "another");
  return content;
}

// -- the browser's database -------------------------------------------------------------------------------------------

/** Stores a value under a key. */
export function put(key, value) {
  return transaction("readwrite", (store) => store.put(value, key));
}

/** The value under a key; undefined if there is none. */
export function get(key) {
  return transaction("readonly", (store) => store.get(key));
}

/** The value under a key; the first time, `fresh`, which is stored. */
export async function kept(key, fresh) {
  const found = await transaction("readwrite", (store) => {
    const asked = store.get(key);
    asked.onsuccess = () => {
      if (asked.result === undefined) store.put(fresh, key);
    };
    return asked;
  });
  return found ?? fresh;
}

async function transaction(mode, ask) {
  if (!globalThis.indexedDB) throw new MsedgeError("state: there is no IndexedDB here; use stateFile() and loadStateFile()");
  const database = await settled(indexedDB.open(DATABASE), (opening) => {
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  });
  try {
    const change = database.transaction(STORE, mode), asked = ask(change.objectStore(STORE));
    await new Promise((done, failed) => {
      change.oncomplete = done;
      change.onabort = () => failed(change.error);
    });
    return asked.result;
  } catch (cause) {
    throw new MsedgeError(`state: the browser's database refuses it (${cause.message}); free some of its space`, { cause });
  } finally {
    database.close();
  }
}

function settled(request, prepare) {
  prepare(request);
  return new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => {
      failed(new MsedgeError(`state: the browser's database cannot be opened (${request.error.message})`));
    };
  });
}
