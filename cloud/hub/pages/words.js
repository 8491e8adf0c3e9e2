// Numbers, times and sizes for people.

export const NONE = "–";
export const count = (n) => Math.round(n).toLocaleString("en");
export const devices = (n) => `${count(n)} ${n === 1 ? "device" : "devices"}`;
export const percent = (n) => `${+n.toPrecision(n < 1 ? 1 : 3)} %`;
export const minute = () => Math.floor(Date.now() / 60000);

/** A share of a whole, which may be 0. */
export const share = (part, whole) => (whole ? percent((100 * part) / whole) : NONE);

export function size(bytes) {
  let at = 0;
  for (; bytes >= 1000 && at < 4; at++) bytes /= 1024;
  return `${at ? bytes.toPrecision(3) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
}

/** A time of so many seconds, in its two largest units. */
export function span(s) {
  const parts = [["d", Math.floor(s / 86400)], ["h", Math.floor(s / 3600) % 24], ["min", Math.floor(s / 60) % 60], ["s", Math.floor(s) % 60]];
  const first = parts.findIndex(([, n]) => n);
  return first < 0 ? "0 s" : parts.slice(first, first + 2).filter(([, n]) => n).map(([unit, n]) => `${n} ${unit}`).join(" ");
}

/** How long ago a time (seconds since 1970; 0: never) was. */
export function ago(time) {
  if (!time) return "never";
  const passed = Date.now() / 1000 - time;
  return passed < 60 ? "just now" : `${span(passed < 3600 ? passed - (passed % 60) : passed - (passed % 3600))} ago`;
}

/** A time on the reader's clock. */
export function date(time) {
  const two = (n) => String(n).padStart(2, "0");
  const at = new Date(1000 * time);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
