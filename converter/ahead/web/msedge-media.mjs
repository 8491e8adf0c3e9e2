// A page's camera and microphone: pictures and sounds for `model.prepare`. Nothing is sent anywhere.
//
//     import { camera, record } from "./msedge-media.mjs";
//     const stop = await camera(video);                       // a <video> element, which `prepare` takes as a picture
//     const inputs = await model.prepare({ sound: await record({ seconds: 1 }) });
//
// The same file is the worklet that records. A Content-Security-Policy needs 'self' in script-src, and no more than that.

import { MsedgeError } from "./msedge-errors.mjs";

const RECORDER = "msedge-recorder";
const LONGEST = 600; // seconds
const LEVELS = 20; // a second
const RAW = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
/** What a browser's errors mean (Media Capture and Streams, getUserMedia). */
const REASONS = {
  NotAllowedError: "permission was refused; allow it for this page in the browser's settings",
  SecurityError: "permission was refused; allow it for this page in the browser's settings",
  NotFoundError: "there is none; connect one",
  OverconstrainedError: "there is none that fits; ask for less",
  NotReadableError: "another program uses it, or it is broken; close other programs",
  AbortError: "it could not be started; try again",
};

async function opened(what, constraints) {
  if (!globalThis.navigator?.mediaDevices?.getUserMedia) {
    throw new MsedgeError(`${what}: expected a page with https or from localhost; browsers give it to no others`);
  }
  try {
    return await navigator.mediaDevices.getUserMedia(constraints);
  } catch (cause) {
    throw new MsedgeError(`${what}: ${REASONS[cause.name] ?? `${cause.name}: ${cause.message}`}`, { cause });
  }
}

const ended = (stream) => stream.getTracks().forEach((track) => track.stop());

/**
 * Shows the camera in a <video> element, and returns a function that ends it. facing: the "user" or the "environment", for
 * devices with two cameras. Throws MsedgeError where there is no camera or its use was not permitted.
 */
export async function camera(video, { facing = "environment" } = {}) {
  const stream = await opened("camera", { video: { facingMode: facing } });
  video.srcObject = stream;
  video.muted = video.playsInline = true;
  try {
    await video.play();
  } catch (cause) {
    ended(stream);
    throw new MsedgeError(`camera: its pictures cannot be shown (${cause.message}); try again`, { cause });
  }
  return () => {
    ended(stream);
    video.srcObject = null;
  };
}

/**
 * Records the microphone: {samples: Float32Array of one channel, rate: samples a second}. To be called from a click, as
 * browsers start no sound without one. onLevel: called with the largest magnitude of every twentieth of a second; signal:
 * an AbortSignal, which ends it with the signal's reason. Throws MsedgeError where there is no microphone, its use was not
 * permitted, or it ends too early.
 */
export async function record({ seconds = 1, onLevel = () => {}, signal } = {}) {
  if (!(seconds > 0 && seconds <= LONGEST)) {
    throw new MsedgeError(`microphone: expected up to ${LONGEST} seconds, got ${String(seconds)}`);
  }
  signal?.throwIfAborted();
  const stream = await opened("microphone", { audio: RAW });
  let context, aborted;
  try {
    context = new AudioContext();
    signal?.throwIfAborted();
    await context.audioWorklet.addModule(import.meta.url);
    await context.resume();
    const rate = context.sampleRate, count = Math.max(1, Math.round(seconds * rate));
    const options = { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit", processorOptions: { count } };
    const node = new AudioWorkletNode(context, RECORDER, options);
    const samples = await new Promise((resolve, reject) => {
      node.port.onmessage = ({ data }) => (typeof data === "number" ? onLevel(data) : resolve(data));
      node.onprocessorerror = () => reject(new MsedgeError("microphone: the recorder failed; try again"));
      const over = () => reject(new MsedgeError("microphone: it ended before the recording did; connect it again"));
      for (const track of stream.getTracks()) {
        track.onended = over;
        if (track.readyState === "ended") over(); // while the recorder was made
      }
      aborted = () => reject(signal.reason);
      signal?.addEventListener("abort", aborted);
      if (signal?.aborted) aborted();
      context.createMediaStreamSource(stream).connect(node);
    });
    return { samples, rate };
  } finally {
    signal?.removeEventListener("abort", aborted);
    ended(stream);
    await context?.close();
  }
}

// -- the worklet ------------------------------------------------------------------------------------------------------

if (globalThis.AudioWorkletProcessor) {
  registerProcessor(RECORDER, class extends AudioWorkletProcessor {
    #samples;
    #at = 0;
    #told = 0;

    constructor({ processorOptions }) {
      super();
      this.#samples = new Float32Array(processorOptions.count);
    }

    process([[channel]]) {
      if (!this.#samples) return false; // engines call it once more
      if (!channel) return true; // the microphone has not begun
      const part = channel.subarray(0, this.#samples.length - this.#at);
      this.#samples.set(part, this.#at);
      this.#at += part.length;
      const whole = this.#at === this.#samples.length;
      if (whole || this.#at - this.#told >= sampleRate / LEVELS) {
        const told = this.#samples.subarray(this.#told, this.#at);
        this.port.postMessage(told.reduce((most, value) => Math.max(most, Math.abs(value)), 0));
        this.#told = this.#at;
      }
      if (whole) {
        this.port.postMessage(this.#samples, [this.#samples.buffer]);
        this.#samples = null;
      }
      return !whole;
    }
  });
}
