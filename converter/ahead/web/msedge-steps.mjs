// Steps of a bundle's processing that know nothing of pictures or sound: numbers to numbers, as the gateway computes them
// (edge/gateway/processing/tensors.py). A tensor is {data, shape, dtype}.

import { MsedgeError } from "./msedge-errors.mjs";
import { ARRAYS } from "./msedge-flat.mjs";

const { fround } = Math;
const LIMITS = {
  uint8: [0, 255], int8: [-128, 127], uint16: [0, 65535], int16: [-32768, 32767], int32: [-(2 ** 31), 2 ** 31 - 1],
};

export function fail(text) {
  throw new MsedgeError(`processing: ${text}; declare others when the model is converted, or give its inputs as arrays`);
}

export const STEPS = {
  normalize({ data, shape }, { scale, mean, std }) {
    const by = fround(scale), means = Float32Array.from(mean), deviations = Float32Array.from(std);
    const made = Float32Array.from(data, (value, i) => {
      return fround(fround(fround(fround(value) * by) - means[i % means.length]) / deviations[i % deviations.length]);
    });
    return { data: made, shape, dtype: "float32" };
  },
  channels_first: (tensor) => transposed(tensor, [2, 0, 1]),
  transpose: (tensor, { axes }) => transposed(tensor, axes),
  expand: (tensor, { axis }) => ({ ...tensor, shape: tensor.shape.toSpliced(axis, 0, 1) }),
  cast: ({ data, shape }, { dtype }) => ({ data: saturated(data, dtype), shape, dtype }),
  quantize({ data, shape }, { scale, zero_point: zero, dtype }) {
    const moved = Float64Array.from(data, (value) => even(fround(value / fround(scale))) + zero);
    return { data: saturated(moved, dtype), shape, dtype };
  },
};

/** Rounded half to even. */
function even(value) {
  const near = Math.round(value);
  return near - value === 0.5 && near % 2 !== 0 ? near - 1 : near;
}

export function saturated(data, dtype) {
  if (dtype === "float32") return Float32Array.from(data);
  if (!Object.hasOwn(LIMITS, dtype)) fail(`the type ${dtype} is not one of float32, ${Object.keys(LIMITS).join(", ")}`);
  const [low, high] = LIMITS[dtype];
  return ARRAYS[dtype].from(data, (value) => Math.min(high, Math.max(low, even(value) || 0)));
}

function transposed({ data, shape, dtype }, axes) {
  if (`${axes.toSorted((a, b) => a - b)}` !== `${shape.map((_, i) => i)}`) fail(`axes ${axes} do not order [${shape}]`);
  const steps = shape.map((_, i) => shape.slice(i + 1).reduce((product, size) => product * size, 1));
  const sizes = axes.map((axis) => shape[axis]), at = new Array(axes.length).fill(0);
  const made = new data.constructor(data.length);
  for (let i = 0; i < made.length; i += 1) {
    made[i] = data[at.reduce((sum, index, k) => sum + index * steps[axes[k]], 0)];
    for (let k = at.length - 1; k >= 0 && (at[k] += 1) === sizes[k]; k -= 1) at[k] = 0;
  }
  return { data: made, shape: sizes, dtype };
}
