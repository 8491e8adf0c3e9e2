// Types of federated.mjs.

import { MsedgeError, type Model } from "./msedge.mjs";

/** Any error of this module: what was expected, what was found, and what to do. */
export class FederatedError extends MsedgeError {}

type Numbers =
  | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | BigInt64Array | BigUint64Array
  | Float32Array | Float64Array;

/** Where a device is in a round. */
export interface Step {
  readonly round: number;
  readonly step?: number;
  readonly steps?: number;
}

/** What a device does now; why: of a reply that was not taken, and of a server that does not answer. */
export interface Progress extends Partial<Step> {
  readonly state: "waiting" | "training" | "answered" | "refused" | "lost";
  readonly why?: string;
}

/** Answers a server's messages with a model and examples that stay here. */
export class Device {
  /**
   * model: built with the signatures `gradients`, for batches of the run's size, and `evaluate`, for one example.
   * inputs: arrays by the model's input names, all examples one after the other; labels: one for each example. secret:
   * 32 bytes that only this device has, which prove that a device that returns is the same one; by default kept in the
   * browser's IndexedDB, and in Node only while the program runs. Throws FederatedError for what does not fit.
   */
  constructor(options: {
    name: string;
    model: Model;
    inputs: Readonly<Record<string, Numbers>>;
    labels: Numbers;
    secret?: Uint8Array;
  });
  readonly name: string;
  readonly examples: number;
  /** The reply to a message; `progress` is awaited on the way. Throws FederatedError for bytes that are no message. */
  answer(message: Uint8Array, progress?: (step: Step) => void | Promise<void>): Promise<Uint8Array>;
}

/**
 * Checks in and answers messages until the run is over.
 *
 * url: of `msedge listen`, with this page's origin among its --origin. signal: ends it. patience: seconds without the
 * server after which it gives up (600). Throws FederatedError where the server refuses the token, is of another release,
 * or cannot be reached any more.
 */
export function join(options: {
  url: string;
  token: string;
  device: Device;
  signal?: AbortSignal;
  patience?: number;
  onProgress?: (progress: Progress) => void;
}): Promise<void>;
