# A kvtl-server that runs for a test, and a client of it. Only the standard library.
# SPDX-License-Identifier: MIT
import http.client
import json
import signal
import socket
import subprocess
import time


class Reply:
    """Status and body of an answer; of a stream also its events."""

    def __init__(self, status, body):
        self.status = status
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]["message"]

    @property
    def events(self):
        lines = self.body.decode().split("\n\n")
        assert lines[-1] == "", "the last event is not complete"
        return [line.removeprefix("data: ") for line in lines[:-1]]


class Server:
    """The program on a port that is free; `with` ends it with SIGTERM and expects exit status 0."""

    def __init__(self, program, *arguments, folder):
        self.command = [program, "--port", "0", "--io", "posix", "--threads", "1", *map(str, arguments)]
        if "--store" not in arguments: # the user's own is none of the tests'
            self.command += ["--store-mib", "0"]
        self.folder = folder
        self.expected = 0

    def __enter__(self):
        self.log = open(self.folder / "log", "w+")
        self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on http://"):
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(f"no server: {line}{self.log.read()}")
        self.host, _, port = line.removeprefix("listening on http://").strip().rpartition(":")
        self.port = int(port)
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self.process.stdout.close()
        self.log.close()
        if kind is None:
            assert status == self.expected, f"exit status {status}"

    def kill(self):
        """As a crash or a power cut: nothing is said to it."""
        self.process.kill()
        self.expected = -signal.SIGKILL

    def request(self, method, path, body=None, key=None, headers=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        all_headers = {"Content-Type": "application/json"} | (headers or {})
        if key is not None:
            all_headers["Authorization"] = f"Bearer {key}"
        if isinstance(body, dict):
            body = json.dumps(body)
        try:
            connection.request(method, path, body, all_headers)
            response = connection.getresponse()
            return Reply(response.status, response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def complete(self, prompt, key=None, **fields):
        return self.post("/v1/completions", {"temperature": 0, "prompt": prompt} | fields, key=key)

    def text(self, prompt, key=None, **fields):
        reply = self.complete(prompt, key, **fields)
        assert reply.status == 200, reply.body
        return reply.json["choices"][0]["text"]

    def chat(self, messages, key=None, **fields):
        return self.post("/v1/chat/completions", {"temperature": 0, "messages": messages} | fields, key=key)

    def open(self, path, body, more=0):
        """A request whose answer nobody has read yet: its socket, a few bytes after the answer has begun. `more`: bytes of the
        body that do not come."""
        text = json.dumps(body)
        connection = socket.create_connection((self.host, self.port), timeout=120)
        connection.sendall((f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(text) + more}\r\n\r\n{text}").encode())
        return connection

    def raw(self, *requests):
        """Bytes on one connection, each sent when the one before was answered: what comes until it is closed."""
        answers = b""
        with socket.create_connection((self.host, self.port), timeout=120) as connection:
            for request in requests:
                try:
                    connection.sendall(request)
                    if request is not requests[-1]:
                        answers += connection.recv(65536)
                except OSError: # closed while it was sent
                    break
            try: # a connection on which nobody asks is closed after two seconds
                while more := connection.recv(65536):
                    answers += more
            except OSError:
                pass
        return answers

    def metrics(self):
        values = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def refuses(self):
        """Whether it listens no more."""
        try:
            socket.create_connection((self.host, self.port), timeout=120).close()
        except ConnectionError:
            return True
        return False

    def busy(self):
        return sum(slot["is_processing"] for slot in self.get("/slots").json)

    @staticmethod
    def until(condition, seconds=30):
        """Waits for what has to come; the limit only ends a test that has failed."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.01)
