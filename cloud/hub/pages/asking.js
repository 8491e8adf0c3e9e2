// Requests to the hub. The browser adds the login's cookie; scripts never see it.

/** An answer that is an error. status: of HTTP, 0: there was none. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** What the hub answers. path: relative to the pages' own address, as a proxy may have them under a prefix. */
export async function ask(path, method = "GET", body = undefined) {
  let reply;
  try {
    const more = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    const signal = AbortSignal.timeout(15000);
    reply = await fetch(new URL(path, new URL(".", location.href)), { method, cache: "no-store", signal, ...more });
  } catch (error) {
    throw new Refused(0, `no answer from the hub (${error.message})`);
  }
  const found = reply.status === 204 ? {} : await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Refused(reply.status, found.error || `status ${reply.status}`);
  return found;
}

/** A path with its parts and its query escaped. */
export function path(parts, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  return `v1/${parts.map(encodeURIComponent).join("/")}${words.size ? `?${words}` : ""}`;
}

/** The address of a page, as a link. */
export function link(parts, query = {}) {
  return `#/${path(parts, query).slice(3)}`;
}
