# kvtl-server --remote: conversations that another server goes on with, and a remote that is not there, hangs, or lies.
#
#   remote.py KVTL-SERVER examples/data
# SPDX-License-Identifier: MIT
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from client import Server

program, data = (str(pathlib.Path(a).resolve()) for a in sys.argv[1:3])
model = f"{data}/tiny-2k.gguf"
start = (program, "-m", model, "--threads", "1") # threads that wait for each other are slow where other tests run
long_text = pathlib.Path(f"{data}/prose.txt").read_text()[:4500]
patient = ("--remote-timeout-ms", "30000") # where something is to come: on a busy machine, too
needs_redis = unittest.skipUnless(shutil.which("redis-server") and shutil.which("redis-cli"),
                                  "there is no redis-server (Debian: redis-server)")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Redis:
    """A server on loopback that ends with the test."""

    def __init__(self, test, *arguments):
        self.port = free_port()
        self.command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir",
                        str(test.folder), *arguments]
        test.addCleanup(self.end)
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        Server.until(lambda: self.cli("ping") in ("PONG", "NOAUTH Authentication required."))

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def cli(self, *words):
        return subprocess.run(["redis-cli", "-p", str(self.port), "--raw", *words], capture_output=True, text=True,
                              errors="replace", check=False).stdout.strip()

    def keys(self, pattern="*"):
        return self.cli("keys", pattern).split()

    def end(self):
        self.process.kill()
        self.process.wait()


class Base(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.machines = 0

    def machine(self, remote, *arguments, policy="full"):
        """A server with a folder of its own."""
        self.machines += 1
        return Server(program, "-m", model, "--policy", policy, "--store", f"store{self.machines}", "--remote", remote,
                      *arguments, folder=self.folder)

    def turn(self, server, prompt, key=None, cached_at_least=None):
        reply = server.complete(prompt, key, max_tokens=20)
        self.assertEqual(reply.status, 200, reply.body)
        cached = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached_at_least is not None:
            self.assertGreaterEqual(cached, cached_at_least)
        return reply.json["choices"][0]["text"], cached

    def lines(self, words):
        return [line for line in (self.folder / "log").read_text().splitlines() if words in line]

    def goes_on(self, remote, *arguments, policy="full"):
        """Two machines take turns in a conversation."""
        arguments += patient
        with self.machine(remote, *arguments, policy=policy) as server:
            first, cached = self.turn(server, long_text)
            self.assertEqual(cached, 0)
            Server.until(lambda: server.metrics()["kvtl_remote_put_total"] == 1)
        prompt = long_text + first + "\nQuestion: what is it?"
        with self.machine(remote, *arguments, policy=policy) as server:
            second, _ = self.turn(server, prompt, cached_at_least=1000)
            self.assertEqual(server.metrics()["kvtl_remote_fetched_total"], 1)
            self.turn(server, prompt, cached_at_least=1000) # here by now
            self.assertEqual(server.metrics()["kvtl_remote_fetched_total"], 1)
        self.assertEqual(self.lines("--remote:"), [])
        with self.machine(remote, *arguments, policy=policy) as server: # what was saved when that one stopped
            self.turn(server, prompt + second + " and", cached_at_least=1020)
        return prompt, second


class Folders(Base):
    def test_another_server_goes_on(self):
        (self.folder / "shared").mkdir()
        prompt, second = self.goes_on("folder:shared")
        with Server(program, "-m", model, "--policy", "full", folder=self.folder) as cold:
            self.assertEqual(self.turn(cold, prompt)[0], second)

    def test_presets_of_clusters_go_on_too(self):
        (self.folder / "shared").mkdir()
        self.goes_on("folder:shared", policy="dynakv_estimate")

    def test_users_and_settings_are_apart(self):
        (self.folder / "shared").mkdir()
        with self.machine("folder:shared") as server:
            said, _ = self.turn(server, long_text, "alice")
        self.assertTrue(list((self.folder / "shared").iterdir()))
        with self.machine("folder:shared") as server:
            self.assertEqual(self.turn(server, long_text + said, "bob")[1], 0)
            self.assertEqual(self.turn(server, long_text + said)[1], 0)
            self.turn(server, long_text + said, "alice", cached_at_least=1000)
        with self.machine("folder:shared", "--attend-tokens", "128") as server: # which may differ
            self.turn(server, long_text + said, "alice", cached_at_least=1000)
        for blob in (self.folder / "shared").iterdir():
            self.assertEqual(blob.stat().st_mode & 0o777, 0o600)
            self.assertNotIn("alice", blob.name)

    def test_caches_that_keep_other_tokens_are_apart(self):
        (self.folder / "shared").mkdir()
        with self.machine("folder:shared", "--keep-tokens", "700", policy="snapkv_group") as server:
            said, _ = self.turn(server, long_text)
        with self.machine("folder:shared", "--keep-tokens", "600", policy="snapkv_group") as server:
            self.assertEqual(self.turn(server, long_text + said + " and")[1], 0)
            self.assertEqual(server.metrics()["kvtl_remote_fetched_total"], 0)
            self.assertFalse(server.metrics()["kvtl_store_refusals_total"])
        with self.machine("folder:shared", "--keep-tokens", "700", policy="snapkv_group") as server:
            self.turn(server, long_text + said + " and", cached_at_least=1000)

    def test_a_remote_whose_files_are_refused_is_not_asked_again(self):
        shared = self.folder / "shared"
        shared.mkdir()
        names = lambda: {":".join(f.name.split(":")[:3]) for f in shared.iterdir()}
        with self.machine("folder:shared") as server:
            said, _ = self.turn(server, long_text)
        mine = names()
        with self.machine("folder:shared", policy="quest") as server: # of another cache
            self.turn(server, long_text[:1500])
        (other,) = names() - mine
        for blob in shared.iterdir():
            if not blob.name.startswith(other):
                blob.rename(shared / blob.name.replace(*mine, other))
        with self.machine("folder:shared", policy="quest") as server:
            self.assertEqual(self.turn(server, long_text + said + " and")[1], 0)
            self.assertEqual(len(self.lines("nothing is fetched until")), 1)
            asked = [server.metrics()[f"kvtl_remote_{n}_total"] for n in ("fetched", "misses")]
            self.turn(server, long_text[200:] + said)
            self.assertEqual(asked, [server.metrics()[f"kvtl_remote_{n}_total"] for n in ("fetched", "misses")])
            self.assertEqual(len(self.lines("nothing is fetched until")), 1)

    def test_many_at_once(self):
        (self.folder / "shared").mkdir()
        texts = [long_text[300 * i : 300 * i + 900] for i in range(6)]
        with self.machine("folder:shared") as server:
            said = [self.turn(server, t)[0] for t in texts]
        with self.machine("folder:shared", "--parallel", "2") as server:
            sockets = [server.open("/v1/completions", {"prompt": t + s + " and", "max_tokens": 4, "temperature": 0})
                       for t, s in zip(texts, said)]
            for s in sockets:
                answer = b""
                while b"cached_tokens" not in answer:
                    more = s.recv(65536)
                    self.assertTrue(more)
                    answer += more
                s.close()
            self.assertEqual(server.metrics()["kvtl_remote_fetched_total"], len(texts))


@needs_redis
class OnRedis(Base):
    def test_another_server_goes_on(self):
        redis = Redis(self)
        self.goes_on(f"redis://{redis.address}/2")
        self.assertEqual(redis.cli("-n", "0", "dbsize"), "0")
        kinds = {key.split(":")[3][0] for key in redis.cli("-n", "2", "keys", "*").split()}
        self.assertEqual(kinds, {"{", "m", "s"})

    def test_a_password(self):
        redis = Redis(self, "--requirepass", "se:cr@et")
        prompt, second = self.goes_on(f"redis://:se:cr@et@{redis.address}")
        (self.folder / "password").write_text("se:cr@et\n")
        for user in ("", "default@"):
            with self.machine(f"redis://{user}{redis.address}", "--remote-password-file", "password", *patient) as server:
                self.turn(server, prompt + second + " and", cached_at_least=1000)
        for remote in (f"redis://:wrong@{redis.address}", f"redis://{redis.address}"):
            done = self.refused(remote)
            self.assertIn("it refuses: ", done)
            self.assertNotIn("wrong", done.replace("WRONGPASS", ""))

    def refused(self, remote, *arguments):
        done = subprocess.run([*start, "--port", "0", "--store", "s", "--remote", remote, *arguments],
                              cwd=self.folder, capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        said = [line for line in done.stderr.splitlines() if "--remote" in line]
        self.assertEqual(len(said), 1, done.stderr)
        return said[0]

    def test_tls(self):
        if not shutil.which("openssl"):
            self.skipTest("there is no openssl")
        port = free_port()
        for name in ("right", "other"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=x",
                            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
                           cwd=self.folder, check=True, capture_output=True)
        Redis(self, "--tls-port", str(port), "--tls-cert-file", str(self.folder / "right.pem"), "--tls-key-file",
              str(self.folder / "right.key"), "--tls-ca-cert-file", str(self.folder / "right.pem"), "--tls-auth-clients", "yes")
        remote = f"rediss://127.0.0.1:{port}"
        said = self.refused(remote, "--remote-ca", "other.pem")
        if "no TLS" in said:
            self.skipTest("this build has no TLS")
        self.assertIn("its certificate is refused", said)
        self.assertIn("no certificates to trust", self.refused(remote, "--remote-ca", "none.pem"))
        self.assertIn("it refuses our certificate, of which there is none", self.refused(remote, "--remote-ca", "right.pem"))
        self.goes_on(remote, "--remote-ca", "right.pem", "--remote-cert", "right.pem", "--remote-key", "right.key")

    def test_a_remote_that_is_not_there_comes_later(self):
        redis = Redis(self)
        redis.end()
        with self.machine(f"redis://{redis.address}", *patient) as server:
            said, _ = self.turn(server, long_text)
            self.assertEqual(len(self.lines("warning: --remote: ")), 2) # a connection to read, one to write
            Server.until(lambda: server.metrics()["kvtl_remote_failures_total"] >= 2) # to fetch, to send
            self.assertIn("Connection refused", (self.folder / "log").read_text())
            redis.start()
            Server.until(lambda: server.metrics()["kvtl_remote_put_total"] == 1) # it is tried again
        with self.machine(f"redis://{redis.address}", *patient) as server:
            self.turn(server, long_text + said + " and", cached_at_least=1000)
            self.assertEqual(server.metrics()["kvtl_remote_fetched_total"], 1)

    def test_one_of_three_is_lost(self):
        servers = [Redis(self) for _ in range(3)]
        remote = "redis://" + ",".join(s.address for s in servers)
        texts = [long_text[150 * i : 150 * i + 700] for i in range(24)] # 2 * (2 / 3)^24: all on one side
        with self.machine(remote, *patient) as server:
            said = [self.turn(server, t)[0] for t in texts]
        servers[0].end()
        with self.machine(remote, "--remote-timeout-ms", "2000") as server:
            for t, s in zip(texts, said):
                self.turn(server, t + s + " and") # none fails
            after = server.metrics()
        self.assertGreater(after["kvtl_remote_fetched_total"], 0)
        self.assertLess(after["kvtl_remote_fetched_total"], len(texts))

    def test_one_that_hangs_holds_nobody_longer_than_the_deadline(self):
        redis = Redis(self)
        with self.machine(f"redis://{redis.address}") as server:
            said, _ = self.turn(server, long_text)
        with self.machine(f"redis://{redis.address}", "--remote-timeout-ms", "1500") as server:
            redis.process.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            text, cached = self.turn(server, long_text + said + " and")
            self.assertEqual(cached, 0)
            self.assertLess(time.monotonic() - begin, 15) # some deadlines, on a machine that is busy
            self.assertEqual(len(self.lines("--remote: server")), 1)
            redis.process.send_signal(signal.SIGCONT)
            self.assertTrue(text)

    def test_values_of_another_format(self):
        redis = Redis(self)
        with self.machine(f"redis://{redis.address}") as server:
            said, _ = self.turn(server, long_text)
        for pattern, words in (("*:m:*", "another format"), ("*:s:*", "valid: up to")):
            for key in redis.keys(pattern):
                redis.cli("set", key, "somebody else's value, which is longer than a signpost")
            with self.machine(f"redis://{redis.address}") as server:
                self.assertEqual(self.turn(server, long_text + said + " and")[1], 0)
                self.assertEqual(len(self.lines("--remote: ")), 1)
                self.assertIn(words, self.lines("--remote: ")[0])
                server.kill()

    def test_chunks_that_ran_out(self):
        redis = Redis(self)
        with self.machine(f"redis://{redis.address}") as server:
            said, _ = self.turn(server, long_text)
        for key in redis.keys("*:{*}:*:*"):
            redis.cli("unlink", key)
        with self.machine(f"redis://{redis.address}") as server:
            self.assertEqual(self.turn(server, long_text + said + " and")[1], 0)
            self.assertIn("has run out", self.lines("--remote: ")[0])


class BadInput(Base):
    def test_places(self):
        (self.folder / "password").write_text("secret\n")
        (self.folder / "empty").write_text("\n")
        for remote, words in (("redis:/x", "begins with none of its kinds"), ("folder:none", "make the folder first"),
                              ("redis://", "there is no server"), ("redis://secret", "server 1 has no host and port"),
                              ("redis://h:1,:7", "server 2 has no host and port"), ("redis://h:0", "the port is 0"),
                              ("redis://h:99999", "the port of server 1 is no number up to 65535"),
                              ("redis://h:secret", "the port of server 1 is no number"),
                              ("redis://pw@h:1", "no : before the password"), ("redis://:@h:1", "the password is empty"),
                              ("redis://h:1/secret", "the database is no number up to 65535")):
            done = subprocess.run([*start, "--store", "s", "--remote", remote], cwd=self.folder,
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, remote)
            said = [line for line in done.stderr.splitlines() if words in line]
            self.assertEqual(len(said), 1, (remote, done.stderr))
            self.assertNotIn("secret", done.stderr)
        for arguments in (["--remote", "folder:.", "--store-mib", "0"], ["--remote-ca", "x"],
                          ["--remote", "redis://h:1", "--remote-cert", "x"], ["--remote", "rediss://h:1", "--remote-key", "x"],
                          ["--remote", "folder:.", "--remote-password-file", "x"],
                          ["--store", "s", "--remote", "redis://:secret@h:1", "--remote-password-file", "password"],
                          ["--store", "s", "--remote", "redis://h:1", "--remote-password-file", "empty"], ["--remote-timeout-ms", "0"],
                          ["--remote-ttl-s", "0"]):
            done = subprocess.run([*start, *arguments], cwd=self.folder, capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("secret", done.stderr)
            self.assertIn("valid: ", done.stderr)


class Interrupted(Base):
    """A client that leaves: what it was shown is stored at once."""

    def test_while_it_is_answered(self):
        with Server(program, "-m", model, "--policy", "full", "--store", "store", folder=self.folder) as server:
            connection = server.open("/v1/completions", {"prompt": long_text, "max_tokens": 400, "temperature": 0, "stream": True})
            shown = b""
            while shown.count(b'"text":"') < 3:
                shown += connection.recv(65536)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536): # what was on its way
                shown += more
            connection.close()
            Server.until(lambda: server.busy() == 0)
            Server.until(lambda: server.metrics()["kvtl_store_conversations"] == 1)
            server.kill()
        with Server(program, "-m", model, "--policy", "full", "--store", "store", folder=self.folder) as server:
            text = "".join(json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]
                           for line in shown.split(b"\r\n") if line.startswith(b"data: ") and line.endswith(b"}"))
            prompt = server.post("/tokenize", {"content": long_text, "add_special": True}).json["tokens"]
            self.turn(server, long_text + text + " and so on, and so on", cached_at_least=len(prompt))

    def test_while_its_prompt_is_read(self):
        half = long_text[:1500]
        with Server(program, "-m", model, "--policy", "full", "--store", "store", "--prefill-chunk", "1", folder=self.folder) as server:
            said, _ = self.turn(server, half)
            prompt = half + said + long_text[1500:]
            connection = server.open("/v1/completions", {"prompt": prompt, "max_tokens": 400, "temperature": 0})
            Server.until(lambda: server.busy() == 1)
            connection.close()
            Server.until(lambda: server.busy() == 0)
            server.kill() # at once: it is stored already
        with Server(program, "-m", model, "--policy", "full", "--store", "store", folder=self.folder) as server:
            again, _ = self.turn(server, prompt, cached_at_least=300)
        with Server(program, "-m", model, "--policy", "full", folder=self.folder) as cold:
            self.assertEqual(self.turn(cold, prompt), (again, 0))

    def test_who_reads_nothing_holds_nobody_up(self):
        with Server(program, "-m", model, "--parallel", "2", folder=self.folder) as server:
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((server.host, server.port))
            body = json.dumps({"prompt": "The kernel", "max_tokens": 1500, "temperature": 0, "stream": True})
            slow.sendall(("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
            Server.until(lambda: server.busy() == 1)
            for _ in range(3):
                self.turn(server, long_text[:300])
            Server.until(lambda: server.busy() == 0, 120) # all of its answer waits for it, or it was disconnected
            ended = server.metrics()
            self.assertEqual(ended["kvtl_requests_running"], 0)
            slow.close()


if __name__ == "__main__":
    os.environ.pop("HOME", None) # nothing of a user's own
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
