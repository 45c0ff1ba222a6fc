// Servers of Redis on loopback that a test starts, stops and ends, and redis-cli as a second opinion.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/tcp_stream.hpp>

#include "support/scratch_folder.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtl_test {

/// A port that nobody has at the moment.
[[nodiscard]] inline std::uint16_t free_port() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::socklen_t n = sizeof at;
    REQUIRE(::bind(fd, reinterpret_cast<::sockaddr*>(&at), n) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<::sockaddr*>(&at), &n) == 0);
    ::close(fd);
    return ntohs(at.sin_port);
}

[[nodiscard]] inline bool redis_is_there() {
    static const bool there = std::system("command -v redis-server redis-cli >/dev/null 2>&1") == 0; // NOLINT
    if (!there) MESSAGE("skipped: there is no redis-server (Debian: redis-server)");
    return there;
}

class redis_server {
  public:
    explicit redis_server(std::vector<std::string> more = {}) : port_(free_port()), more_(std::move(more)) {
        start();
    }
    redis_server(const redis_server&) = delete;
    redis_server& operator=(const redis_server&) = delete;
    ~redis_server() { kill(); }

    [[nodiscard]] kvtl::server_address address() const { return {"127.0.0.1", port_}; }
    [[nodiscard]] std::uint16_t port() const { return port_; }

    void start() {
        std::vector<std::string> words = {
            "redis-server", "--port",    std::to_string(port_), "--bind", "127.0.0.1",
            "--save",       "",          "--appendonly",        "no",     "--dir",
            folder_.path(), "--logfile", folder_.file("log")};
        words.insert(words.end(), more_.begin(), more_.end());
        std::vector<char*> arguments;
        for (std::string& w : words) arguments.push_back(w.data());
        arguments.push_back(nullptr);
        child_ = ::fork();
        REQUIRE(child_ >= 0);
        if (child_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::execvp(arguments[0], arguments.data());
            ::_exit(127);
        }
        wait_for(port_);
        for (std::size_t i = 1; i < more_.size(); ++i) // which it opens later
            if (more_[i - 1] == "--tls-port") wait_for(static_cast<std::uint16_t>(std::stoi(more_[i])));
    }
    void hang() const { REQUIRE(::kill(child_, SIGSTOP) == 0); }
    void go_on() const { REQUIRE(::kill(child_, SIGCONT) == 0); }
    void kill() {
        if (child_ <= 0) return;
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
        child_ = -1;
    }
    /// What redis-cli prints, without the end of the last line.
    [[nodiscard]] std::string cli(const std::string& words) const {
        const std::string command = "redis-cli -p " + std::to_string(port_) + " --raw " + words;
        std::FILE* const out = ::popen(command.c_str(), "re"); // NOLINT: the test's own words
        REQUIRE(out != nullptr);
        std::string text;
        char piece[65536];
        while (const std::size_t n = std::fread(piece, 1, sizeof piece, out)) text.append(piece, n);
        REQUIRE(::pclose(out) == 0);
        if (text.ends_with('\n')) text.pop_back();
        return text;
    }

  private:
    static void wait_for(std::uint16_t port) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        for (;;) {
            kvtl::tcp_stream s;
            const auto now = std::chrono::steady_clock::now();
            if (s.connect({"127.0.0.1", port}, {now + std::chrono::seconds(1), std::chrono::seconds(1)}).ok())
                return;
            REQUIRE(now < end);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }

    scratch_folder folder_;
    std::uint16_t port_;
    std::vector<std::string> more_;
    ::pid_t child_ = -1;
};

/// Three masters that share the slots.
struct redis_cluster {
    std::vector<std::unique_ptr<redis_server>> nodes;

    redis_cluster() {
        std::string create = "redis-cli --cluster create";
        for (int i = 0; i < 3; ++i) {
            nodes.push_back(std::make_unique<redis_server>(std::vector<std::string>{
                "--cluster-enabled", "yes", "--cluster-port", std::to_string(free_port())}));
            create += " " + nodes.back()->address().text();
        }
        REQUIRE(std::system((create + " --cluster-yes >/dev/null").c_str()) == 0); // NOLINT
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        for (const auto& n : nodes)
            while (n->cli("cluster info").find("cluster_state:ok") == std::string::npos) {
                REQUIRE(std::chrono::steady_clock::now() < end);
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            }
    }
};

} // namespace kvtl_test
