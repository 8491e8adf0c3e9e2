// BLAKE2b-256 (RFC 7693), which browsers do not offer. A 64-bit word is two of 32 bits, the lower first.

const START = Uint32Array.of(
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
);
const ORDER = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const MIXED = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];
const BLOCK = 128, SIZE = 32, ROUNDS = 12;

const v = new Uint32Array(32), m = new Uint32Array(32);

/** v[a] += v[b] + the pair at `at` of `other`. */
function add(a, other, at) {
  const low = v[2 * a] + other[2 * at];
  v[2 * a + 1] += other[2 * at + 1] + (low > 0xffffffff ? 1 : 0);
  v[2 * a] = low;
}

/** v[a] = (v[a] ^ v[b]) rotated right by `by` bits. */
function turn(a, b, by) {
  const low = v[2 * a] ^ v[2 * b], high = v[2 * a + 1] ^ v[2 * b + 1];
  const [x, y] = by < 32 ? [low, high] : [high, low], rest = by % 32;
  v[2 * a] = rest ? (x >>> rest) | (y << (32 - rest)) : x;
  v[2 * a + 1] = rest ? (y >>> rest) | (x << (32 - rest)) : y;
}

function compress(h, count, last) {
  v.set(h);
  v.set(START, 16);
  v[24] ^= count;
  v[25] ^= Math.floor(count / 2 ** 32);
  if (last) {
    v[28] = ~v[28];
    v[29] = ~v[29];
  }
  for (let round = 0; round < ROUNDS; round += 1) {
    const order = ORDER[round % 10];
    for (let i = 0; i < 8; i += 1) {
      const [a, b, c, d] = MIXED[i];
      add(a, v, b);
      add(a, m, order[2 * i]);
      turn(d, a, 32);
      add(c, v, d);
      turn(b, c, 24);
      add(a, v, b);
      add(a, m, order[2 * i + 1]);
      turn(d, a, 16);
      add(c, v, d);
      turn(b, c, 63);
    }
  }
  for (let i = 0; i < 16; i += 1) h[i] ^= v[i] ^ v[16 + i];
}

/** The digest, 32 bytes. */
export function blake2b(bytes) {
  const h = START.slice(), block = new Uint8Array(m.buffer);
  h[0] ^= 0x01010000 ^ SIZE;
  for (let at = 0; at === 0 || at < bytes.length; at += BLOCK) {
    const part = bytes.subarray(at, at + BLOCK);
    block.fill(0);
    block.set(part);
    compress(h, at + part.length, at + BLOCK >= bytes.length);
  }
  return new Uint8Array(h.buffer).slice(0, SIZE);
}
