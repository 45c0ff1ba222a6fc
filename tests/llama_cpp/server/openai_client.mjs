// What OpenAI's own client makes of kvtl-server, as one line of JSON.
//   node openai_client.mjs FOLDER-OF-THE-PACKAGE http://HOST:PORT/v1 KEY
// SPDX-License-Identifier: MIT
const [folder, baseURL, apiKey] = process.argv.slice(2);
const {OpenAI, AuthenticationError, BadRequestError, NotFoundError, APIUserAbortError} = await import(`${folder}/index.mjs`);
const client = new OpenAI({baseURL, apiKey, maxRetries: 0});
const said = {};

for await (const model of client.models.list()) said.model = model.id;
const messages = [{role: "user", content: "The kernel is started by"}];
const asked = {model: said.model, messages, max_tokens: 12, temperature: 0};
const whole = await client.chat.completions.create(asked);
said.chat = whole.choices[0].message.content;
said.role = whole.choices[0].message.role;
said.usage = whole.usage;

said.stream = "";
for await (const chunk of await client.chat.completions.create({...asked, stream: true, stream_options: {include_usage: true}})) {
  said.stream += chunk.choices[0]?.delta?.content ?? "";
  said.reason = chunk.choices[0]?.finish_reason ?? said.reason;
  said.stream_usage = chunk.usage ?? said.stream_usage;
}
said.helper = await client.chat.completions.stream(asked).finalContent();
said.text = (await client.completions.create({model: said.model, prompt: messages[0].content, max_tokens: 12, temperature: 0})).choices[0].text;

const error = async (call, kind) => {
  try { await call(); return "no error"; } catch (e) { return e instanceof kind ? e.message : `another error: ${e}`; }
};
said.key = await error(() => new OpenAI({baseURL, apiKey: "wrong", maxRetries: 0}).models.list(), AuthenticationError);
said.bad = await error(() => client.chat.completions.create({...asked, temperature: 3}), BadRequestError);
said.none = await error(() => client.chat.completions.create({...asked, model: "other"}), NotFoundError);
const stop = new AbortController();
said.abort = await error(async () => {
  const answer = await client.chat.completions.create({...asked, max_tokens: 900, stream: true}, {signal: stop.signal});
  let n = 0;
  for await (const _ of answer) if (++n === 2) stop.abort();
  if (stop.signal.aborted) throw new APIUserAbortError(); // the loop ends without an error
}, APIUserAbortError);
console.log(JSON.stringify(said));
