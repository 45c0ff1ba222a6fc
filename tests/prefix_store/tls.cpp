// TLS to a server of Redis with certificates that the test makes: the right one, and every wrong one by one sentence.
// SPDX-License-Identifier: MIT
#ifdef KVTL_HAS_TLS
#include <kvtl/store/resp_store.hpp>
#include <kvtl/store/tls_stream.hpp>

#include "support/redis_servers.hpp"
#include "support/scratch_folder.hpp"

#include <cstdlib>
#include <fstream>
#include <random>

namespace tls_test {

using namespace kvtl_test;
using namespace std::chrono_literals;

namespace {

using store = kvtl::resp_store<kvtl::tls_stream>;

kvtl::blob_deadline soon() {
    return kvtl::blob_clock::now() + 20s;
}

struct certificates {
    scratch_folder folder;

    certificates() {
        for (const std::string ca : {"ca", "other"})
            run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=" + ca +
                " -keyout " + file(ca + ".key") + " -out " + file(ca + ".pem"));
        make("good", "IP:127.0.0.1,DNS:localhost", "30");
        make("named", "DNS:elsewhere.example", "30");
        make("ended", "IP:127.0.0.1", "-1");
        make("mine", "DNS:client", "30");
        run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=stranger "
            "-keyout " +
            file("stranger.key") + " -out " + file("stranger.pem"));
        run("pkey -in " + file("mine.key") + " -aes128 -passout pass:word -out " + file("locked.key"));
        std::ofstream(file("both.pem"))
            << std::ifstream(file("mine.pem")).rdbuf() << std::ifstream(file("mine.key")).rdbuf();
    }
    [[nodiscard]] std::string file(const std::string& name) const { return folder.file(name); }
    [[nodiscard]] std::vector<std::string> server(const std::string& name, const std::string& port,
                                                  const std::string& asks_clients = "no") const {
        return {"--tls-port",         port,
                "--tls-cert-file",    file(name + ".pem"),
                "--tls-key-file",     file(name + ".key"),
                "--tls-ca-cert-file", file("ca.pem"),
                "--tls-auth-clients", asks_clients};
    }

  private:
    static void run(const std::string& words) {
        REQUIRE(std::system(("openssl " + words + " 2>/dev/null").c_str()) == 0); // NOLINT
    }
    void make(const std::string& name, const std::string& names, const std::string& days) const {
        std::ofstream(file("extensions")) << "subjectAltName=" << names << "\n";
        run("req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout " +
            file(name + ".key") + " -out " + file("request"));
        run("x509 -req -in " + file("request") + " -CA " + file("ca.pem") + " -CAkey " + file("ca.key") +
            " -CAcreateserial -days " + days + " -extfile " + file("extensions") + " -out " +
            file(name + ".pem"));
    }
};

store open_tls(const kvtl::server_address& at, const std::string& ca, const std::string& cert = {},
               const std::string& key = {}) {
    auto s = store::open({.servers = {at},
                          .stream = {.ca_file = ca, .cert_file = cert, .key_file = key},
                          .stall = 5s,
                          .retry_first = 1ms,
                          .retry_most = 1ms});
    REQUIRE(s.ok());
    return *std::move(s);
}

} // namespace

TEST_CASE_FIXTURE(certificates, "TLS: values of all sizes come back, and wrong certificates are refused") {
    if (!redis_is_there()) return;
    const std::string port = std::to_string(free_port());
    const redis_server server(this->server("good", port));
    const auto number = static_cast<std::uint16_t>(std::stoi(port));
    for (const char* host : {"127.0.0.1", "localhost"}) {
        store s = open_tls({host, number}, file("ca.pem"));
        const kvtl::status reached = s.check(soon());
        REQUIRE_MESSAGE(reached.ok(), reached.what());
        std::mt19937 random(1);
        for (const std::size_t n : {1U, 16383U, 16384U, 16385U, 100000U, 4U << 20}) {
            std::vector<std::byte> value(n), got(n);
            for (std::byte& b : value) b = static_cast<std::byte>(random());
            const std::string name = "t:" + std::to_string(n);
            REQUIRE(s.put(name, value, 100s, soon()).ok());
            REQUIRE(s.put(name + "b", value, 100s, soon()).ok());
            REQUIRE(s.settle(soon()).ok());
            const std::span<std::byte> into = got;
            std::uint64_t length = 0;
            REQUIRE(s.get(std::span(&name, 1), std::span(&into, 1), std::span(&length, 1), soon()).ok());
            CHECK(length == n);
            CHECK(got == value);
        }
    }
    CHECK(server.cli("strlen t:4194304") == "4194304"); // without TLS, on its other port

    const auto refused = [&](const kvtl::server_address& at, const std::string& ca, const char* words) {
        const kvtl::status s = open_tls(at, ca).check(soon());
        CAPTURE(std::string(s.what()));
        CHECK(s.code() == kvtl::errc::file_refused);
        CHECK(std::string(s.what()).find(words) != std::string::npos);
    };
    refused({"127.0.0.1", number}, file("other.pem"), "its certificate is refused: ");
    refused({"127.0.0.1", number}, "", "its certificate is refused: ");
    refused({"127.0.0.1", number}, file("none.pem"), "has no certificates to trust");
    refused({"127.0.0.1", number}, file("ca.key"), "has no certificates to trust");
    // a server without TLS, and one that says nothing
    CHECK(open_tls(server.address(), file("ca.pem")).check(soon()).code() == kvtl::errc::io_error);
    server.hang();
    store hung = open_tls({"127.0.0.1", number}, file("ca.pem"));
    CHECK(std::string(hung.check(kvtl::blob_clock::now() + 100ms).what()).find("timed out") !=
          std::string::npos);
    server.go_on();
}

TEST_CASE_FIXTURE(certificates, "TLS: a certificate for another name, and one that has ended") {
    if (!redis_is_there()) return;
    for (const std::string name : {"named", "ended"}) {
        const std::string port = std::to_string(free_port());
        const redis_server server(this->server(name, port));
        const kvtl::status s =
            open_tls({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))}, file("ca.pem"))
                .check(soon());
        CAPTURE(std::string(s.what()));
        CHECK(s.code() == kvtl::errc::file_refused);
        CHECK(std::string(s.what()).find(name == "named" ? "mismatch" : "expired") != std::string::npos);
    }
}

TEST_CASE_FIXTURE(certificates, "TLS: a server that asks who calls") {
    if (!redis_is_there()) return;
    const std::string port = std::to_string(free_port());
    const redis_server server(this->server("good", port, "yes"));
    const kvtl::server_address at{"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))};
    const auto check = [&](const std::string& cert, const std::string& key) {
        return open_tls(at, file("ca.pem"), cert.empty() ? cert : file(cert), key.empty() ? key : file(key))
            .check(soon());
    };
    for (const auto& [cert, key] : {std::pair{"mine.pem", "mine.key"}, std::pair{"both.pem", ""}}) {
        const kvtl::status s = check(cert, key);
        CHECK_MESSAGE(s.ok(), std::string(s.what()));
    }
    const auto refused = [&](const std::string& cert, const std::string& key, const std::string& words) {
        const kvtl::status s = check(cert, key);
        CAPTURE(std::string(s.what()));
        CHECK(s.code() == kvtl::errc::file_refused);
        CHECK(std::string(s.what()).find(words) != std::string::npos);
    };
    refused("", "", "it refuses our certificate, of which there is none: ");
    refused("stranger.pem", "stranger.key", "it refuses our certificate, ");
    refused("none.pem", "mine.key", "none.pem' has no certificate to show; valid: a PEM file");
    refused("mine.pem", "", "mine.pem' has no key of the certificate");
    refused("mine.pem", "good.key", "good.key' has no key of the certificate"); // another's
    refused("mine.pem", "locked.key", "valid: a PEM file without a passphrase");
}

} // namespace tls_test
#else
#include <doctest/doctest.h>
TEST_CASE("TLS is left out of this build") {}
#endif
