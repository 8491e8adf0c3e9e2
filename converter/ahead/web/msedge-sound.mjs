// Sounds as tensors, float32 [samples], and their steps: the formulas of the gateway (edge/gateway/processing: sound,
// resample, spectra), in float64, and kept in float32. From the same samples its numbers are the gateway's but for the last
// bits, as sums have another order.

import { article } from "./msedge-errors.mjs";
import { fail } from "./msedge-steps.mjs";

const { ceil, cos, floor, fround, max, min, PI } = Math;
const LOW = 4000, HIGH = 192_000; // samples a second
const CROSSINGS = 6, ROLL_OFF = 0.99; // of the filter between two rates
const MOST = 2 ** 25; // numbers that frames of a sound may make

/** An AudioBuffer, or {samples, rate} with one Float32Array or one for each channel: their mean at the declared rate. */
export function read(sound, { rate, max_seconds: most }) {
  const { channels, have } = parts(sound), count = channels[0].length;
  if (!(Number.isInteger(have) && have >= LOW && have <= HIGH)) {
    fail(`expected a whole number of samples a second from ${LOW} to ${HIGH}, got ${have}`);
  }
  if (count > most * have) fail(`expected a sound of at most ${most} seconds, got ${count / have}`);
  const mean = channels.length === 1 ? channels[0] : Float32Array.from({ length: count }, (_, i) => {
    return channels.reduce((sum, channel) => fround(sum + channel[i]), 0) / channels.length;
  });
  if (!count || !mean.every(Number.isFinite)) fail(`expected finite samples, got ${count ? "NaN or infinities" : "none"}`);
  return row(have === rate ? mean : resampled(mean, have, rate), [have === rate ? count : ceil((count * rate) / have)]);
}

function parts(sound) {
  if (typeof sound?.getChannelData === "function") {
    const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
    return { channels, have: sound.sampleRate };
  }
  const channels = Array.isArray(sound?.samples) ? sound.samples : [sound?.samples];
  if (!channels.length || !channels.every((each) => each instanceof Float32Array && each.length === channels[0].length)) {
    const got = article(sound?.constructor?.name ?? typeof sound);
    fail(`expected an AudioBuffer, or {samples, rate} with a Float32Array or a list of equally long ones, got ${got}`);
  }
  return { channels, have: sound.rate };
}

const row = (data, shape) => ({ data, shape, dtype: "float32" });

// -- another rate -----------------------------------------------------------------------------------------------------

const divisor = (a, b) => (b ? divisor(b, a % b) : a);

/** Band-limited interpolation (J. O. Smith, "Digital Audio Resampling", CCRMA), as the gateway and torchaudio do it. */
function resampled(samples, from, to) {
  const common = divisor(from, to), have = from / common, want = to / common;
  const factor = ROLL_OFF * min(1, want / have), reach = CROSSINGS / factor, taps = ceil(2 * reach) + 1;
  const filters = Array.from({ length: want }, (_, phase) => {
    const place = phase * (have / want), first = ceil(place - reach);
    const weights = Float32Array.from({ length: taps }, (__, k) => weight(factor * (first + k - place)) * factor);
    return { first, weights };
  });
  return Float32Array.from({ length: ceil((samples.length * want) / have) }, (_, j) => {
    const { first, weights } = filters[j % want], begin = floor(j / want) * have + first;
    let sum = 0;
    for (let k = max(0, -begin), end = min(taps, samples.length - begin); k < end; k += 1) sum += samples[begin + k] * weights[k];
    return sum;
  });
}

function weight(distance) {
  if (Math.abs(distance) >= CROSSINGS) return 0;
  const sinc = distance === 0 ? 1 : Math.sin(PI * distance) / (PI * distance);
  return sinc * cos((PI * distance) / (2 * CROSSINGS)) ** 2;
}

// -- steps ------------------------------------------------------------------------------------------------------------

export const STEPS = {
  length({ data, dtype }, { samples }) {
    const made = new data.constructor(samples);
    made.set(data.subarray(0, samples));
    return { data: made, shape: [samples], dtype };
  },
  frames({ data, dtype }, { length, hop }) {
    const count = framesOf(data.length, length, hop), made = new data.constructor(count * length);
    for (let i = 0; i < count; i += 1) made.set(data.subarray(i * hop, i * hop + length), i * length);
    return { data: made, shape: [count, length], dtype };
  },
  spectrogram({ data }, { fft, window, hop, pad, align, power }) {
    const wide = window ?? fft, length = align === "start" ? wide : fft, bins = floor(fft / 2) + 1;
    const edge = pad === "none" ? 0 : floor(fft / 2), count = framesOf(data.length + 2 * edge, length, hop);
    const weights = hann(wide, length), transform = fourier(fft), made = new Float32Array(count * bins);
    const frame = new Float64Array(fft);
    for (let i = 0; i < count; i += 1) {
      for (let t = 0; t < length; t += 1) frame[t] = weights[t] && weights[t] * sample(data, i * hop + t - edge, pad);
      const [real, imaginary] = transform(frame);
      for (let k = 0; k < bins; k += 1) {
        const square = real[k] ** 2 + imaginary[k] ** 2;
        made[i * bins + k] = power === 2 ? square : Math.sqrt(square);
      }
    }
    return row(made, [count, bins]);
  },
  mel: ({ data, shape }, options) => product(data, shape, bands(shape[1], options), options.bands),
  log({ data, shape }, { unit, floor: least, offset, range }) {
    const made = Float64Array.from(data, (value) => LOGS[unit](max(value + offset, least)));
    const low = range === null ? -Infinity : made.reduce((most, value) => max(most, value), -Infinity) - range;
    return row(Float32Array.from(made, (value) => max(value, low)), shape);
  },
  dct({ data, shape }, { coefficients, scaling }) {
    const bins = shape[1], basis = new Float64Array(bins * coefficients);
    for (let i = 0; i < bins; i += 1) {
      for (let k = 0; k < coefficients; k += 1) {
        const first = k === 0 && scaling === "orthonormal" ? Math.SQRT2 : 1;
        basis[i * coefficients + k] = (cos((PI / bins) * (i + 0.5) * k) * Math.sqrt(2 / bins)) / first;
      }
    }
    return product(data, shape, basis, coefficients);
  },
};

const LOGS = { ln: Math.log, log10: Math.log10, db: (value) => 10 * Math.log10(value) };

/** How many frames of a length a sound has; what fills none is left out. */
function framesOf(samples, length, hop) {
  if (samples < length) fail(`expected a sound of at least ${length} samples, got ${samples}`);
  const count = 1 + floor((samples - length) / hop);
  if (count * length > MOST) fail(`${count} frames of ${length} are more than ${MOST} numbers: give a shorter sound`);
  return count;
}

/** A sample, before and after the sound too: zero, or the sound reflected at its first and last sample. */
function sample(data, at, pad) {
  if (at >= 0 && at < data.length) return data[at];
  if (pad === "zero") return 0;
  const period = max(1, 2 * (data.length - 1)), place = ((at % period) + period) % period;
  return data[min(place, period - place) % data.length];
}

/** A periodic window in the middle of a frame. */
function hann(length, frame) {
  const begin = floor((frame - length) / 2), made = new Float64Array(frame);
  for (let t = 0; t < length; t += 1) made[begin + t] = 0.5 - 0.5 * cos((2 * PI * t) / length);
  return made;
}

/** [rows, inner] times [inner, columns]. */
function product(data, [rows, inner], weights, columns) {
  const made = new Float32Array(rows * columns), sums = new Float64Array(columns);
  for (let i = 0; i < rows; i += 1) {
    sums.fill(0);
    for (let k = 0; k < inner; k += 1) {
      const value = data[i * inner + k];
      for (let j = 0; j < columns; j += 1) sums[j] += value * weights[k * columns + j];
    }
    made.set(sums, i * columns);
  }
  return row(made, [rows, columns]);
}

// -- mel --------------------------------------------------------------------------------------------------------------

const KNEE = 1000, PER_MEL = 200 / 3, STEP = Math.log(6.4) / 27; // Slaney's scale is linear up to the knee
const SCALES = {
  htk: [(hertz) => 2595 * Math.log10(1 + hertz / 700), (mel) => 700 * (10 ** (mel / 2595) - 1)],
  slaney: [
    (hertz) => (hertz < KNEE ? hertz / PER_MEL : KNEE / PER_MEL + Math.log(hertz / KNEE) / STEP),
    (mel) => (mel < KNEE / PER_MEL ? mel * PER_MEL : KNEE * Math.exp(STEP * (mel - KNEE / PER_MEL))),
  ],
};

/** Weights [bins, bands]: triangles, evenly spaced in mel. */
function bands(bins, { rate, bands: count, low, high, scale, norm, triangles }) {
  const [toMel, toHertz] = SCALES[scale], first = toMel(low), last = toMel(high ?? rate / 2);
  const places = Array.from({ length: count + 2 }, (_, i) => (i > count ? last : first + (i * (last - first)) / (count + 1)));
  const edges = places.map(toHertz), corners = triangles === "hz" ? edges : places;
  const made = new Float64Array(bins * count);
  for (let k = 0; k < bins; k += 1) {
    const hertz = (k * (rate / 2)) / (bins - 1), at = triangles === "hz" ? hertz : toMel(hertz);
    for (let j = 0; j < count; j += 1) {
      const rise = (at - corners[j]) / (corners[j + 1] - corners[j]);
      const fall = (corners[j + 2] - at) / (corners[j + 2] - corners[j + 1]);
      const area = norm === "slaney" ? 2 / (edges[j + 2] - edges[j]) : 1;
      made[k * count + j] = max(0, min(rise, fall)) * area;
    }
  }
  return made;
}

// -- spectra ----------------------------------------------------------------------------------------------------------

/** The discrete Fourier transform of `size` real numbers, as a function: Cooley and Tukey's, one prime factor after the
    other. A factor p costs p products for each number. What it returns is overwritten by its next call. */
function fourier(size) {
  const cosines = Float64Array.from({ length: size }, (_, i) => cos((2 * PI * i) / size));
  const sines = Float64Array.from({ length: size }, (_, i) => -Math.sin((2 * PI * i) / size));
  const real = new Float64Array(size), imaginary = new Float64Array(size), factors = primes(size);
  const [a, b] = [new Float64Array(factors.at(-1) ?? 1), new Float64Array(factors.at(-1) ?? 1)];

  function part(values, from, step, count, at, depth) {
    if (count === 1) {
      [real[at], imaginary[at]] = [values[from], 0];
      return;
    }
    const p = factors[depth], m = count / p;
    for (let r = 0; r < p; r += 1) part(values, from + r * step, step * p, m, at + r * m, depth + 1);
    for (let k = 0; k < m; k += 1) {
      for (let r = 0; r < p; r += 1) {
        const turn = r * k * step, i = at + r * m + k;
        a[r] = real[i] * cosines[turn] - imaginary[i] * sines[turn];
        b[r] = real[i] * sines[turn] + imaginary[i] * cosines[turn];
      }
      for (let q = 0; q < p; q += 1) {
        let [re, im] = [a[0], b[0]];
        for (let r = 1; r < p; r += 1) {
          const turn = (r * q * m * step) % size;
          re += a[r] * cosines[turn] - b[r] * sines[turn];
          im += a[r] * sines[turn] + b[r] * cosines[turn];
        }
        [real[at + q * m + k], imaginary[at + q * m + k]] = [re, im];
      }
    }
  }

  return (values) => {
    part(values, 0, 1, size, 0, 0);
    return [real, imaginary];
  };
}

/** The prime factors of a number, the smallest first. */
function primes(number) {
  const found = [];
  for (let p = 2, rest = number; rest > 1; p = p * p > rest ? rest : p + 1) {
    for (; rest % p === 0; rest /= p) found.push(p);
  }
  return found;
}
