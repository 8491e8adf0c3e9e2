// node input.mjs FOLDER: JSON on stdin, a list of {declaration, port, files}; files: pictures, {width, height, data: base64
// of RGBA}, or sounds, {rate, samples: base64 of float32, or a list of such}; on stdout for each the input's bytes in base64,
// or "ErrorName: message".
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { prepared } = await import(pathToFileURL(`${process.argv[2]}/msedge-input.mjs`));
const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64")).buffer;
const floats = (text) => new Float32Array(bytes(text));

/** An AudioBuffer's parts, where there are several channels. */
function sound({ rate, samples }) {
  if (!Array.isArray(samples)) return { rate, samples: floats(samples) };
  const channels = samples.map(floats);
  return { sampleRate: rate, numberOfChannels: channels.length, getChannelData: (i) => channels[i] };
}

const found = [];
for (const { declaration, port, files } of JSON.parse(readFileSync(0))) {
  const file = files.map((each) => ("rate" in each ? sound(each) : { ...each, data: new Uint8ClampedArray(bytes(each.data)) }));
  try {
    const array = (await prepared(declaration, { file }, [port]))[port.name];
    found.push(Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64"));
  } catch (error) {
    found.push(`${error.name}: ${error.message}`);
  }
}
console.log(JSON.stringify(found));
