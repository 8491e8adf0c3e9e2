// Types of msedge.mjs; `Signatures`, `First` and `State` below are those of the model in this folder.

export type DType =
  | "bool" | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32" | "int64" | "uint64"
  | "float16" | "float32" | "float64";

/** An input, output or state. */
export interface Port {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** A URL, a path (in Node), or a file's bytes. */
export type Source = string | URL | ArrayBuffer | ArrayBufferView;

/** The comparison of one output: the largest difference, as a share of the largest magnitude, and the allowed one. */
export interface Compared {
  readonly signature: string;
  readonly name: string;
  readonly largest: number;
  readonly allowed: number;
}

/** Any error of this module. */
export class MsedgeError extends Error {}

type Name = keyof Signatures;

/** A loaded model. Runs are synchronous; results are new arrays in row-major order. */
export class Model {
  private constructor();
  /** By name, the first first; inputs and outputs without those that are state, and names of the states it changes. */
  readonly signatures: {
    readonly [S in Name]: {
      readonly inputs: readonly Port[];
      readonly outputs: readonly Port[];
      readonly writes: readonly string[];
    };
  };
  readonly states: readonly Port[];
  /** Digest of the bundle that the model was built from. */
  readonly bundle: string;
  readonly madeBy: string;
  readonly memoryBytes: number;
  /**
   * Runs a signature, the first by default. If it succeeds, the values that it gives for states become the state. Throws
   * MsedgeError for names, array types or lengths that do not match, and for an index outside its tensor.
   */
  run<S extends Name = First>(inputs: Signatures[S]["inputs"], signature?: S): Signatures[S]["outputs"];
  /** The inputs of a signature's sample in the file. */
  sampleInputs<S extends Name = First>(signature?: S): Signatures[S]["inputs"];
  /**
   * Runs the sample of every signature and compares; throws MsedgeError for an output that differs by more than allowed.
   * The state is not changed.
   */
  selfTest(): Compared[];
  /** Copies of all state. */
  state(): State;
  /** Replaces states: all that are given or, if one does not fit, none (MsedgeError). */
  setState(state: Partial<State>): void;
  /** Returns all state to its values in the file. */
  resetState(): void;
}

/**
 * Loads a model; by default the files beside this module. Throws MsedgeError for files that cannot be read, are damaged,
 * or do not belong together.
 */
export function load(sources?: { model?: Source; kernels?: Source }): Promise<Model>;
