// node instance.mjs MODULE MEMORY: calls `run` of a module on memory whose contents from `heap` on are a file, which is
// then written again. JSON on stdin: rows, the arguments of each call; addresses, where the memory has int64 addresses.
// All addresses are counted from `heap`.
import { readFileSync, writeFileSync } from "node:fs";

const [, , module, path] = process.argv;
const { exports } = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(module)), {});
const content = readFileSync(path), heap = exports.heap.value;
const missing = heap + content.length - exports.memory.buffer.byteLength;
if (missing > 0) exports.memory.grow(Math.ceil(missing / 65536));
const bytes = new Uint8Array(exports.memory.buffer, heap, content.length);
bytes.set(content);
const { rows, addresses } = JSON.parse(readFileSync(0)), view = new DataView(exports.memory.buffer, heap);
for (const at of addresses) view.setBigInt64(at, view.getBigInt64(at, true) + BigInt(heap), true);
for (const row of rows) exports.run(...row.map((value) => BigInt(heap + value)));
writeFileSync(path, bytes);
