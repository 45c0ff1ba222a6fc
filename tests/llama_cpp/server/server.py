# kvtl-server as its clients see it.
#
#   server.py KVTL-SERVER KVTL-LLAMA MAKE-TINY-MODEL examples/data
# SPDX-License-Identifier: MIT
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from client import Server

program, kvtl_llama, make_tiny_model, data = (str(pathlib.Path(a).resolve()) for a in sys.argv[1:5])
model = f"{data}/tiny-2k.gguf"
start = (program, "-m", model, "--threads", "1") # threads that wait for each other are slow where other tests run
long_text = pathlib.Path(f"{data}/prose.txt").read_text()[:4500]
sentence = "The kernel is started by"


def generated_by_kvtl_llama(folder, *arguments, typed=""):
    """The JSON of a run with the same preset."""
    subprocess.run([kvtl_llama, "--policy", "dynakv_estimate", "--io", "posix", "--threads", "1", "--json", "out.json",
                    *map(str, arguments)], cwd=folder, check=True, input=typed, text=True, capture_output=True)
    return json.loads((folder / "out.json").read_text())


class ServerTest(unittest.TestCase):
    """One server for all tests of a class."""

    arguments = ["-m", model]

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.server = Server(program, *cls.arguments, folder=cls.folder)
        cls.enterClassContext(cls.server)


class Answers(ServerTest):
    def test_page(self):
        reply = self.server.get("/")
        self.assertEqual(reply.status, 200)
        self.assertIn(b"<title>kvtl-server</title>", reply.body)
        self.assertNotIn(b"http://", reply.body)

    def test_health_and_models(self):
        self.assertEqual(self.server.get("/health").json, {"status": "ok"})
        (served,) = self.server.get("/v1/models").json["data"]
        self.assertEqual((served["id"], served["object"], served["max_model_len"]), ("tiny-2k", "model", 2048))

    def test_completion_is_the_text_of_kvtl_llama(self):
        for prompt, predict in ((sentence, 24), (long_text, 16)):
            expected = generated_by_kvtl_llama(self.folder, "-m", model, "-p", prompt, "-n", predict)
            reply = self.server.complete(prompt, max_tokens=predict).json
            self.assertEqual(reply["choices"][0]["text"], expected["text"])
            self.assertEqual(reply["usage"]["prompt_tokens"], expected["prompt_tokens"])
            self.assertEqual(reply["usage"]["completion_tokens"], len(expected["tokens"]))
            self.assertEqual(reply["object"], "text_completion")

    def test_a_prompt_of_tokens_is_that_of_its_text(self):
        tokens = self.server.post("/tokenize", {"content": sentence, "add_special": True}).json["tokens"]
        for prompt in (tokens, [tokens], [sentence]): # OpenAI's lists of prompts, of which one is served
            self.assertEqual(self.server.text(prompt, max_tokens=8), self.server.text(sentence, max_tokens=8))

    def test_stream_is_the_whole_in_pieces(self):
        whole = self.server.complete(sentence, max_tokens=24).json
        events = self.server.complete(sentence, max_tokens=24, stream=True).events
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(e) for e in events[:-1]]
        self.assertGreaterEqual(len(chunks), 2) # a client that is slow gets several tokens in one
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks), whole["choices"][0]["text"])
        self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"])

    def test_chat_stream_is_the_whole_in_pieces(self):
        messages = [{"role": "user", "content": sentence}]
        whole = self.server.chat(messages, max_tokens=12).json
        self.assertEqual(whole["choices"][0]["message"]["role"], "assistant")
        events = self.server.chat(messages, max_tokens=12, stream=True, stream_options={"include_usage": True}).events
        chunks = [json.loads(e) for e in events[:-1]]
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
        self.assertEqual(text, whole["choices"][0]["message"]["content"])
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)
        self.assertEqual(len({c["id"] for c in chunks}), 1)

    def test_stop_strings(self):
        text = self.server.text(sentence, max_tokens=24)
        stop = text[10:14]
        before = text[: text.index(stop)]
        choice = self.server.complete(sentence, max_tokens=24, stop=stop).json["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (before, "stop"))
        events = self.server.complete(sentence, max_tokens=24, stop=["\0", stop], stream=True).events
        self.assertEqual("".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]), before)

    def test_seeds(self):
        def sampled(seed):
            return self.server.text(sentence, max_tokens=24, temperature=1, seed=seed)

        texts = [sampled(seed) for seed in (1, 2, 3)]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(sampled(2), texts[1])

    def test_no_content_is_compressed_away_from_a_stream(self):
        reply = self.server.post("/v1/completions", {"prompt": sentence, "max_tokens": 4, "stream": True},
                                 headers={"Accept-Encoding": "gzip, br"})
        self.assertEqual(reply.events[-1], "[DONE]")

    def test_metrics_are_those_of_prometheus(self):
        self.server.text(sentence, max_tokens=4)
        sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"\})? [0-9.e+-]+')
        names = set()
        for line in self.server.get("/metrics").body.decode().splitlines():
            if line.startswith("# TYPE "):
                names.add(line.split()[2])
            elif not line.startswith("# HELP "):
                self.assertRegex(line, sample)
                name = re.match("[a-z_]+", line)[0]
                self.assertIn(re.sub("_(bucket|sum|count)$", "", name) if name not in names else name, names)
        before = self.server.metrics()
        self.server.text(sentence, max_tokens=4)
        after = self.server.metrics()
        self.assertEqual(after["kvtl_generation_tokens_total"] - before["kvtl_generation_tokens_total"], 4)
        self.assertEqual(after['kvtl_requests_total{status="finished"}'] - before['kvtl_requests_total{status="finished"}'], 1)
        self.assertGreater(after["kvtl_cache_memory_bytes"], 0)


class Refusals(ServerTest):
    arguments = ["-m", model, "--max-body-mib", "1"]

    def refused(self, status, words, path, body, **more):
        reply = self.server.post(path, body, **more)
        self.assertEqual(reply.status, status, reply.body)
        self.assertIn(words, reply.error)
        self.assertIn("valid: ", reply.error)
        self.assertEqual(set(reply.json["error"]), {"message", "type", "param", "code"})
        return reply.json["error"]

    def test_bodies(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            self.refused(400, "no JSON", path, "{")
            self.refused(400, "no JSON", path, '{"prompt": "\\ud800"}')
            self.refused(400, "the body is array", path, "[]")
            self.refused(400, "levels deep", path, '{"stop":' + "[" * 200000 + "]" * 200000 + "}")
            self.refused(400, "levels deep", path, "[" * 500000)
            self.refused(415, "text/plain", path, "{}", headers={"Content-Type": "text/plain"})
            self.refused(413, "too large", path, " " * (1 << 21))
            many = ",".join(f'"{i}":0' for i in range(257))
            self.refused(400, "more than 256 keys", path, "{" + many + "}")
            self.refused(400, "more than 256 keys", path, '{"x":[{' + many + "}]}")

    def test_many_small_objects_are_no_large_one(self):
        parts = [{"type": "text", "text": "a"}] * 300
        self.assertEqual(self.server.chat([{"role": "user", "content": parts}], max_tokens=1).status, 200)

    def test_bodies_are_bounded_when_they_are_decoded(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/nothing"):
            for kib in (1500, 100000): # read to the end; cut off
                packed = gzip.compress(b" " * (kib << 10))
                self.assertLess(len(packed), 1 << 20)
                self.refused(413, "up to 1048576 bytes", path, packed, headers={"Content-Encoding": "gzip"})
            chunks = iter([b" " * (1 << 16)] * 24)
            self.refused(413, "up to 1048576 bytes", path, chunks) # http.client sends these as chunks
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            endless = (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"10000\r\n" + b" " * (1 << 16) + b"\r\n"
            answers = self.server.raw(endless + (b"10000\r\n" + b" " * (1 << 16) + b"\r\n") * 64)
            self.assertNotIn(b" 400 ", answers) # 413, unless the client was still sending
        packed = gzip.compress(json.dumps({"content": sentence}).encode())
        for body in (packed, iter([packed[:20], packed[20:]])):
            self.assertEqual(self.server.post("/tokenize", body, headers={"Content-Encoding": "gzip"}).json,
                             self.server.post("/tokenize", {"content": sentence}).json)

    def test_a_body_is_no_request(self):
        inner = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for method, status in (("GET", 400), ("PUT", 404), ("DELETE", 404), ("OPTIONS", 404), ("POST", 404)):
            head = f"{method} /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(inner)}\r\n\r\n".encode()
            answers = self.server.raw(head + inner)
            self.assertIn(f"HTTP/1.1 {status} ".encode(), answers)
            self.assertEqual(answers.count(b"HTTP/1.1 "), 1, method)

    def test_names_of_this_machine(self):
        for host in ("localhost", "127.0.0.1", "[::1]", f"localhost:{self.server.port}", "[::1]:80"):
            self.assertEqual(self.server.get("/v1/models", headers={"Host": host}).status, 200)
        for host in ("evil.example", f"evil.example:{self.server.port}", "localhost.evil.example", "", "127.0.0.1.evil.example"):
            for reply in (self.server.get("/v1/models", headers={"Host": host}),
                          self.server.post("/tokenize", {"content": "x"}, headers={"Host": host})):
                self.assertEqual(reply.status, 403)
                self.assertIn("valid: localhost", reply.error)

    def test_fields(self):
        c, chat = "/v1/completions", "/v1/chat/completions"
        good = {"prompt": sentence, "max_tokens": 4}
        for words, field in (("max_tokens is -1", {"max_tokens": -1}), ("max_tokens is 0", {"max_tokens": 0}),
                             ("max_tokens is 1.5", {"max_tokens": 1.5}), ("temperature is -1", {"temperature": -1}),
                             ("temperature is 3", {"temperature": 3}), ("top_p is 1.5", {"top_p": 1.5}), ('seed is "x"', {"seed": "x"}),
                             ("stop is 7", {"stop": 7}), ("n is 2", {"n": 2}), ("logprobs is 3", {"logprobs": 3}),
                             ("prompt is {}", {"prompt": {}}), ("prompt is -1", {"prompt": [1, -1]}),
                             ("prompt is 99999999", {"prompt": [99999999]}), ('stream is "yes"', {"stream": "yes"}),
                             ("no tokens", {"prompt": []}), ("stream_options is 1", {"stream_options": 1}),
                             ("one prompt per request", {"prompt": ["a", "b"]}), ("one prompt per request", {"prompt": [[1], [2]]}),
                             ("prompt is [1]", {"prompt": [[[1]]]}), ("max_tokens is -4", {"max_tokens": -4, "max_completion_tokens": 4}),
                             ("one of max_tokens and max_completion_tokens", {"max_completion_tokens": 4}),
                             ("function_call is", {"function_call": {"name": "f"}}), ("modalities is", {"modalities": ["audio"]})):
            error = self.refused(400, words, c, good | field)
            self.assertEqual(error["type"], "invalid_request_error")
        self.refused(400, "prompt is missing", c, {})
        for messages in (None, [], "hello", {}):
            self.refused(400, "messages is missing", chat, {"messages": messages})
        self.refused(400, "messages[0]", chat, {"messages": ["hello"]})
        self.refused(400, "messages[0].content is missing", chat, {"messages": [{"role": "user"}]})
        for message in ({"role": "user", "content": "a\0b"}, {"role": "us\0er", "content": "a"},
                        {"role": "user", "content": [{"type": "text", "text": "\0"}]}):
            self.refused(400, "has a NUL", chat, {"messages": [message]})
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
        self.refused(400, "text only", chat, {"messages": [image]})
        parts = [{"role": "user", "content": [{"type": "text", "text": "The "}, {"type": "text", "text": "end"}]}]
        self.assertEqual(self.server.chat(parts, max_tokens=2).status, 200)

    def test_model_that_is_not_there(self):
        error = self.refused(404, 'valid: "tiny-2k"', "/v1/completions", {"model": "gpt-5", "prompt": "x"})
        self.assertEqual(error["code"], "model_not_found")
        self.assertEqual(self.server.complete("x", model="tiny-2k", max_tokens=1).status, 200)

    def test_context(self):
        error = self.refused(400, "context has 2048 tokens", "/v1/completions", {"prompt": [5] * 2048})
        self.assertEqual(error["code"], "context_length_exceeded")
        error = self.refused(400, "valid: 1 to 48", "/v1/completions", {"prompt": [5] * 2000, "max_tokens": 49})
        self.assertEqual(error["code"], "context_length_exceeded")
        reply = self.server.complete([5] * 2000, max_tokens=48, stream=False)
        self.assertEqual(reply.status, 200, reply.body)

    def test_paths(self):
        reply = self.server.get("/v1/nothing")
        self.assertEqual(reply.status, 404)
        self.assertIn("/v1/chat/completions", reply.error)

    def test_the_server_goes_on(self):
        self.assertEqual(len(self.server.text(sentence, max_tokens=4)) > 0, True)


class ManyAtOnce(ServerTest):
    def test_answers_do_not_depend_on_others(self):
        prompts = [sentence, long_text[:900], "A cache of keys and values", long_text[900:2000]]
        alone = [self.server.text(p, max_tokens=200) for p in prompts]
        tokens = self.server.metrics()["kvtl_generation_tokens_total"]
        steps = self.server.metrics()["kvtl_steps_total"]
        together = [None] * len(prompts)

        def ask(i):
            together[i] = self.server.text(prompts[i], max_tokens=200)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(together, alone)
        after = self.server.metrics()
        self.assertLess(after["kvtl_steps_total"] - steps, after["kvtl_generation_tokens_total"] - tokens)

    def test_a_long_prompt_does_not_stop_an_answer(self):
        pieces = 0
        with self.server.open("/v1/completions", {"prompt": sentence, "max_tokens": 2000, "stream": True, "temperature": 0,
                                                  "seed": 1}) as answer:
            stream = answer.makefile("rb")

            def next_piece():
                while not (line := stream.readline()).startswith(b"data: {"):
                    self.assertTrue(line, "the answer has ended")

            for _ in range(5):
                next_piece()
            before = self.server.metrics()["kvtl_generation_tokens_total"]
            reply = self.server.complete(long_text, max_tokens=1).json
            after = self.server.metrics()["kvtl_generation_tokens_total"]
            self.assertGreater(reply["usage"]["prompt_tokens"], 1000)
            # Its chunks have 128 tokens, and each batch has a token of the answer, too.
            self.assertGreater(after - before, reply["usage"]["prompt_tokens"] // 128)
            next_piece()
        Server.until(lambda: self.server.busy() == 0)


class Clients(ServerTest):
    arguments = ["-m", model, "--parallel", "1", "--queue", "1"]
    endless = {"prompt": sentence, "max_tokens": 2000, "temperature": 0}

    def gone(self):
        return self.server.metrics()['kvtl_requests_total{status="disconnected"}']

    def test_a_client_that_goes_away_frees_its_slot(self):
        for stream in (True, False):
            before = self.gone()
            with self.server.open("/v1/completions", self.endless | {"stream": stream}):
                Server.until(lambda: self.server.busy() == 1)
            Server.until(lambda: self.gone() == before + 1)
            self.assertEqual(self.server.busy(), 0)

    def test_queue(self):
        def waiting():
            return self.server.metrics()["kvtl_requests_waiting"]

        with self.server.open("/v1/completions", self.endless):
            Server.until(lambda: self.server.busy() == 1)
            with self.server.open("/v1/completions", self.endless):
                Server.until(lambda: waiting() == 1)
                reply = self.server.complete(sentence)
                self.assertEqual((reply.status, reply.json["error"]["code"]), (503, "queue_full"))
            Server.until(lambda: waiting() == 0)
            self.assertEqual(self.server.busy(), 1)
        self.assertEqual(self.server.complete(sentence, max_tokens=2).status, 200)


class Turns(ServerTest):
    """A preset that keeps everything: what is reused changes no token."""

    arguments = ["-m", model, "--policy", "full"]

    def test_a_second_turn_is_not_computed_again(self):
        first = self.server.complete(long_text, max_tokens=20).json
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        prompt = long_text + first["choices"][0]["text"] + "\nQuestion: what is it?"
        again = self.server.complete(prompt, max_tokens=20).json
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"],
                           first["usage"]["prompt_tokens"] - 2)
        with Server(program, *self.arguments, folder=self.folder) as cold:
            fresh = cold.complete(prompt, max_tokens=20).json
        self.assertEqual(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(again["choices"][0]["text"], fresh["choices"][0]["text"])

    def test_an_answer_comes_back_in_the_tokens_that_were_generated(self):
        # At this temperature the model chooses tokens that a tokenizer would not make of their text.
        checked = other_tokens = 0
        for seed in range(5):
            first = self.server.complete(long_text[:900], max_tokens=60, temperature=2, seed=seed).json
            text = first["choices"][0]["text"]
            if "\ufffd" in text: # bytes that are no UTF-8 do not come back
                continue
            prompt = long_text[:900] + text + " and"
            usage = self.server.complete(prompt, max_tokens=1).json["usage"]
            said = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], said - 2)
            checked += 1
            # Who gives tokens gets these.
            tokens = self.server.post("/tokenize", {"content": prompt, "add_special": True}).json["tokens"]
            other_tokens += len(tokens) != usage["prompt_tokens"]
            usage = self.server.complete(tokens, max_tokens=1).json["usage"]
            self.assertEqual(usage["prompt_tokens"], len(tokens))
        self.assertGreater(checked, 0)
        self.assertGreater(other_tokens, 0)

    def test_the_same_prompt_again(self):
        texts = [self.server.complete(long_text[500:1500], max_tokens=12).json for _ in range(2)]
        self.assertEqual(texts[0]["choices"], texts[1]["choices"])
        usage = texts[1]["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 1)


class Templates(unittest.TestCase):
    def test_chat_is_the_conversation_of_kvtl_llama(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run([make_tiny_model, "llama", "f16", folder / "chat.gguf", "chat=1"], check=True)
            spoken = generated_by_kvtl_llama(folder, "-m", "chat.gguf", "-i", "-n", 12, typed="hello there\nand then?\n")
            answers = spoken["answers"]
            with Server(program, "-m", "chat.gguf", folder=folder) as server:
                messages = []
                for said, expected in zip(("hello there", "and then?"), answers, strict=True):
                    messages.append({"role": "user", "content": said})
                    reply = server.chat(messages, max_tokens=12).json["choices"][0]["message"]
                    self.assertEqual(reply["content"], expected["text"])
                    messages.append(reply)


class Hybrids(unittest.TestCase):
    """Models with a recurrent state: one sequence per batch, and nothing is stored."""

    def test_answers_and_turns(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run([make_tiny_model, "lfm2", "f16", folder / "hybrid.gguf"], check=True)
            prompts = ["the bold banana", "a quick fox and a lazy dog"]
            expected = [generated_by_kvtl_llama(folder, "-m", "hybrid.gguf", "-p", p, "-n", 12)["text"] for p in prompts]
            with Server(program, "-m", "hybrid.gguf", "--store", "store", folder=folder) as server:
                answers = [None, None]

                def ask(i):
                    answers[i] = server.text(prompts[i], max_tokens=12)

                threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                self.assertEqual(answers, expected)
                usage = server.complete(prompts[0] + answers[0] + " and", max_tokens=2).json["usage"]
                self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 5)
            self.assertIn("conversations end with the server", (folder / "log").read_text())
            self.assertFalse((folder / "store").exists())


class Keys(unittest.TestCase):
    def test_keys_are_asked_for_and_separate_users(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "keys").write_text("# users\nalice-key\n\nbob-key\r\n")
            with Server(program, "-m", model, "--api-key-file", "keys", "--policy", "full", folder=folder) as server:
                self.assertEqual(server.get("/health").status, 200)
                for key in (None, "", "wrong", "alice-ke", "alice-key2", "# users"):
                    for reply in (server.complete(sentence, key), server.get("/metrics", key=key),
                                  server.get("/v1/models", key=key), server.get("/nothing", key=key)):
                        self.assertEqual(reply.status, 401)
                        self.assertEqual(reply.json["error"]["code"], "invalid_api_key")

                inner = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
                head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                head += f"Content-Length: {3000 + len(inner)}\r\n"
                head += "X: " + "x" * (4096 - 3000 - len(head) - 7) + "\r\n\r\n" # httplib reads 4096 bytes at once
                refused = head.encode() + b" " * 3000 + inner
                answers = server.raw(refused, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", answers), [b"401", b"401"])

                def cached(key):
                    reply = server.complete(long_text[:1000], key, max_tokens=4)
                    self.assertEqual(reply.status, 200, reply.body)
                    return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

                self.assertEqual(cached("alice-key"), 0)
                self.assertEqual(cached("bob-key"), 0)
                self.assertGreater(cached("alice-key"), 100)
                self.assertGreater(cached("bob-key"), 100)


class Stored(unittest.TestCase):
    """Conversations that outlive the server, or their sequence."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.store = self.folder / "store"

    def server(self, *arguments, file=model, policy="full"):
        return Server(program, "-m", file, "--policy", policy, "--store", "store", *arguments, folder=self.folder)

    def turn(self, server, prompt, key=None):
        """Text, and tokens that were not computed again."""
        reply = server.complete(prompt, key, max_tokens=20)
        self.assertEqual(reply.status, 200, reply.body)
        usage = reply.json["usage"]
        return reply.json["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"]

    def files(self):
        return sorted(f for f in self.store.iterdir() if f.suffix == ".kvs")

    def test_a_conversation_goes_on_after_a_restart(self):
        with self.server() as server:
            first, cached = self.turn(server, long_text)
            self.assertEqual(cached, 0)
        self.assertEqual(len(self.files()), 1)
        prompt = long_text + first + "\nQuestion: what is it?"
        with self.server() as server:
            again, cached = self.turn(server, prompt)
            self.assertGreater(cached, 1000)
            self.assertEqual(server.metrics()["kvtl_store_loads_total"], 1)
        self.assertEqual(len(self.files()), 2, "what an earlier server stored may be shared, and stays")
        with Server(program, "-m", model, "--policy", "full", folder=self.folder) as cold:
            self.assertEqual(self.turn(cold, prompt), (again, 0))

    def test_presets_of_clusters_go_on_too(self):
        with self.server(policy="dynakv_estimate") as server:
            first, _ = self.turn(server, long_text)
        with self.server(policy="dynakv_estimate") as server:
            text, cached = self.turn(server, long_text + first + " and")
            self.assertGreater(cached, 1000)
            self.assertTrue(text)

    def test_a_conversation_that_had_to_leave_comes_back(self):
        with self.server("--parallel", "1") as server:
            first, _ = self.turn(server, long_text[:2000])
            self.turn(server, long_text[2000:])
            _, cached = self.turn(server, long_text[:2000] + first + " and")
            self.assertGreater(cached, 400)

    def test_what_was_said_outlives_a_crash_once_the_server_was_idle(self):
        with self.server() as server:
            first, _ = self.turn(server, long_text)
            Server.until(lambda: server.metrics()["kvtl_store_conversations"] == 1)
            server.kill()
        with self.server() as server:
            _, cached = self.turn(server, long_text + first + " and")
            self.assertGreater(cached, 1000)

    def test_a_shared_beginning_is_computed_twice_and_then_loaded(self):
        (self.folder / "keys").write_text("alice\nbob\n")
        document = long_text[:3000]
        with self.server("--api-key-file", "keys", policy="dynakv_estimate") as server:
            tokens = len(server.post("/tokenize", {"content": document}, key="alice").json["tokens"])
            # Longer than the window, within which a sequence goes back.
            questions = [long_text[3000 + 300 * i : 3300 + 300 * i] for i in range(4)]
            for question in questions[:2]:
                self.assertEqual(self.turn(server, document + "\n" + question, "alice")[1], 0)
            for question in questions[2:]:
                self.assertGreater(self.turn(server, document + "\n" + question, "alice")[1], tokens - 10)
            self.assertEqual(self.turn(server, document + "\n" + questions[2], "bob")[1], 0)

    def test_a_longer_conversation_takes_the_place_of_the_shorter_one(self):
        with self.server("--parallel", "1") as server:
            first, _ = self.turn(server, long_text[:2000])
            self.turn(server, long_text[2000:])
            prompt = long_text[:2000] + first + " and"
            again, cached = self.turn(server, prompt) # loaded
            self.assertGreater(cached, 400)
            self.turn(server, prompt + again + " or")
        self.assertEqual(len(self.files()), 2)

    def test_a_shared_beginning_outlives_a_restart(self):
        document = long_text[:3000]
        questions = [long_text[3000 + 300 * i : 3300 + 300 * i] for i in range(4)]
        with self.server(policy="dynakv_estimate") as server:
            tokens = len(server.post("/tokenize", {"content": document}).json["tokens"])
            for question in questions[:2]:
                self.assertEqual(self.turn(server, document + "\n" + question)[1], 0)
        for question in questions[2:]:
            with self.server(policy="dynakv_estimate") as server:
                self.assertGreater(self.turn(server, document + "\n" + question)[1], tokens - 10)

    def test_bound_of_what_is_written(self):
        with self.server("--store-write-mib-per-day", "1", "--parallel", "1") as server:
            self.turn(server, long_text[:2000]) # more than that, which nobody knew before
            self.turn(server, long_text[2000:])
        self.assertEqual(len(self.files()), 1)
        self.assertIn("write_bytes_per_day", (self.folder / "log").read_text())

    def test_all_conversations_are_stored_when_nobody_asks(self):
        with self.server() as server:
            for i in range(3):
                self.turn(server, long_text[1000 * i : 1000 * i + 900])
            Server.until(lambda: server.metrics()["kvtl_store_conversations"] == 3)
            server.kill()
        self.assertEqual(len(self.files()), 3)

    def test_bound_of_the_files(self):
        with self.server("--store-mib", "6", "--parallel", "1") as server:
            for i in range(5):
                said, _ = self.turn(server, long_text[200 * i : 200 * i + 1500])
                self.assertLessEqual(server.metrics()["kvtl_store_bytes"], 6 << 20)
        self.assertLessEqual(sum(f.stat().st_size for f in self.files()), 6 << 20)
        self.assertGreater(len(self.files()), 1)
        with self.server("--store-mib", "6", "--parallel", "1") as server:
            self.assertGreater(self.turn(server, long_text[800:2300] + said + " and")[1], 100)

    def test_users_are_apart(self):
        (self.folder / "keys").write_text("alice-secret\nbob-secret\n")
        with self.server("--api-key-file", "keys") as server:
            said, _ = self.turn(server, long_text, "alice-secret")
        (file,) = self.files()
        self.assertEqual(self.store.stat().st_mode & 0o777, 0o700)
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertNotIn(b"alice-secret", file.read_bytes())
        with self.server("--api-key-file", "keys") as server:
            self.assertEqual(self.turn(server, long_text + said + " and", "bob-secret")[1], 0)
            self.assertGreater(self.turn(server, long_text + said + " and", "alice-secret")[1], 1000)

    def test_another_model_of_the_same_shape_does_not_match(self):
        with self.server() as server:
            said, _ = self.turn(server, long_text)
        with self.server(file=f"{data}/tiny-2k.along.gguf") as server:
            self.assertEqual(self.turn(server, long_text + said + " and")[1], 0)

    def test_a_damaged_file_is_computed_again(self):
        with self.server() as server:
            said, _ = self.turn(server, long_text)
            whole, _ = self.turn(server, long_text + said + " and")
        (file,) = self.files()
        damaged = bytearray(file.read_bytes())
        for at in range(16384, len(damaged), 4096):
            damaged[at] ^= 1
        file.write_bytes(damaged)
        with self.server() as server:
            self.assertEqual(self.turn(server, long_text + said + " and"), (whole, 0))

    def test_one_server_has_a_folder(self):
        with self.server():
            done = subprocess.run([*start, "--port", "0", "--store", "store"], cwd=self.folder, capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--store: ", done.stderr)
            self.assertIn("another store has this folder", done.stderr)


class Program(unittest.TestCase):
    def test_bad_usage(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "empty").write_text("# nobody\n")
            for words, arguments in (("--port", ["--port", "65536"]), ("--port", ["--port", "-1"]),
                                     ("--parallel", ["--parallel", "0"]), ("--queue", ["--queue", "0"]),
                                     ("--context", ["-c", "4096"]), ("unknown policy", ["--policy", "magic"]),
                                     ("missing", ["--api-key-file", "missing"]), ("no key", ["--api-key-file", "empty"]),
                                     ("cannot listen", ["--host", "192.0.2.1"]), ("missing.gguf", ["-m", "missing.gguf"]),
                                     ("--parallel", ["--memory-mib", "1"]),
                                     ("--store-mib", ["--store-mib", "-1"]),
                                     ("--store-write-mib-per-day", ["--store-write-mib-per-day", "1073741825"]), ("--store: ", ["--store", "empty/x"])):
                none = [] if "--store" in arguments[0] else ["--store-mib", "0"]
                done = subprocess.run([*start, "--port", "0", "--io", "posix", *none, *arguments], cwd=folder,
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 2, arguments)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_a_port_that_is_taken(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with Server(program, "-m", model, folder=folder) as server:
                done = subprocess.run([*start, "--port", str(server.port), "--store-mib", "0"], cwd=folder,
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"cannot listen on 127.0.0.1 port {server.port}", done.stderr)

    def test_a_name_that_is_no_utf8(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            odd = os.fsencode(folder) + b"/a\xff.gguf"
            os.symlink(model, odd)
            with Server(program, "-m", os.fsdecode(odd), folder=folder) as server:
                self.assertEqual(server.get("/v1/models").json["data"][0]["id"], "a\ufffd")

    def test_sigterm_at_once(self):
        with tempfile.TemporaryDirectory() as name:
            for _ in range(5):
                with Server(program, "-m", model, folder=pathlib.Path(name)):
                    pass

    def test_a_second_signal_ends_it_at_once(self):
        with tempfile.TemporaryDirectory() as name:
            with Server(program, "-m", model, folder=pathlib.Path(name)) as server:
                # A client that is slow: the server would wait for the rest of its body.
                with server.open("/tokenize", {"content": "x"}, more=1000):
                    server.get("/health")
                    server.process.send_signal(signal.SIGTERM)
                    Server.until(lambda: server.refuses())
                    server.process.send_signal(signal.SIGTERM)
                    server.expected = -signal.SIGTERM

    def test_sigterm_ends_what_is_open_and_leaves_nothing_behind(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with Server(program, "-m", model, folder=folder) as server:
                answer = server.open("/v1/completions", {"prompt": sentence, "max_tokens": 2000, "stream": True,
                                                         "temperature": 0})
                Server.until(lambda: server.busy() == 1)
            rest = b""
            while more := answer.recv(65536):
                rest += more
            answer.close()
            self.assertIn(b"the server is stopping", rest)
            self.assertEqual([f.name for f in folder.iterdir()], ["log"])

    def test_an_answer_that_fails_midway_says_why_and_is_cut_off(self):
        with tempfile.TemporaryDirectory() as name:
            with Server(program, "-m", model, folder=pathlib.Path(name)) as server:
                answer = server.open("/v1/completions", {"prompt": sentence, "max_tokens": 2000, "temperature": 0})
                Server.until(lambda: server.busy() == 1)
            rest = b""
            while more := answer.recv(65536):
                rest += more
            answer.close()
            self.assertIn(b'{"error":{"message":"the server is stopping', rest)
            self.assertNotIn(b"\r\n0\r\n", rest) # the end of a whole answer


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
