// A server that takes commands of RESP2 and answers what a test wants: nothing, half a reply, too much, or too late.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/tcp_stream.hpp>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtl_test {

struct rude_answer {
    std::string bytes{};
    bool then_close = false;
    bool byte_by_byte = false; ///< 5 ms apart, until the client leaves
};

class rude_server {
  public:
    using words = std::vector<std::string>;
    using answers = std::function<rude_answer(const words&)>;

    explicit rude_server(answers answer) : answer_(std::move(answer)) {
        listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ::sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ::socklen_t n = sizeof at;
        REQUIRE(::bind(listening_, reinterpret_cast<::sockaddr*>(&at), n) == 0);
        REQUIRE(::listen(listening_, 16) == 0);
        REQUIRE(::getsockname(listening_, reinterpret_cast<::sockaddr*>(&at), &n) == 0);
        port_ = ntohs(at.sin_port);
        thread_ = std::thread([this] { serve(); });
    }
    rude_server(const rude_server&) = delete;
    rude_server& operator=(const rude_server&) = delete;
    ~rude_server() {
        over_ = true;
        ::shutdown(listening_, SHUT_RDWR);
        ::shutdown(client_, SHUT_RDWR);
        thread_.join();
        ::close(listening_);
    }

    [[nodiscard]] kvtl::server_address address() const { return {"127.0.0.1", port_}; }
    [[nodiscard]] unsigned connections() const { return connections_; }
    [[nodiscard]] std::vector<words> seen() {
        const std::lock_guard lock(mutex_);
        return seen_;
    }

  private:
    void serve() {
        while (!over_) {
            const int fd = ::accept(listening_, nullptr, nullptr);
            if (fd < 0) return;
            ++connections_;
            client_ = fd;
            if (!over_) talk(fd);
            client_ = -1;
            ::close(fd);
        }
    }
    void talk(int fd) {
        std::string in;
        for (;;) {
            words w;
            while (!take_command(in, w)) {
                char piece[65536];
                const auto n = ::recv(fd, piece, sizeof piece, 0);
                if (n <= 0) return;
                in.append(piece, static_cast<std::size_t>(n));
            }
            {
                const std::lock_guard lock(mutex_);
                seen_.push_back(w);
            }
            const rude_answer a = answer_(w);
            const std::size_t step = a.byte_by_byte ? 1 : a.bytes.size();
            for (std::size_t at = 0; at < a.bytes.size(); at += step) {
                if (::send(fd, a.bytes.data() + at, step, MSG_NOSIGNAL) < 0) return;
                if (a.byte_by_byte) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
            if (a.then_close) return;
        }
    }
    /// Takes one whole command from the front.
    static bool take_command(std::string& in, words& w) {
        w.clear();
        std::size_t at = 0;
        const auto number = [&](char kind, std::size_t& n) {
            const auto end = in.find("\r\n", at);
            if (end == std::string::npos || in[at] != kind) return false;
            n = std::stoul(in.substr(at + 1, end - at - 1));
            at = end + 2;
            return true;
        };
        std::size_t count = 0;
        if (in.empty() || !number('*', count)) return false;
        for (std::size_t i = 0; i < count; ++i) {
            std::size_t n = 0;
            if (at >= in.size() || !number('$', n) || in.size() < at + n + 2) return false;
            w.push_back(in.substr(at, n));
            at += n + 2;
        }
        in.erase(0, at);
        return true;
    }

    answers answer_;
    int listening_ = -1;
    std::atomic<int> client_ = -1;
    std::uint16_t port_ = 0;
    std::atomic<bool> over_ = false;
    std::atomic<unsigned> connections_ = 0;
    std::mutex mutex_;
    std::vector<words> seen_;
    std::thread thread_;
};

} // namespace kvtl_test
