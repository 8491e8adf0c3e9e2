// A network of this page: inputs by the processing that its bundle declares, answers, and learning.

import { load } from "./digits/msedge.mjs";

const NONE = -1n; // a label that does not count

export class Network {
  /** folder: what `msedge build` wrote. It continues from what was kept in this browser. */
  static async load(folder, onProgress) {
    const model = await load(new URL(folder, import.meta.url), { onProgress });
    model.selfTest();
    const fresh = model.state(), kept = await model.loadState();
    return new Network(model, fresh, kept);
  }

  constructor(model, fresh, kept) {
    Object.assign(this, { model, fresh, kept, steps: 0 });
    this.batch = model.signatures.train_step.inputs.find(({ name }) => name === "labels").shape[0];
  }

  /** The model's input for a picture or a sound. */
  async input(file) {
    return (await this.model.prepare({ file })).x;
  }

  /** A share for every class. */
  shares(x) {
    const { logits } = this.model.run({ x }), most = Math.max(...logits);
    const powers = Array.from(logits, (value) => Math.exp(value - most)), sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  }

  answer(x) {
    const shares = this.shares(x);
    return shares.indexOf(Math.max(...shares));
  }

  /** One step on as many examples as a batch has, or fewer: the rest of the batch does not count. */
  learn(examples, labels) {
    const x = new Float32Array(this.batch * examples[0].length), wanted = new BigInt64Array(this.batch).fill(NONE);
    for (const [i, example] of examples.entries()) {
      x.set(example, i * example.length);
      wanted[i] = BigInt(labels[i]);
    }
    this.steps += 1;
    return this.model.run({ x, labels: wanted }, "train_step").loss[0];
  }

  /** Keeps what was learned in this browser. */
  keep() {
    return this.model.saveState();
  }

  async forget() {
    this.model.resetState();
    this.steps = 0;
    await this.keep();
  }
}
