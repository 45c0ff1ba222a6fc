// A connection to a server that speaks RESP2 (Redis 2.6 or newer, Valkey): commands out, replies in.
//
// What:   commands may be sent before the replies of earlier ones have come; replies come in the order of commands. The bytes of a
//         bulk reply go straight to where the caller wants them.
// Errors: an error reply is a reply, and so is a bulk that is longer than its place: it is read and dropped. All else ends the
//         connection: a server that does not answer in time, closes, or says what is no RESP2; and a bulk that is longer than its
//         place and than 4 MiB (out_of_range).
// Memory: 16 KiB for replies, and the commands that wait to be sent: at most 64 KiB and one command more.
// Source: Redis serialization protocol specification, version 2.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/store/tcp_stream.hpp>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

struct resp_reply {
    enum class what : std::uint8_t { nil, text, error, number, bulk, too_long };
    what is = what::nil;
    std::int64_t number = 0; ///< or the length of a bulk; too_long: one without a place
    char text[160] = {};     ///< of a text or an error: its beginning
    [[nodiscard]] std::string_view words() const noexcept { return text; }
};

struct resp_login {
    std::string user{}, password{}; ///< empty: none
    unsigned database = 0;
};

template <class Stream = tcp_stream> class resp_connection {
  public:
    explicit resp_connection(const typename Stream::options& o = {})
        : stream_(o), buffer_(std::size_t{16} << 10) {}

    [[nodiscard]] bool is_open() const noexcept { return stream_.is_open(); }
    /// No reply is awaited, and none would come. Closes it then.
    [[nodiscard]] bool was_closed_while_idle() noexcept {
        if (awaited_ != 0 || !stream_.has_ended()) return false;
        close();
        return true;
    }
    void close() noexcept {
        stream_.close();
        out_.clear();
        from_ = to_ = awaited_ = 0;
    }

    /// Connects, says who asks, and waits for an answer. file_refused: the server refuses the password or the database. A server
    /// that still loads, or has too many clients, is an io_error: it may answer later.
    [[nodiscard, gnu::cold]] status open(const server_address& to, const resp_login& who,
                                         const call_time& time) {
        close();
        if (status s = stream_.connect(to, time); !s) return s;
        const std::string database = std::to_string(who.database);
        if (!who.password.empty() && who.user.empty()) queue({"AUTH", who.password});
        if (!who.password.empty() && !who.user.empty()) queue({"AUTH", who.user, who.password});
        if (who.database != 0) queue({"SELECT", database});
        queue({"PING"});
        const int replies = 1 + (who.password.empty() ? 0 : 1) + (who.database == 0 ? 0 : 1);
        for (int i = 0; i < replies; ++i) {
            resp_reply r;
            if (status s = receive(r, {}, time); !s) return s;
            if (r.is == resp_reply::what::error) {
                close();
                std::string_view words = r.words();
                const errc code = is_final(words) ? errc::file_refused : errc::io_error;
                if (i == 0 && !who.password.empty())
                    words = words.substr(0, words.find(' ')); // it may repeat it
                return status::failure(code, "server %.80s: it refuses: %.120s", to.text().c_str(),
                                       std::string(words).c_str());
            }
        }
        return {};
    }

    /// A command of short words; it goes out with the next call that waits.
    void queue(std::initializer_list<std::string_view> words) { put_words(words, words.size()); }
    [[nodiscard]] bool is_full() const noexcept { return out_.size() >= most_waiting; }

    /// A command whose value is between its other words.
    [[nodiscard]] status send(std::initializer_list<std::string_view> before,
                              std::span<const std::byte> value, std::initializer_list<std::string_view> after,
                              const call_time& time) {
        put_words(before, before.size() + 1 + after.size());
        out_.append("$").append(std::to_string(value.size())).append("\r\n");
        std::string tail = "\r\n";
        for (const std::string_view w : after) put_word(tail, w);
        ::iovec pieces[3] = {
            {out_.data(), out_.size()},
            {const_cast<std::byte*>(value.data()), value.size()}, // NOLINT: an iovec reads, too
            {tail.data(), tail.size()}};
        const status s = stream_.write(pieces, time);
        out_.clear();
        if (!s) close();
        return s;
    }
    [[nodiscard]] status flush(const call_time& time) {
        if (out_.empty()) return {};
        ::iovec all{out_.data(), out_.size()};
        const status s = stream_.write(std::span(&all, 1), time);
        out_.clear();
        if (!s) close();
        return s;
    }

    /// The next reply; the bytes of a bulk go to `into`.
    [[nodiscard]] status receive(resp_reply& reply, std::span<std::byte> into, const call_time& time) {
        status s = flush(time);
        if (s) s = receive_one(reply, into, time);
        if (!s)
            close(); // what comes late would be taken for another's reply
        else
            --awaited_;
        return s;
    }

  private:
    static constexpr std::size_t most_waiting = std::size_t{64} << 10, most_line = std::size_t{64} << 10,
                                 most_dropped = std::size_t{4} << 20;

    /// An error that every later try would meet.
    [[nodiscard]] static bool is_final(std::string_view words) noexcept {
        for (const std::string_view begin :
             {"WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR AUTH", "ERR Client sent AUTH",
              "ERR DB index", "ERR invalid DB index"})
            if (words.starts_with(begin)) return true;
        return false;
    }
    static void put_word(std::string& to, std::string_view w) {
        to.append("$").append(std::to_string(w.size())).append("\r\n").append(w).append("\r\n");
    }
    void put_words(std::initializer_list<std::string_view> words, std::size_t in_all) {
        ++awaited_;
        out_.append("*").append(std::to_string(in_all)).append("\r\n");
        for (const std::string_view w : words) put_word(out_, w);
    }

    [[nodiscard]] status wrong(const char* why) {
        return status::failure(errc::io_error, "server %.80s: %s", stream_.name().c_str(), why);
    }
    [[nodiscard]] status receive_one(resp_reply& reply, std::span<std::byte> into, const call_time& time) {
        char kind = 0;
        std::size_t length = 0;
        reply = {};
        if (status s = read_line(kind, reply.text, length, time); !s) return s;
        if (kind == '+' || kind == '-') {
            reply.is = kind == '+' ? resp_reply::what::text : resp_reply::what::error;
            return {};
        }
        const auto parsed = std::from_chars(reply.text, reply.text + length, reply.number);
        if ((kind != ':' && kind != '$') || parsed.ec != std::errc{} || parsed.ptr != reply.text + length ||
            length == 0)
            return wrong("its reply is no RESP2");
        if (kind == ':') return reply.is = resp_reply::what::number, status{};
        if (reply.number == -1) return {};
        if (reply.number < 0) return wrong("its reply has a negative length");
        const auto bytes = static_cast<std::uint64_t>(reply.number);
        const bool fits = bytes <= into.size();
        if (!fits && bytes > most_dropped)
            return status::failure(errc::out_of_range,
                                   "server %.80s: a value has %" PRId64 " bytes; valid: up to %zu",
                                   stream_.name().c_str(), reply.number, into.size());
        reply.is = fits ? resp_reply::what::bulk : resp_reply::what::too_long;
        std::byte end[2];
        if (status s = fits ? read_bytes(into.first(bytes), time) : drop_bytes(bytes, time); !s) return s;
        if (status s = read_bytes(end, time); !s) return s;
        return end[0] == std::byte{'\r'} && end[1] == std::byte{'\n'} ? status{}
                                                                      : wrong("its value does not end");
    }
    /// The kind of a reply and the rest of its first line, of which `text` gets the beginning.
    [[nodiscard]] status read_line(char& kind, char (&text)[160], std::size_t& length,
                                   const call_time& time) {
        bool first = true, returned = false;
        for (std::size_t seen = 0; seen < most_line; ++seen) {
            if (from_ == to_)
                if (status s = fill(time); !s) return s;
            const char c = static_cast<char>(buffer_[from_++]);
            if (returned && c == '\n') {
                text[length] = '\0';
                return {};
            }
            returned = c == '\r';
            if (returned) continue;
            if (!std::exchange(first, false)) {
                if (length < sizeof text - 1)
                    text[length++] = c < ' ' ? ' ' : c; // a line of ours stays one line
            } else {
                kind = c;
            }
        }
        return wrong("its reply has no end");
    }
    [[nodiscard]] status read_bytes(std::span<std::byte> into, const call_time& time) {
        const std::size_t there = std::min(into.size(), to_ - from_);
        if (there != 0) std::memcpy(into.data(), buffer_.data() + from_, there);
        from_ += there;
        into = into.subspan(there);
        while (!into.empty()) {
            if (blob_clock::now() >= time.until) return wrong("reading: Connection timed out");
            if (into.size() < buffer_.size()) { // with what follows it, in one call
                if (status s = fill(time); !s) return s;
                const std::size_t n = std::min(into.size(), to_ - from_);
                std::memcpy(into.data(), buffer_.data() + from_, n);
                from_ += n;
                into = into.subspan(n);
                continue;
            }
            std::size_t n = 0;
            if (status s = stream_.read(into, n, time); !s) return s;
            into = into.subspan(n);
        }
        return {};
    }
    [[nodiscard]] status drop_bytes(std::size_t bytes, const call_time& time) {
        for (;;) {
            const std::size_t n = std::min(bytes, to_ - from_);
            from_ += n;
            bytes -= n;
            if (bytes == 0) return {};
            if (status s = fill(time); !s) return s;
        }
    }
    /// More bytes in the buffer, which is empty.
    [[nodiscard]] status fill(const call_time& time) {
        if (blob_clock::now() >= time.until) return wrong("reading: Connection timed out");
        from_ = to_ = 0;
        return stream_.read(buffer_, to_, time);
    }

    Stream stream_;
    std::string out_;
    std::vector<std::byte> buffer_; ///< bytes that came: [from_, to_)
    std::size_t from_ = 0, to_ = 0;
    std::size_t awaited_ = 0; ///< replies to commands that were queued or sent
};

}} // namespace kvtl::v0
