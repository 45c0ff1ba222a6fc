// A connection over TCP whose calls end: none waits longer than a deadline, nor longer than a bound without progress.
//
// Errors: io_error, with the name of the server and the reason. The connection is closed then: what comes late is for nobody.
// Limits: a name of a host that is not a number is looked up by the system, which keeps no deadline.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/store/blob_store.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace kvtl { inline namespace v0 {

struct server_address {
    std::string host{};
    std::uint16_t port = 0;
    friend bool operator==(const server_address&, const server_address&) = default;
    [[nodiscard]] std::string text() const {
        const bool six = host.find(':') != host.npos;
        return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
    }
};

/// How long a call may wait.
struct call_time {
    blob_deadline until{};             ///< in all
    std::chrono::milliseconds stall{}; ///< without a byte
    [[nodiscard]] blob_deadline next() const noexcept { return std::min(until, blob_clock::now() + stall); }
};

class tcp_stream {
  public:
    struct options {};

    tcp_stream() = default;
    explicit tcp_stream(const options&) {}
    tcp_stream(tcp_stream&& other) noexcept
        : name_(std::move(other.name_)), fd_(std::exchange(other.fd_, -1)) {}
    tcp_stream& operator=(tcp_stream&& other) noexcept {
        if (this == &other) return *this;
        close();
        name_ = std::move(other.name_);
        fd_ = std::exchange(other.fd_, -1);
        return *this;
    }
    ~tcp_stream() { close(); }

    [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
    void close() noexcept {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

    /// The other side has closed it, or it is broken.
    [[nodiscard]] bool has_ended() const noexcept {
        ::pollfd one{.fd = fd_, .events = POLLRDHUP, .revents = 0};
        return ::poll(&one, 1, 0) > 0;
    }

    [[nodiscard, gnu::cold]] status connect(const server_address& to, const call_time& time) {
        close();
        name_ = to.text();
        ::addrinfo wanted{}, *found = nullptr;
        wanted.ai_family = AF_UNSPEC;
        wanted.ai_socktype = SOCK_STREAM;
        wanted.ai_flags = AI_NUMERICSERV;
        if (const int why = ::getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &wanted, &found);
            why != 0)
            return status::failure(errc::io_error, "server %.80s: looking up its address: %s", name_.c_str(),
                                   ::gai_strerror(why));
        status s = status::failure(errc::io_error, "server %.80s: it has no address", name_.c_str());
        std::ptrdiff_t untried = 0;
        for (const ::addrinfo* one = found; one != nullptr; one = one->ai_next) ++untried;
        for (const ::addrinfo* one = found; one != nullptr && !is_open(); one = one->ai_next, --untried) {
            const auto now = blob_clock::now(); // each has an equal part of the time
            s = connect_to(*one, {now + (time.until - now) / untried, time.stall});
        }
        ::freeaddrinfo(found);
        return s;
    }

    /// Reads at least one byte.
    [[nodiscard]] status read(std::span<std::byte> into, std::size_t& bytes, const call_time& time) {
        for (;;) {
            const auto n = ::recv(fd_, into.data(), into.size(), 0);
            if (n > 0) return bytes = static_cast<std::size_t>(n), status{};
            if (n == 0) return failure("reading: it closed the connection");
            if (errno == EINTR) continue;
            if (errno != EAGAIN) return failure("reading", errno);
            if (status s = wait(POLLIN, "reading", time.next()); !s) return s;
        }
    }

    /// Writes all of the pieces, which it changes.
    [[nodiscard]] status write(std::span<::iovec> pieces, const call_time& time) {
        const status s = send(pieces, time);
        if (!s) close();
        return s;
    }
    /// The same. Where the other side has closed the connection, what it said before that can still be read.
    [[nodiscard]] status send(std::span<::iovec> pieces, const call_time& time) {
        while (!pieces.empty()) {
            if (pieces.front().iov_len == 0) {
                pieces = pieces.subspan(1);
                continue;
            }
            ::msghdr message{};
            message.msg_iov = pieces.data();
            message.msg_iovlen = pieces.size();
            auto n = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno != EAGAIN) return said("writing", errno);
            if (n < 0)
                if (status s = wait(POLLOUT, "writing", time.next()); !s) return s;
            for (::iovec& p : pieces) {
                if (n <= 0) break;
                const auto taken = std::min<std::size_t>(p.iov_len, static_cast<std::size_t>(n));
                p.iov_base = static_cast<std::byte*>(p.iov_base) + taken;
                p.iov_len -= taken;
                n -= static_cast<::ssize_t>(taken);
            }
            if (blob_clock::now() >= time.until) return failure("writing", ETIMEDOUT);
        }
        return {};
    }

    [[nodiscard]] int handle() const noexcept { return fd_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// Until the socket is ready: POLLIN or POLLOUT.
    [[nodiscard]] status wait(short events, const char* doing, blob_deadline until) {
        for (;;) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - blob_clock::now()).count();
            ::pollfd one{.fd = fd_, .events = events, .revents = 0};
            const int n =
                left <= 0 ? 0 : ::poll(&one, 1, static_cast<int>(std::min<std::int64_t>(left, 60000)));
            if (n > 0) return {};
            if (n < 0 && errno != EINTR) return failure(doing, errno);
            if (blob_clock::now() >= until) return failure(doing, ETIMEDOUT);
        }
    }
    /// Closes the connection.
    [[nodiscard, gnu::cold]] status failure(const char* doing, int why = 0) noexcept {
        close();
        return said(doing, why);
    }

  private:
    [[nodiscard, gnu::cold]] status said(const char* doing, int why) const noexcept {
        if (why == 0) return status::failure(errc::io_error, "server %.80s: %s", name_.c_str(), doing);
        return status::failure(errc::io_error, "server %.80s: %s: %s", name_.c_str(), doing,
                               std::strerror(why));
    }
    [[nodiscard]] status connect_to(const ::addrinfo& to, const call_time& time) {
        fd_ = ::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol);
        if (fd_ < 0) return failure("connecting", errno);
        const int yes = 1;
        static_cast<void>(::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes));
        static_cast<void>(::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes));
        if (::connect(fd_, to.ai_addr, to.ai_addrlen) == 0) return {};
        if (errno != EINPROGRESS) return failure("connecting", errno);
        if (status s = wait(POLLOUT, "connecting", time.next()); !s) return s;
        int why = 0;
        ::socklen_t n = sizeof why;
        if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &why, &n) != 0) why = errno;
        return why == 0 ? status{} : failure("connecting", why);
    }

    std::string name_;
    int fd_ = -1;
};

}} // namespace kvtl::v0
