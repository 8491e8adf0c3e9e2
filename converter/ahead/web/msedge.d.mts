// Types of msedge.mjs; `Signatures`, `First` and `State` below are those of the model in this folder, or of any.

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

/** What has pixels: an ImageData (its parts suffice), or whatever a canvas draws. */
export type Picture = { data: Uint8ClampedArray; width: number; height: number } | { width: number; height: number };

/** An AudioBuffer (its parts suffice), or the samples of one channel or of each, and how many there are a second. */
export type Sound =
  | { readonly sampleRate: number; readonly numberOfChannels: number; getChannelData(channel: number): Float32Array }
  | { readonly samples: Float32Array | readonly Float32Array[]; readonly rate: number };

type Name = Extract<keyof Signatures, string>;
type InputsOf<S extends string> = S extends Name ? Signatures[S]["inputs"] : never;

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
  /** Threads that take part in a run, and the file of kernels that was chosen for this engine. */
  readonly threads: number;
  readonly kernels: string;
  /**
   * Runs a signature, the first by default. If it succeeds, the values that it gives for states become the state. Throws
   * MsedgeError for names, array types or lengths that do not match, and for an index outside its tensor.
   */
  run<S extends Name = First>(inputs: Signatures[S]["inputs"], signature?: S): Signatures[S]["outputs"];
  /**
   * Inputs for `run` from pictures and sounds by name (lists for a batch), by the processing that the bundle declares for
   * `predict`. Throws MsedgeError for steps that are not for them, and without a declaration.
   */
  prepare(files: {
    [name: string]: Picture | Picture[] | Sound | Sound[] | ArrayBufferView;
  }): Promise<InputsOf<"predict">>;
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
  /** All state as the bytes of a state file (.msstate), which msedge's Python reads and writes too. */
  stateFile(): Promise<Uint8Array>;
  /** Replaces all state by that of a state file, also of another model whose states are the same; otherwise MsedgeError. */
  loadStateFile(source: Source): Promise<void>;
  /** Keeps all state in the browser's database (IndexedDB), by default under the model's digest. */
  saveState(key?: string): Promise<void>;
  /** Replaces all state by what `saveState` kept; false if there is nothing under the key. */
  loadState(key?: string): Promise<boolean>;
  /** Ends the model's workers. It cannot be run any more. */
  close(): void;
}

/** Bytes of a file that have come so far, and all of them (undefined until they are known). */
export interface Progress {
  readonly file: string;
  readonly loaded: number;
  readonly total: number | undefined;
}

export interface Options {
  /** By default as many as gain and the machine has, at most 4; one where memory cannot be shared. */
  threads?: number;
  /** Whether relaxed SIMD instructions may be used where they give the same bits; true by default. */
  relaxed?: boolean;
  /** Called while files come from a server. */
  onProgress?: (progress: Progress) => void;
  /** Sources by file name ("model.msflat", "kernels.json", "kernels.wasm", …) instead of the files in the folder. */
  files?: { [name: string]: Source };
}

/**
 * Loads a model from a folder, given by its URL or (in Node) its path; by default from the folder of this module. Throws
 * MsedgeError for files that cannot be read, are damaged, or do not belong together, and for threads that cannot be had.
 */
export function load(folder: string | URL, options?: Options): Promise<Model>;
export function load(options?: Options): Promise<Model>;
