// The same measurement as _tokens.py, of llama.cpp by node-llama-cpp.
// Arguments: folder node_modules, model, threads, tokens of a prompt (JSON), number of tokens, milliseconds since 1970
// when the process was requested.

import {pathToFileURL} from "node:url";
import fs from "node:fs";
import path from "node:path";

const REPEATS = 3;
const [, , modules, modelPath, threads, prompt, count, begun] = process.argv;
const entry = path.join(modules, "node-llama-cpp", "dist", "index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry).href);

const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath});
const tokens = JSON.parse(prompt);
const context = await model.createContext({
    contextSize: tokens.length + Number(count) + 8, batchSize: tokens.length, threads: Number(threads), flashAttention: true
});
const sequence = context.getSequence();
let start = 0, prefill = Infinity, token = Infinity, made = [];
for (let i = 0; i < REPEATS; i++) {
    await sequence.clearHistory();
    const times = [performance.now()];
    const input = tokens.map((one, at) => at === tokens.length - 1 ? [one, {generateNext: {token: true}}] : one);
    const evaluated = await sequence.controlledEvaluate(input);
    times.push(performance.now());
    made = [evaluated.at(-1).next.token];
    for await (const one of sequence.evaluate(made.slice(), {temperature: 0, yieldEogToken: true})) {
        times.push(performance.now());
        made.push(one);
        if (made.length === Number(count)) break;
    }
    start ||= Date.now() - (performance.now() - times[1]) - Number(begun);
    prefill = Math.min(prefill, times[1] - times[0]);
    token = Math.min(token, (times.at(-1) - times[1]) / (times.length - 2));
}
console.log(JSON.stringify({
    start: start / 1e3, prefill: prefill / 1e3, token: token / 1e3, tokens: made,
    memory: 1024 * Number(/VmHWM:\s*(\d+)/.exec(fs.readFileSync("/proc/self/status", "utf8"))[1])
}));
process.exit(0);
