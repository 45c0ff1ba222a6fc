# kvtl-server as real clients see it: OpenAI's own for Node.js, curl, and its page in a browser without a window.
#
#   clients.py KVTL-SERVER examples/data build/openai
# SPDX-License-Identifier: MIT
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from client import Server

program, data, package = (str(pathlib.Path(a).resolve()) for a in sys.argv[1:4])
model = f"{data}/tiny-2k.gguf"
browser = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None)
question = "The kernel is started by"


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.addClassCleanup(cls.temporary.cleanup)
        (cls.folder / "keys").write_text("secret\n")
        cls.server = Server(program, "-m", model, "--api-key-file", "keys", folder=cls.folder)
        cls.enterClassContext(cls.server)
        cls.url = f"http://{cls.server.host}:{cls.server.port}"


def needs_openai(test):
    there = unittest.skipUnless(pathlib.Path(package, "index.mjs").exists(), "there is no OpenAI client (scripts/deps.sh --clients)")
    return unittest.skipUnless(shutil.which("node"), "there is no Node.js (Debian: nodejs)")(there(test))


class OpenAI(Clients):
    @needs_openai
    def test_its_own_client(self):
        script = pathlib.Path(__file__).with_name("openai_client.mjs")
        done = subprocess.run(["node", script, package, f"{self.url}/v1", "secret"], capture_output=True, text=True,
                              check=False, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        expected = self.server.chat([{"role": "user", "content": question}], "secret", max_tokens=12).json
        text = expected["choices"][0]["message"]["content"]
        self.assertEqual(said["model"], "tiny-2k")
        self.assertEqual((said["chat"], said["stream"], said["helper"], said["role"]), (text, text, text, "assistant"))
        self.assertEqual(said["text"], self.server.text(question, "secret", max_tokens=12))
        self.assertEqual(said["reason"], expected["choices"][0]["finish_reason"])
        for usage in (said["usage"], said["stream_usage"]):
            self.assertEqual(usage["completion_tokens"], 12)
            self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 12)
        self.assertIn("the key is missing or wrong", said["key"])
        self.assertIn("temperature", said["bad"])
        self.assertIn("valid: ", said["bad"])
        self.assertIn("other", said["none"])
        self.assertNotIn("error", said["abort"])
        Server.until(lambda: not any(s["is_processing"] for s in self.server.get("/slots", key="secret").json))


class Turns(unittest.TestCase):
    """Two users with OpenAI's client, each with a conversation, and a restart between two turns."""

    def ask_all(self, server, talks, questions):
        """The next turns of all users at once."""
        script = pathlib.Path(__file__).with_name("openai_turns.mjs")
        url = f"http://{server.host}:{server.port}/v1"
        asking = {}
        for key, messages in talks.items():
            asking[key] = subprocess.Popen(["node", script, package, url, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            asking[key].stdin.write(json.dumps({"messages": messages, "questions": questions}))
            asking[key].stdin.close()
        said = {}
        for key, process in asking.items():
            said[key] = json.loads(process.stdout.read())
            process.stdout.close()
            self.assertEqual(process.wait(), 0)
        return said

    @needs_openai
    def test_two_users_and_a_restart(self):
        prose = pathlib.Path(f"{data}/prose.txt").read_text()
        begun = {"alice": [{"role": "system", "content": prose[:1200]}], "bob": [{"role": "system", "content": prose[:1200]}]}
        questions = ["What is it?", "And then?", "Who says so?"]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "keys").write_text("alice\nbob\n")

            def server(store):
                return Server(program, "-m", model, "--policy", "full", "--api-key-file", "keys", "--store", store, folder=folder)

            with server("whole") as s: # all turns without a restart
                expected = self.ask_all(s, begun, questions)
            with server("store") as s:
                before = self.ask_all(s, begun, questions[:2])
            with server("store") as s:
                after = self.ask_all(s, {key: t["messages"] for key, t in before.items()}, questions[2:])
            for key in begun:
                self.assertEqual(after[key]["messages"], expected[key]["messages"])
                self.assertEqual(before[key]["cached"][0], 0) # whoever was first: nothing of the other's is there
                self.assertGreater(before[key]["cached"][1], 300)
                self.assertGreater(after[key]["cached"][0], before[key]["cached"][1])


class Curl(Clients):
    @unittest.skipUnless(shutil.which("curl"), "there is no curl")
    def test_curl(self):
        def curl(path, body, *more):
            return subprocess.run(["curl", "-sS", "-N", *more, "-H", "Authorization: Bearer secret", "-H",
                                   "Content-Type: application/json", "-d", "@-", self.url + path], input=json.dumps(body),
                                  capture_output=True, text=True, check=True, timeout=120).stdout

        asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
        text = json.loads(curl("/v1/chat/completions", asked))["choices"][0]["message"]["content"]
        for version in ("--http1.0", "--http1.1", "--http2", "--compressed"):
            events = curl("/v1/chat/completions", asked | {"stream": True}, version).split("\n\n")
            self.assertEqual(events[-2:], ["data: [DONE]", ""])
            pieces = [json.loads(e.removeprefix("data: "))["choices"][0]["delta"].get("content", "") for e in events[:-2]]
            self.assertEqual("".join(pieces), text)
        large = {"content": "word " * 100000} # curl asks first: Expect: 100-continue
        self.assertGreater(len(json.loads(curl("/tokenize", large, "--expect100-timeout", "60"))["tokens"]), 50000)


class Browser:
    """A page in a browser without a window, driven through a pipe."""

    def __init__(self, folder):
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 f"--user-data-dir={folder}/profile", "about:blank"]
        self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", *words],
                                        pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number = b"", 0
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.into, 65536)
                assert more, "the browser has ended"
                self.rest += more
            answer, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press_enter(self):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")


class Page(Clients):
    @unittest.skipUnless(browser, "there is no Chromium (Debian: chromium-headless-shell)")
    def test_a_conversation(self):
        page = Browser(self.folder)
        self.addCleanup(page.close)
        page.call("Page.enable")
        page.call("Page.navigate", url=self.url + "/")
        page.until("document.readyState === 'complete' && !!document.getElementById('text')")

        def ask(text):
            page.value("document.getElementById('text').focus()")
            page.type(text)
            page.press_enter()

        ask(question) # without the key
        page.until("document.querySelectorAll('.error').length === 1")
        self.assertIn("the key is missing or wrong", page.value("document.querySelector('.error').textContent"))
        self.assertEqual(page.value("document.querySelectorAll('.assistant').length"), 0)

        page.value("(() => { const set = (id, v) => { const e = document.getElementById(id); e.value = v; "
                   "e.dispatchEvent(new Event('change')); }; set('key', 'secret'); set('temperature', '0'); set('most', '12'); })()")
        ask(question)
        page.until("document.querySelectorAll('.cost').length === 1")
        expected = self.server.chat([{"role": "user", "content": question}], "secret", max_tokens=12).json
        self.assertEqual(page.value("document.querySelector('.assistant').textContent"),
                         expected["choices"][0]["message"]["content"])
        self.assertIn("12 tokens in", page.value("document.querySelector('.cost').textContent"))
        ask("And <b>who</b> stops it?") # the text of a user is no HTML
        page.until("document.querySelectorAll('.cost').length === 2")
        self.assertEqual(page.value("document.querySelectorAll('.user b').length"), 0)
        page.until("document.querySelectorAll('#numbers dd').length === 6")

        page.value("document.getElementById('most').value = 1500")
        ask("Tell more.")
        page.until("!document.getElementById('stop').hidden && document.querySelectorAll('.assistant')[2]?.textContent.length > 2")
        page.value("document.getElementById('stop').click()")
        page.until("document.getElementById('stop').hidden && !document.getElementById('send').disabled")
        Server.until(lambda: not any(s["is_processing"] for s in self.server.get("/slots", key="secret").json))
        page.value("document.getElementById('new').click()")
        self.assertEqual(page.value("document.getElementById('talk').children.length"), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
