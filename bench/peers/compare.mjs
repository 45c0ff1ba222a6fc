// Greedy tokens and tokens per second of kvtl-run and llama.cpp on the same model, prompt and threads.
// SPDX-License-Identifier: MIT
//
//   node compare.mjs --run BUILD/bin/kvtl-run --model FILE.gguf [--prompt TEXT] [--predict N] [--threads N] [--rounds N]
//                    [-- further options of kvtl-run]
//
// The two run alternately, --rounds times; speeds are medians. Exit status 1 when the tokens differ.
import { spawnSync } from "node:child_process";
import { parseArgs } from "node:util";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

const { values: options, positionals: passedOn } = parseArgs({
    allowPositionals: true,
    options: {
        run: { type: "string" },
        model: { type: "string" },
        prompt: { type: "string", default: "The kernel is started by the boot loader, which" },
        predict: { type: "string", default: "64" },
        threads: { type: "string", default: "2" },
        rounds: { type: "string", default: "3" },
    },
});
if (!options.run || !options.model) {
    console.error("usage: node compare.mjs --run KVTL-RUN --model FILE.gguf [--prompt TEXT] [--predict N] [--threads N] [--rounds N] [-- ...]");
    process.exit(2);
}
const predict = Number(options.predict);
const threads = Number(options.threads);

function runKvtl() {
    const result = spawnSync(options.run, [
        "-m", options.model, "-p", options.prompt, "-n", options.predict, "--threads", options.threads,
        "--ignore-eos", "--temp", "0", "--json", "-", ...passedOn,
    ], { encoding: "utf8", maxBuffer: 1 << 28 });
    if (result.status !== 0) {
        console.error(result.stderr || result.error);
        process.exit(1);
    }
    const report = JSON.parse(result.stdout);
    return { name: `kvtl-run, ${report.policy} on ${report.io}`, prompt: report.prompt_tokens, tokens: report.tokens,
        prefill: report.prefill_s, rate: report.tokens_per_s };
}

const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads, logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath: options.model });

async function runLlama() {
    const prompt = model.tokenize(options.prompt, true);
    if (model.tokens.shouldPrependBosToken && model.tokens.bos !== null) prompt.unshift(model.tokens.bos);
    const context = await model.createContext({ contextSize: prompt.length + predict, threads });
    const tokens = [];
    const start = performance.now();
    let first = start;
    for await (const token of context.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
        if (tokens.length === 0) first = performance.now();
        tokens.push(token);
        if (tokens.length === predict) break;
    }
    const seconds = (performance.now() - first) / 1000;
    await context.dispose();
    return { name: "llama.cpp (node-llama-cpp)", prompt: prompt.length, tokens, prefill: (first - start) / 1000,
        rate: (tokens.length - 1) / seconds };
}

const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];
const rounds = [];
for (let i = 0; i < Number(options.rounds); ++i) rounds.push([runKvtl(), await runLlama()]);
for (const side of [0, 1]) {
    const one = rounds[0][side];
    console.log(`${one.name}: ${one.prompt} prompt tokens in ${median(rounds.map((r) => r[side].prefill)).toFixed(3)} s, ` +
        `${one.tokens.length} tokens at ${median(rounds.map((r) => r[side].rate)).toFixed(1)}/s`);
}
const [ours, theirs] = rounds[0];
let same = 0;
while (same < predict && ours.tokens[same] === theirs.tokens[same]) ++same;
const equal = same === predict && ours.prompt === theirs.prompt;
console.log(equal ? `the ${same} tokens are the same`
    : `prompts of ${ours.prompt} and ${theirs.prompt} tokens; the first ${same} of ${predict} generated ones are the same`);
await model.dispose();
process.exit(equal ? 0 : 1);
