// Files of a model: from a server, a disk, or the program that loads it; and their digests.

import { article, MsedgeError } from "./msedge-errors.mjs";

/** Whether this is Node. */
export const NODE = typeof process === "object" && process.versions?.node !== undefined;

/**
 * A file's bytes.
 * @param source a URL, a path (in Node), or bytes
 * @param {string} what the file's name, for messages
 * @param progress called with the number of bytes that have come, and an array of the first of them
 */
export async function bytesOf(source, what, progress = () => {}) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new MsedgeError(`${what}: expected a URL, a path or bytes, got ${article(typeof source)}`);
  }
  try {
    if (NODE && !/^(https?|data|blob):/.test(String(source))) {
      const { readFile } = await import("node:fs/promises");
      const isUrl = source instanceof URL || source.startsWith("file:");
      const read = await readFile(isUrl ? new URL(source) : source);
      return new Uint8Array(read.buffer, read.byteOffset, read.byteLength);
    }
    const response = await fetch(source);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return await whole(response.body.getReader(), progress);
  } catch (cause) {
    throw new MsedgeError(`${what}: ${source} cannot be read: ${cause.message}; check the address`, { cause });
  }
}

async function whole(reader, progress) {
  const parts = [];
  let count = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    count += value.length;
    progress(count, parts[0]);
  }
  const bytes = new Uint8Array(count);
  for (const part of parts.reverse()) bytes.set(part, (count -= part.length));
  return bytes;
}

/** The address of a file in a folder, given as a URL or a path. */
export function within(folder, name) {
  if (folder instanceof URL || /^[a-z]{2,}:/.test(folder)) return new URL(name, String(folder).replace(/\/?$/, "/"));
  const path = `${String(folder).replace(/\/?$/, "/")}${name}`;
  return NODE ? path : new URL(path, globalThis.document?.baseURI ?? globalThis.location?.href);
}

/** A SHA-256 as bytes. */
export async function digest(bytes) {
  if (!globalThis.crypto?.subtle) {
    throw new MsedgeError("digests cannot be checked in an insecure context; serve the page by https or from localhost");
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

/** A SHA-256 in hexadecimal digits. */
export const sha256 = async (bytes) => hex(await digest(bytes));

/** Bytes as hexadecimal digits. */
export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
