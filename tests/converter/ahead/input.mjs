// node input.mjs FOLDER: JSON on stdin, a list of {declaration, port, pictures: [{width, height, data: base64 of RGBA}]};
// on stdout for each the input's bytes in base64, or "ErrorName: message".
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { prepared } = await import(pathToFileURL(`${process.argv[2]}/msedge-input.mjs`));
const found = JSON.parse(readFileSync(0)).map(({ declaration, port, pictures }) => {
  const file = pictures.map(({ width, height, data }) => ({ width, height, data: new Uint8ClampedArray(Buffer.from(data, "base64")) }));
  try {
    const array = prepared(declaration, { file }, [port])[port.name];
    return Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
});
console.log(JSON.stringify(found));
