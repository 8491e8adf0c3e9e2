// The bytes of a federation: messages (federated/messages/packed.py) and parameters in them (federated/codec).

import { MsedgeError } from "./msedge-errors.mjs";
import { digest as sha256 } from "./msedge-files.mjs";
import { ARRAYS, half } from "./msedge-flat.mjs";

const MAGIC = "MSF1", FRONT = 48, ALIGN = 16, MOST_HEAD = 1 << 22;
const VERSION = 2, WHOLE = 2, HEADER = 20, LIMIT = 1e38;
const TEXT = new TextEncoder();

/** Any error of a device or a message: what was expected, what was found. */
export class FederatedError extends MsedgeError {
  /** @param {string} message @param {ErrorOptions=} options */
  constructor(message, options) {
    super(message, options);
    this.name = "FederatedError";
  }
}

/** An object and arrays by name as bytes. arrays: [name, dtype, shape, array]. */
export async function pack(meta, arrays) {
  const rows = arrays.map(([name, dtype, shape]) => [[name], dtype, shape]);
  const head = TEXT.encode(JSON.stringify({ meta, arrays: rows }));
  const parts = [padded(head, 32), ...arrays.map(([, , , array]) => padded(bytesOf(array), 0))];
  const made = new Uint8Array(FRONT + parts.reduce((sum, part) => sum + part.length, 0));
  let at = FRONT;
  for (const part of parts) {
    made.set(part, at);
    at += part.length;
  }
  made.set(TEXT.encode(MAGIC));
  new DataView(made.buffer).setUint32(4, parts[0].length, true);
  made.set(await sha256(made.subarray(FRONT)), 8);
  return made;
}

/** The object and the arrays of a message, by path joined with "/". Refuses what `pack` does not write. */
export async function unpack(bytes) {
  const magic = String.fromCharCode(...bytes.subarray(0, MAGIC.length));
  if (bytes.length < FRONT || magic !== MAGIC) refuse(`${bytes.length} bytes that do not begin with ${MAGIC}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length), length = view.getUint32(4, true);
  if (length > Math.min(MOST_HEAD, bytes.length - FRONT)) refuse(`a head of ${length} bytes in ${bytes.length}`);
  const digest = await sha256(bytes.subarray(FRONT));
  if (digest.some((byte, i) => byte !== bytes[8 + i])) refuse("bytes that do not match their digest");
  let head;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(FRONT, FRONT + length));
    head = JSON.parse(text);
  } catch (cause) {
    refuse(`a head that is not JSON (${cause.message})`);
  }
  const { meta, arrays } = head ?? {};
  if (meta === null || typeof meta !== "object" || !Array.isArray(arrays)) refuse('a head without "meta" and "arrays"');
  const found = new Map();
  let at = FRONT + length;
  for (const row of arrays) {
    const [path, dtype, shape] = Array.isArray(row) ? row : [];
    const fits = Array.isArray(path) && path.every((part) => typeof part === "string") && Object.hasOwn(ARRAYS, dtype) &&
      Array.isArray(shape) && shape.every((side) => Number.isSafeInteger(side) && side >= 0);
    if (!fits) refuse(`an array described as ${JSON.stringify(row)?.slice(0, 80)}`);
    const count = shape.reduce((product, side) => product * side, 1), kind = ARRAYS[dtype];
    const size = count * kind.BYTES_PER_ELEMENT;
    if (!Number.isSafeInteger(size) || at + size > bytes.length) refuse(`array ${path.join("/")} past the end`);
    if (found.has(path.join("/"))) refuse(`${path.join("/")} twice`);
    found.set(path.join("/"), new kind(bytes.slice(at, at + size).buffer));
    at += size + (-size & (ALIGN - 1));
  }
  if (at !== bytes.length) refuse(`${bytes.length} bytes where the arrays take ${at}`);
  return { meta, arrays: found };
}

function refuse(got) {
  throw new FederatedError(`message: expected this msedge's format, got ${got}; both ends need the same one`);
}

function padded(bytes, fill) {
  const made = new Uint8Array(bytes.length + (-bytes.length & (ALIGN - 1))).fill(fill);
  made.set(bytes);
  return made;
}

function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

// -- parameters -------------------------------------------------------------------------------------------------------

/** Names of codecs, by the one part that each has; "" for none. */
const VALUES = { "": "float32", float32: "float32", float16: "float16" };

/** Parameters to bytes and back, all of them, in one number format. */
export class Codec {
  #names;
  #format;

  /** names: as in a message. Refuses what is not float32 or float16. */
  constructor(names) {
    const name = Array.isArray(names) && names.length < 2 ? (names[0] ?? "") : String(names);
    if (!Object.hasOwn(VALUES, name)) {
      throw new FederatedError(`codec: expected float32 or float16 alone, got ${JSON.stringify(names)}; set codec.up and codec.down`);
    }
    this.#names = name ? [[name, {}]] : [];
    this.#format = VALUES[name];
  }

  /** leaves: {path, shape} of float32 arrays, in order of their paths; values: all their elements, one after another. */
  async encode(leaves, values) {
    if (values.some((value) => !(Math.abs(value) <= LIMIT))) {
      throw new FederatedError("expected finite values; training diverged: lower the learning rate");
    }
    let body = bytesOf(values);
    if (this.#format === "float16") {
      const halves = Uint16Array.from(values, toHalf);
      if (halves.some((bits) => (bits & 0x7fff) === 0x7c00)) throw new FederatedError("codec float16: expected values up to 65504");
      body = bytesOf(halves);
    }
    const made = new Uint8Array(HEADER + body.length), view = new DataView(made.buffer);
    made.set(TEXT.encode("mf"));
    made.set([VERSION, 0], 2);
    made.set(await this.#digest(leaves), 4);
    view.setUint32(12, body.length, true);
    view.setUint32(16, crc32(body), true);
    made.set(body, HEADER);
    return made;
  }

  /** The elements of all leaves. Refuses bytes of another codec, model or version, and damaged ones. */
  async decode(leaves, bytes) {
    const count = leaves.reduce((sum, leaf) => sum + leaf.shape.reduce((product, side) => product * side, 1), 0);
    const size = count * (this.#format === "float16" ? 2 : 4);
    if (bytes.length !== HEADER + size) throw new FederatedError(`expected ${HEADER + size} bytes of parameters, got ${bytes.length}`);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const digest = await this.#digest(leaves), body = bytes.slice(HEADER);
    const fits = bytes[0] === 109 && bytes[1] === 102 && bytes[2] === VERSION && (bytes[3] === 0 || bytes[3] === WHOLE) &&
      digest.every((byte, i) => byte === bytes[4 + i]) && view.getUint32(12, true) === size;
    if (!fits) throw new FederatedError("the parameters belong to another model, codec or release; both ends need the same");
    if (view.getUint32(16, true) !== crc32(body)) throw new FederatedError("parameters damaged: their checksum differs");
    const values = this.#format === "float16" ? Float32Array.from(new Uint16Array(body.buffer), half) : new Float32Array(body.buffer);
    if (values.some((value) => !(Math.abs(value) <= LIMIT))) throw new FederatedError("expected finite parameters");
    return values;
  }

  async #digest(leaves) {
    const spec = JSON.stringify(leaves.map(({ path, shape }) => [path, shape, "float32"]));
    const parts = [TEXT.encode(JSON.stringify(this.#names)), (await sha256(TEXT.encode(spec))).subarray(0, 8)];
    const joined = new Uint8Array(parts[0].length + 8);
    joined.set(parts[0]);
    joined.set(parts[1], parts[0].length);
    return (await sha256(joined)).subarray(0, 8);
  }
}

const CRC = Uint32Array.from({ length: 256 }, (_, i) => {
  let value = i;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = CRC[(value ^ byte) & 255] ^ (value >>> 8);
  return ~value >>> 0;
}

/** The bits of the float16 nearest to a number; ties to even. */
function toHalf(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0, size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = size < 2 ** -14 ? -14 : Math.floor(Math.log2(size)), unit = 2 ** (exponent - 10);
  const scaled = size / unit, low = Math.floor(scaled), rest = scaled - low;
  const units = rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
  return sign | (exponent === -14 ? units : ((exponent + 14) << 10) + units);
}
