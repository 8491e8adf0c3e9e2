// Types of msedge.mjs; `Inputs` and `Outputs` below are those of the model in this folder.

export type DType =
  | "bool" | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32" | "int64" | "uint64"
  | "float16" | "float32" | "float64";

/** An input or output. */
export interface Port {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** A URL, a path (in Node), or a file's bytes. */
export type Source = string | URL | ArrayBuffer | ArrayBufferView;

/** The comparison of one output: the largest difference, as a share of the largest magnitude, and the allowed one. */
export interface Compared {
  readonly name: string;
  readonly largest: number;
  readonly allowed: number;
}

/** Any error of this module. */
export class MsedgeError extends Error {}

/** A loaded model. Runs are synchronous; results are new arrays in row-major order. */
export class Model {
  private constructor();
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  /** Digest of the bundle that the model was built from. */
  readonly bundle: string;
  readonly signature: string;
  readonly madeBy: string;
  readonly memoryBytes: number;
  /** Throws MsedgeError for names, array types or lengths that do not match, and for an index outside its tensor. */
  run(inputs: Inputs): Outputs;
  /** The inputs of the sample in the file. */
  sampleInputs(): Inputs;
  /** Runs the sample and compares; throws MsedgeError for an output that differs by more than allowed. */
  selfTest(): Compared[];
}

/**
 * Loads a model; by default the files beside this module. Throws MsedgeError for files that cannot be read, are damaged,
 * or do not belong together.
 */
export function load(sources?: { model?: Source; kernels?: Source }): Promise<Model>;
