// node mutants.mjs FOLDER FILE: loads and runs each model of a file of models (each after its length in 4 bytes) in a
// worker. JSON on stdout: for each "" (it ran), "endless" (the worker was ended), or "ErrorName: message".
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

const PATIENCE = 700; // milliseconds

async function main() {
  const [, , folder, path] = process.argv, files = readFileSync(path), found = [];
  let worker = null;
  for (let at = 0; at < files.length; ) {
    const size = files.readUInt32LE(at), file = files.subarray(at + 4, at + 4 + size);
    worker ??= new Worker(new URL(import.meta.url), { workerData: folder });
    found.push(await new Promise((done) => {
      const late = setTimeout(() => done("endless"), PATIENCE);
      const told = (text) => {
        clearTimeout(late);
        done(text);
      };
      worker.once("message", told);
      worker.once("error", (error) => told(`the worker ended: ${error.message}`));
      worker.postMessage(file);
    }));
    worker.removeAllListeners("error");
    if (found.at(-1) === "endless") {
      await worker.terminate();
      worker = null;
    }
    at += 4 + size;
  }
  await worker?.terminate();
  console.log(JSON.stringify(found));
}

async function follow() {
  const { load } = await import(pathToFileURL(`${workerData}/msedge.mjs`));
  parentPort.on("message", async (model) => {
    try {
      const made = await load({ threads: 1, files: { "model.msflat": model } });
      made.run(made.sampleInputs());
      parentPort.postMessage("");
    } catch (error) {
      parentPort.postMessage(`${error.name}: ${error.message}`);
    }
  });
}

await (isMainThread ? main() : follow());
