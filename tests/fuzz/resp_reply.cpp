// libFuzzer target: any bytes, and edits of valid ones, are what a server of Redis answers, in pieces of any size. A finding is a
// crash, a byte beyond the place of a value, or a length that is not true.
// SPDX-License-Identifier: MIT
#include <kvtl/store/resp_connection.hpp>

#include "support/seeded.hpp"

#include <algorithm>

namespace {

/// A stream that gives what it has in pieces, and then has ended.
struct pieces {
    struct options {
        std::span<const std::uint8_t> bytes{};
        std::size_t most = 1;
    };
    explicit pieces(const options& o) : left(o) {}
    [[nodiscard]] bool is_open() const noexcept { return open; }
    [[nodiscard]] bool has_ended() const noexcept { return left.bytes.empty(); }
    [[nodiscard]] const std::string& name() const noexcept { return called; }
    void close() noexcept { open = false; }
    [[nodiscard]] kvtl::status connect(const kvtl::server_address&, const kvtl::call_time&) noexcept {
        return {};
    }
    [[nodiscard]] kvtl::status read(std::span<std::byte> into, std::size_t& n,
                                    const kvtl::call_time&) noexcept {
        n = std::min({into.size(), left.bytes.size(), left.most});
        if (n == 0) return kvtl::status::failure(kvtl::errc::io_error, "it has ended");
        std::memcpy(into.data(), left.bytes.data(), n);
        left.bytes = left.bytes.subspan(n);
        return {};
    }
    [[nodiscard]] kvtl::status write(std::span<::iovec>, const kvtl::call_time&) noexcept { return {}; }

    options left;
    bool open = true;
    std::string called = "pieces";
};

} // namespace

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = [] {
        const std::string all = "+OK\r\n:7\r\n$-1\r\n$5\r\nvalue\r\n-MOVED 3 host:1\r\n$20\r\n" +
                                std::string(20, 'x') + "\r\n$0\r\n\r\n:-1\r\n";
        return kvtl_fuzz::bytes(all.begin(), all.end());
    }();
    const kvtl_fuzz::bytes input = kvtl_fuzz::edited(seed, {data, size});
    const std::size_t most = size == 0 ? 1 : 1 + data[0] % 64U;
    kvtl::resp_connection<pieces> link({input, most});
    const auto end = kvtl::blob_clock::now() + std::chrono::hours(1);
    std::byte place[17];
    constexpr std::size_t room = sizeof place - 1;
    for (std::size_t replies = 0; link.is_open(); ++replies) {
        if (replies > input.size()) std::abort();
        place[room] = std::byte{0x5A};
        kvtl::resp_reply r;
        link.queue({"GET", "n"});
        const kvtl::status s = link.receive(r, std::span(place).first(room), {end, std::chrono::hours(1)});
        if (s.ok() != link.is_open() || place[room] != std::byte{0x5A}) std::abort();
        using what = kvtl::resp_reply::what;
        if (s && ((r.is == what::bulk && static_cast<std::uint64_t>(r.number) > room) ||
                  (r.is == what::too_long && static_cast<std::uint64_t>(r.number) <= room)))
            std::abort();
    }
    return 0;
}
