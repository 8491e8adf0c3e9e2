// Pictures as tensors, uint8 [height, width, channels], and their steps: the same numbers from the same pixels as the
// gateway's (edge/gateway/processing/images.py).

import { article } from "./msedge-errors.mjs";
import { fail, saturated } from "./msedge-steps.mjs";

const { fround } = Math;

/** The pixels of an ImageData or of anything that a canvas draws. */
export function read(source, { mode }) {
  const { data, width, height } = source?.data instanceof Uint8ClampedArray ? source : drawn(source);
  const count = width * height, channels = mode === "gray" ? 1 : 3, made = new Uint8Array(count * channels);
  const order = mode === "bgr" ? [2, 1, 0] : [0, 1, 2];
  for (let i = 0; i < count; i += 1) {
    const [r, g, b] = [data[4 * i], data[4 * i + 1], data[4 * i + 2]];
    if (mode === "gray") made[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16; // ITU-R 601-2, as Pillow rounds it
    else for (const [k, from] of order.entries()) made[3 * i + k] = data[4 * i + from];
  }
  return { data: made, shape: [height, width, channels], dtype: "uint8" };
}

function drawn(source) {
  const width = source?.videoWidth ?? source?.naturalWidth ?? source?.width;
  const height = source?.videoHeight ?? source?.naturalHeight ?? source?.height;
  if (!(width > 0 && height > 0) || typeof OffscreenCanvas !== "function") {
    const got = article(source?.constructor?.name ?? typeof source);
    fail(`expected an ImageData, or a picture, canvas or video that is loaded, got ${got}`);
  }
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(source, 0, 0);
  return context.getImageData(0, 0, width, height);
}

export const STEPS = {
  resize(tensor, { size, fit, method, antialias, pad }) {
    const [height, width] = [size[0], size.at(-1)], [high, wide] = aim(tensor.shape, height, width, fit);
    const made = resized(tensor, high, wide, method, antialias);
    if (fit === "cover") return cut(made, height, width);
    if (fit !== "contain") return made;
    const [, , channels] = made.shape, data = new Uint8Array(height * width * channels).fill(pad);
    const top = Math.floor((height - high) / 2), left = Math.floor((width - wide) / 2), run = wide * channels;
    for (let y = 0; y < high; y += 1) {
      data.set(made.data.subarray(y * run, (y + 1) * run), ((top + y) * width + left) * channels);
    }
    return { ...made, data, shape: [height, width, channels] };
  },
  crop: (tensor, { size }) => cut(tensor, size[0], size.at(-1)),
};

/** The centre; what cannot be halved leaves the odd row or column at the end. */
function cut({ data, shape: [high, wide, channels], dtype }, height, width) {
  if (high < height || wide < width) fail(`expected a picture of at least ${width} x ${height}, got ${wide} x ${high}`);
  const top = Math.floor((high - height) / 2), left = Math.floor((wide - width) / 2), run = width * channels;
  const made = new Uint8Array(height * run);
  for (let y = 0; y < height; y += 1) {
    const begin = ((top + y) * wide + left) * channels;
    made.set(data.subarray(begin, begin + run), y * run);
  }
  return { data: made, shape: [height, width, channels], dtype };
}

// -- resizing --------------------------------------------------------------------------------------------------------

/** Height and width of the whole picture before it is cut or framed. */
function aim([high, wide], height, width, fit) {
  const times = (a, b, c) => Math.floor((a * b) / c);
  const near = (a, b, c) => Math.max(1, Math.floor((2 * a * b + c) / (2 * c)));
  if (fit === "stretch") return [height, width];
  if (fit === "shorter") return high <= wide ? [height, times(height, wide, high)] : [times(height, high, wide), height];
  const byHeight = (height * wide >= width * high) === (fit === "cover");
  return byHeight ? [height, near(height, wide, high)] : [near(width, high, wide), width];
}

function resized(tensor, high, wide, method, antialias) {
  const [have, across, channels] = tensor.shape;
  if (have === high && across === wide) return tensor;
  const along = method === "nearest" ? nearest : antialias ? filtered : weighted;
  // Filters go along rows first, then along columns; samples of points the other way round.
  const passes = [[1, wide, across], [0, high, have]];
  const made = (along === weighted ? passes.reverse() : passes).reduce((held, [axis, size, from]) => {
    return along === weighted || size !== from ? along(held, axis, size, method) : held;
  }, tensor);
  const data = along === weighted ? saturated(made.data, "uint8") : made.data;
  return { data, shape: [high, wide, channels], dtype: "uint8" };
}

/** Another size of an axis (0 or 1): calls sum(data, where element 0 of a line is, distance in it, index of the result). */
function lines({ data, shape }, axis, size, Kind, sum) {
  const [high, wide, channels] = shape, to = axis === 0 ? [size, wide, channels] : [high, size, channels];
  const step = axis === 0 ? wide * channels : channels, made = new Kind(to[0] * to[1] * channels);
  for (let y = 0, i = 0; y < to[0]; y += 1) {
    for (let x = 0; x < to[1]; x += 1) {
      for (let c = 0; c < channels; c += 1, i += 1) {
        made[i] = sum(data, axis === 0 ? x * channels + c : y * wide * channels + c, step, axis === 0 ? y : x);
      }
    }
  }
  return { data: made, shape: to, dtype: "uint8" };
}

function nearest(tensor, axis, size) {
  const scale = tensor.shape[axis] / size, at = new Int32Array(size);
  for (let i = 0, place = scale * 0.5; i < size; i += 1, place += scale) at[i] = Math.floor(place);
  return lines(tensor, axis, size, Uint8Array, (data, begin, step, i) => data[begin + step * at[i]]);
}

const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, (x) => {
    const d = Math.abs(x), a = -0.5;
    if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? (((d - 5) * d + 8) * d - 4) * a : 0;
  }],
};
const BITS = 22; // of a weight's fraction

/** As Pillow's filters: they widen when a picture shrinks; weights are whole numbers, and every pass gives bytes. */
function filtered(tensor, axis, size, method) {
  const [reach, filter] = FILTERS[method], have = tensor.shape[axis], scale = have / size, wide = Math.max(1, scale);
  const taps = Array.from({ length: size }, (_, i) => {
    const centre = (i + 0.5) * scale, first = Math.max(0, Math.trunc(centre - reach * wide + 0.5));
    const count = Math.min(have, Math.trunc(centre + reach * wide + 0.5)) - first, inverse = 1 / wide;
    const weights = Array.from({ length: count }, (__, k) => filter((k + first - centre + 0.5) * inverse));
    const sum = weights.reduce((a, b) => a + b, 0) || 1;
    return [first, weights.map((weight) => Math.trunc((weight / sum) * 2 ** BITS + (weight < 0 ? -0.5 : 0.5)))];
  });
  return lines(tensor, axis, size, Uint8Array, (data, begin, step, i) => {
    const [first, weights] = taps[i];
    let total = 2 ** (BITS - 1);
    for (let k = 0; k < weights.length; k += 1) total += data[begin + step * (first + k)] * weights[k];
    return Math.min(255, Math.max(0, Math.floor(total / 2 ** BITS)));
  });
}

const POINTS = {
  bilinear: (part) => [1 - part, part],
  bicubic: (part) => {
    const a = -0.75, near = (x) => ((a + 2) * x - (a + 3)) * x * x + 1, far = (x) => a * (((x - 5) * x + 8) * x - 4);
    return [far(1 + part), near(part), near(1 - part), far(2 - part)];
  },
};

/** Samples of 2 or 4 points a side, as torch's interpolate and OpenCV take them; points beyond an edge are the edge's. */
function weighted(tensor, axis, size, method) {
  const have = tensor.shape[axis], taps = Array.from({ length: size }, (_, i) => {
    const at = (i + 0.5) * (have / size) - 0.5, first = Math.floor(at), weights = POINTS[method](at - first).map(fround);
    const place = (k) => Math.min(have - 1, Math.max(0, first + k - Math.floor(weights.length / 2) + 1));
    return weights.map((weight, k) => [place(k), weight]);
  });
  return lines(tensor, axis, size, Float32Array, (data, begin, step, i) => {
    return taps[i].reduce((sum, [at, weight]) => fround(sum + fround(data[begin + step * at] * weight)), 0);
  });
}
