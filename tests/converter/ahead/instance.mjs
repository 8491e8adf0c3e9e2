// node instance.mjs MODULE MEMORY: calls `run` of a module on memory whose contents from `heap` on are a file, which is
// then written again. JSON on stdin: rows, the arguments of each call; addresses, where the memory has int64 addresses.
// All addresses are counted from `heap`.
import { readFileSync, writeFileSync } from "node:fs";

const [, , path, held] = process.argv;
const module = new WebAssembly.Module(readFileSync(path));
const content = readFileSync(held), [section] = WebAssembly.Module.customSections(module, "msedge.memory");
const [, heap] = new TextDecoder().decode(section).split(" ").map(Number);
const memory = new WebAssembly.Memory({ initial: Math.ceil((heap + content.length) / 65536) });
const { exports } = new WebAssembly.Instance(module, { env: { memory } });
const bytes = new Uint8Array(memory.buffer, heap, content.length);
bytes.set(content);
const { rows, addresses } = JSON.parse(readFileSync(0)), view = new DataView(memory.buffer, heap);
for (const at of addresses) view.setBigInt64(at, view.getBigInt64(at, true) + BigInt(heap), true);
for (const row of rows) exports.run(...row.map((value) => BigInt(heap + value)));
writeFileSync(held, bytes);
