// Types of msedge-media.mjs.

/**
 * Shows the camera in a video element, which `prepare` takes as a picture, and returns a function that ends it. Throws
 * MsedgeError where there is no camera, or its use was not permitted.
 */
export function camera(video: HTMLVideoElement, options?: { facing?: "user" | "environment" }): Promise<() => void>;

/** One channel, and its samples a second. */
export interface Recording {
  readonly samples: Float32Array;
  readonly rate: number;
}

/**
 * Records the microphone, from a click. seconds: up to 600, by default 1. onLevel: called 20 times a second with the
 * largest magnitude. signal: ends it, with the signal's reason. Throws MsedgeError where there is no microphone, its use
 * was not permitted, or it ends too early.
 */
export function record(options?: {
  seconds?: number;
  onLevel?: (level: number) => void;
  signal?: AbortSignal;
}): Promise<Recording>;
