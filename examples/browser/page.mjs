// The start of the page: its networks, and then its parts.

import { part } from "./answers.mjs";
import * as digits from "./digits.mjs";
import { Network } from "./network.mjs";
import * as rounds from "./rounds.mjs";
import * as sounds from "./sounds.mjs";

async function start() {
  const begin = performance.now(), come = {};
  const loading = (folder) => Network.load(folder, ({ file, loaded, total }) => {
    come[folder + file] = loaded / (total ?? loaded);
    part("loading").value = Object.values(come).reduce((a, b) => a + b) / 4;
  });
  const [reader, hearer] = await Promise.all(["digits/", "sounds/"].map(loading));
  part("loading").hidden = true;
  const bytes = reader.model.memoryBytes + hearer.model.memoryBytes, took = (performance.now() - begin).toFixed(0);
  sounds.start(hearer);
  await digits.start(reader);
  rounds.start();
  part("status").textContent = `Ready: two networks after ${took} ms, in ${(bytes / 2 ** 20).toFixed(1)} MiB of memory.`;
}

start().catch((error) => {
  part("loading").hidden = true;
  part("status").textContent = `This page cannot start: ${error.message}`;
});
