// A conversation through OpenAI's own client, streamed: standard input has {"messages", "questions"}; prints {"messages", "cached"}
// with the answers, and the tokens of each prompt that were not computed again.
//   node openai_turns.mjs FOLDER-OF-THE-PACKAGE http://HOST:PORT/v1 KEY
// SPDX-License-Identifier: MIT
import {readFileSync} from "node:fs";
const [folder, baseURL, apiKey] = process.argv.slice(2);
const {OpenAI} = await import(`${folder}/index.mjs`);
const client = new OpenAI({baseURL, apiKey, maxRetries: 0});
const {messages, questions} = JSON.parse(readFileSync(0, "utf8"));
const cached = [];
for (const content of questions) {
  messages.push({role: "user", content});
  let answer = "";
  const asked = {model: "tiny-2k", messages, max_tokens: 16, temperature: 0, stream: true, stream_options: {include_usage: true}};
  for await (const chunk of await client.chat.completions.create(asked)) {
    answer += chunk.choices[0]?.delta?.content ?? "";
    if (chunk.usage) cached.push(chunk.usage.prompt_tokens_details.cached_tokens);
  }
  messages.push({role: "assistant", content: answer});
}
console.log(JSON.stringify({messages, cached}));
