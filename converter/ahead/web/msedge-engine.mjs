// What this engine offers, and the module of kernels for it.

import { bytesOf, NODE, sha256, within } from "./msedge-files.mjs";
import { MsedgeError } from "./msedge-errors.mjs";

const LIST = "kernels.json", KERNELS = "msedge.kernels", MEMORY = "msedge.memory"; // a file; custom sections
const PAGE = 65536;

/**
 * A module whose function gives the first lane of i32x4.relaxed_dot_i8x16_i7x16_add_s for bytes that are all equal, (the
 * first factor's, the second's), added to START.
 */
const PROBE = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, // magic, version
  1, 7, 1, 96, 2, 127, 127, 1, 127, // a type: (i32, i32) -> i32
  3, 2, 1, 0, // a function of this type
  7, 7, 1, 3, 100, 111, 116, 0, 0, // exported as "dot"
  10, 22, 1, 20, 0, // its body
  32, 0, 253, 15, 32, 1, 253, 15, 65, 1, 253, 15, // i8x16.splat of both and of 1
  253, 147, 2, 253, 27, 0, 11, // the sum; lane 0
);
const START = 0x01010101;

/**
 * Whether the instruction multiplies signed bytes by unsigned ones of 8 bits, as kernels need it. The standard fixes
 * its result for 7 bits only, and that an engine always computes it in the same way.
 */
export async function sumsBytes() {
  const made = await WebAssembly.instantiate(PROBE).catch(() => null);
  if (!made) return false;
  const { dot } = made.instance.exports;
  const pairs = [127, -128, -1, 0, 77].flatMap((signed) => [255, 128, 127, 1].map((unsigned) => [signed, unsigned]));
  return pairs.every(([signed, unsigned]) => dot(signed, unsigned) === START + 4 * signed * unsigned);
}

/** Whether there are workers, and memory may be shared with them: in pages only if they are isolated from other origins. */
export function sharesMemory() {
  const workers = NODE || typeof globalThis.Worker === "function";
  return workers && typeof SharedArrayBuffer === "function" && globalThis.crossOriginIsolated !== false;
}

async function processors() {
  return globalThis.navigator?.hardwareConcurrency ?? (await import("node:os")).availableParallelism();
}

/** The number of threads to use. asked: by the caller, or undefined; gains: the greatest number that gains. */
async function threadsOf(asked, gains) {
  if (asked === undefined) return sharesMemory() ? Math.min(gains, await processors()) : 1;
  if (!Number.isInteger(asked) || asked < 1 || asked > 64) {
    throw new MsedgeError(`threads: expected an integer of 1 to 64, got ${asked}`);
  }
  if (asked > 1 && !sharesMemory()) {
    throw new MsedgeError(
      `threads: ${asked} threads need shared memory, which browsers give to isolated pages only; serve the page with ` +
        "the headers Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp",
    );
  }
  return gains > 1 ? asked : 1;
}

/**
 * The module for this engine, compiled: {module, threads, stack, heap}. stack, heap: bytes of a thread's stack; where
 * memory that the module does not use begins.
 * @param source a function from a file's name to its source
 * @param {string} digest of the list of modules
 */
export async function compiled(source, digest, { threads: asked, relaxed = true, progress }) {
  const text = await bytesOf(source(LIST), LIST), found = await sha256(text);
  if (found !== digest) {
    throw new MsedgeError(
      `${LIST}: expected the SHA-256 ${digest}, got ${found}; use the files that were built together with the model`,
    );
  }
  if (!globalThis.WebAssembly) {
    throw new MsedgeError("WebAssembly is not there: the engine is too old, or it is switched off");
  }
  const list = JSON.parse(new TextDecoder().decode(text)), threads = await threadsOf(asked, list.threads);
  if (!Array.isArray(list.modules)) throw new MsedgeError(`${LIST}: expected a list of modules; build the model again`);
  const offers = { threads: threads > 1, relaxed: relaxed && (await sumsBytes()) };
  const fits = ({ needs }) => needs.every((need) => offers[need]) && needs.includes("threads") === offers.threads;
  const { file, bytes, sha256: wanted } = list.modules.findLast(fits);
  const wasm = await bytesOf(source(file), file, (loaded) => progress({ file, loaded, total: bytes }));
  const got = await sha256(wasm);
  if (got !== wanted) {
    throw new MsedgeError(`${file}: expected the SHA-256 ${wanted}, got ${got}; use the files of one build`);
  }
  let module;
  try {
    module = await WebAssembly.compile(wasm);
  } catch (cause) {
    const why = `${file}: WebAssembly does not start here (${cause.message})`;
    throw new MsedgeError(`${why}; it needs 128-bit SIMD, and 'wasm-unsafe-eval' in a page's script-src`, { cause });
  }
  const [stack, heap] = section(module, MEMORY).split(" ").map(Number);
  return { module, file, threads, stack, heap };
}

function section(module, name) {
  return new TextDecoder().decode(WebAssembly.Module.customSections(module, name)[0]);
}

/** Memory of so many bytes, which never grows. */
export function memoryOf(bytes, shared) {
  const pages = Math.ceil(bytes / PAGE);
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: pages, shared });
  } catch (cause) {
    const size = `${Math.ceil(bytes / 2 ** 20)} MiB`;
    throw new MsedgeError(`the model needs ${size} of memory, which this engine refuses`, { cause });
  }
}

/** The places of kernels in a module's table of functions: a custom section names them in the order of the table. */
export function slots(module, kernels) {
  const names = section(module, KERNELS).split("\n");
  return kernels.map((name) => {
    const at = names.indexOf(name);
    if (at < 0) throw new MsedgeError(`kernels: expected a module with ${name}, got one of ${names.join(" ") || "none"}`);
    return at + 1;
  });
}

/** Where a folder's files are: a function from a name to a source. files: sources by name, which come first. */
export function sources(folder, files = {}) {
  return (name) => (Object.hasOwn(files, name) ? files[name] : within(folder, name));
}
