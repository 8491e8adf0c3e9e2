// The error of all parts, and how texts name what was given.

/** Any error of this module: what was expected, what was found, and what to do. */
export class MsedgeError extends Error {
  /** @param {string} message @param {ErrorOptions=} options */
  constructor(message, options) {
    super(message, options);
    this.name = "MsedgeError";
  }
}

export function article(name) {
  return `${/^[AEIOU]/i.test(name) && !/^Uint/.test(name) ? "an" : "a"} ${name}`;
}
