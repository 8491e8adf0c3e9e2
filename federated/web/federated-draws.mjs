// The draws of federated/data.py, to the bit: NumPy's default generator, and which examples a device trains on.
//
// PCG64: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
// Generation", 2014 (XSL-RR 128/64). Its state comes from NumPy's SeedSequence, and shuffles are NumPy's.

import { digest as sha256 } from "./msedge-files.mjs";

const MASK = (1n << 128n) - 1n, LOW = (1n << 64n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
const INIT_A = 0x43b0d7e5, MULT_A = 0x931e8875, INIT_B = 0x8b51f9dd, MULT_B = 0x58f38ded;
const MIX_L = 0xca01f9dd, MIX_R = 0x4973f715;
const POOL = 4, ROUNDING = 1e-9;

/** `federated.server.rounds.seed_of`: a 64-bit seed (BigInt) for the purpose that words name. */
export async function seedOf(...words) {
  const text = words.map((word) => (typeof word === "string" ? `str ${word}` : `int ${word}`)).join("\0");
  const digest = await sha256(new TextEncoder().encode(text));
  return new DataView(digest.buffer).getBigUint64(0, true);
}

/** `numpy.random.default_rng(seed)`, as far as it is used here. seed: a BigInt below 2^64. */
export class Generator {
  #state;
  #increment;
  #half = null;

  constructor(seed) {
    const [high, low, stepHigh, stepLow] = seedWords(seed);
    this.#increment = ((((stepHigh << 64n) | stepLow) << 1n) | 1n) & MASK;
    this.#state = 0n;
    this.#step();
    this.#state = (this.#state + ((high << 64n) | low)) & MASK;
    this.#step();
  }

  #step() {
    this.#state = (this.#state * MULTIPLIER + this.#increment) & MASK;
  }

  #next32() {
    if (this.#half !== null) {
      const half = this.#half;
      this.#half = null;
      return half;
    }
    this.#step();
    const turn = this.#state >> 122n, folded = ((this.#state >> 64n) ^ this.#state) & LOW;
    const word = ((folded >> turn) | (folded << ((64n - turn) & 63n))) & LOW;
    this.#half = Number(word >> 32n);
    return Number(word & 0xffffffffn);
  }

  /** A number from 0 to most, below 2^31: numbers of as many bits are drawn until one is not greater. */
  #upTo(most) {
    const mask = 2 ** (32 - Math.clz32(most)) - 1;
    let value;
    do value = this.#next32() & mask; while (value > most);
    return value;
  }

  /** Numbers, in random order: a new array. */
  permutation(numbers) {
    const made = Int32Array.from(numbers);
    for (let i = made.length - 1; i > 0; i -= 1) {
      const j = this.#upTo(i);
      [made[i], made[j]] = [made[j], made[i]];
    }
    return made;
  }
}

/** SeedSequence(seed).generate_state(4, uint64). */
function seedWords(seed) {
  const entropy = seed >> 32n ? [Number(seed & 0xffffffffn), Number(seed >> 32n)] : [Number(seed)];
  let constant = INIT_A;
  const hashed = (value) => {
    const first = value ^ constant;
    constant = Math.imul(constant, MULT_A);
    const second = Math.imul(first, constant);
    return second ^ (second >>> 16);
  };
  const pool = Array.from({ length: POOL }, (_, i) => hashed(entropy[i] ?? 0));
  for (let from = 0; from < POOL; from += 1) {
    for (let to = 0; to < POOL; to += 1) {
      if (from === to) continue;
      const mixed = Math.imul(pool[to], MIX_L) - Math.imul(hashed(pool[from]), MIX_R);
      pool[to] = mixed ^ ((mixed | 0) >>> 16);
    }
  }
  constant = INIT_B;
  const words = Array.from({ length: 8 }, (_, i) => {
    const first = pool[i % POOL] ^ constant;
    constant = Math.imul(constant, MULT_B);
    const second = Math.imul(first, constant);
    return BigInt((second ^ (second >>> 16)) >>> 0);
  });
  return [0, 2, 4, 6].map((i) => (words[i + 1] << 32n) | words[i]);
}

/** `data.order`: the numbers of the examples of steps * batch draws, without repetition until all were drawn. */
export function order(count, generator, steps, batch) {
  const whole = new Int32Array(Math.ceil((steps * batch) / count) * count), all = range(count);
  for (let at = 0; at < whole.length; at += count) whole.set(generator.permutation(all), at);
  return whole.subarray(0, steps * batch);
}

/** `data.split`: the numbers of examples in two random parts, the first with this share of every label's. */
export function split(labels, share, generator) {
  const count = labels.length, groups = alike(labels).map((rows) => generator.permutation(rows));
  const exact = groups.map((group) => share * group.length);
  const taken = exact.map((number) => Math.floor(number + ROUNDING));
  const wanted = count ? Math.min(Math.max(halfEven(share * count), 1), Math.max(count - 1, 1)) : 0;
  const missing = wanted - taken.reduce((sum, number) => sum + number, 0);
  const rest = (at) => halfEven((exact[at] - taken[at]) * 1e9) / 1e9;
  const turns = [...generator.permutation(range(groups.length))].sort((a, b) => rest(b) - rest(a));
  if (missing < 0) turns.reverse();
  for (const at of turns.slice(0, Math.abs(missing))) taken[at] += Math.sign(missing);
  return parts(count, groups.flatMap((group, at) => [...group.subarray(0, taken[at])]));
}

/** `data.support_query`: some examples of every label to adapt on, and all others. */
export function supportQuery(labels, perLabel, generator) {
  const chosen = alike(labels).flatMap((rows) => {
    const mixed = generator.permutation(rows);
    return [...mixed.subarray(0, Math.min(perLabel, Math.max(1, mixed.length - 1)))];
  });
  return parts(labels.length, chosen);
}

function parts(count, chosen) {
  const first = new Uint8Array(count);
  for (const row of chosen) first[row] = 1;
  const all = range(count);
  return [all.filter((row) => first[row]), all.filter((row) => !first[row])];
}

/** Rows of each label in order, if labels are integers; for measurements all rows together. */
function alike(labels) {
  const rows = range(labels.length);
  if (labels instanceof Float32Array || labels instanceof Float64Array) return [rows];
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(labels[row])) groups.set(labels[row], []);
    groups.get(labels[row]).push(row);
  }
  return [...groups.keys()].sort((a, b) => (a < b ? -1 : 1)).map((label) => Int32Array.from(groups.get(label)));
}

function range(count) {
  return Int32Array.from({ length: count }, (_, i) => i);
}

function halfEven(number) {
  const low = Math.floor(number), rest = number - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}
