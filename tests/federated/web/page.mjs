// A page of the tests: the device of the address's ?NAME, which stops without an answer in the round after "stop".
import { load } from "./msedge.mjs";
import { Device, join } from "./federated.mjs";
import { unpack } from "./federated-messages.mjs";

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;

async function run(name) {
  const given = await (await fetch(`./${name}.json`)).json();
  const inputs = Object.fromEntries(Object.entries(given.inputs).map(([key, text]) => [key, new Float32Array(bytes(text))]));
  const device = new Device({ name, model: await load(), inputs, labels: new BigInt64Array(bytes(given.labels)) });
  const stopping = {
    async answer(message, progress) {
      const { meta } = await unpack(message);
      if (meta.kind === "train" && meta.round === given.stop) {
        document.title = "stopped";
        await new Promise(() => {});
      }
      return device.answer(message, progress);
    },
  };
  await join({ url: given.url, token: given.token, device: stopping, onProgress: ({ state }) => { document.title = state; } });
}

// Not awaited here: the page would not count as loaded before the run is over.
run(location.search.slice(1)).then(
  () => { document.title = "over"; },
  (error) => { document.title = `${error.name}: ${error.message}`; },
);
