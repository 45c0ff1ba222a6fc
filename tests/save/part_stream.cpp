// The stream that a sequence's parts pass through: what sticks, and what a reader leaves.
// SPDX-License-Identifier: MIT
#include <kvtl/save/part_stream.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace save_part_stream_test {

using namespace kvtl;

namespace {

/// Fills with 7s until `good` calls have been served.
class reader final : public part_stream {
  public:
    explicit reader(int good) : part_stream(direction::load, "load"), good_(good) {}
    int calls = 0;

  private:
    status move(std::byte* at, std::size_t n) noexcept override {
        if (calls++ == good_) return status::failure(errc::corrupt, "call %d", calls);
        std::memset(at, 7, n);
        return {};
    }
    int good_;
};

} // namespace

TEST_CASE("the first error sticks, and what is read afterwards is zero") {
    reader in(2);
    std::uint32_t a = 1, b = 1, c = 1, d = 1;
    in.value(a);
    in.value(b);
    CHECK(in.ok());
    in.value(c); // fails
    in.value(d); // asks for nothing any more
    in.fail(status::failure(errc::io_error, "later"));
    CHECK((a == 0x07070707 && b == 0x07070707));
    CHECK((c == 0 && d == 0));
    CHECK(in.calls == 3);
    CHECK(in.error().code() == errc::corrupt);
    CHECK(std::string(in.error().what()) == "call 3");
    std::vector<std::byte> page(64, std::byte{5});
    in.pages(page.data(), page.size(), page.size());
    CHECK(in.calls == 3);
}

TEST_CASE("a count beyond its limit fails and is 0") {
    reader in(9);
    std::uint32_t n = 0;
    in.count(n, 0x07070707, "rows");
    CHECK(n == 0x07070707);
    in.count(n, 3, "rows");
    CHECK(n == 0);
    CHECK(in.error().code() == errc::out_of_range);
    CHECK(std::string(in.error().what()).find("rows; valid: up to 3") != std::string::npos);
}

TEST_CASE("a hash tells values and their order apart") {
    const auto of = [](std::vector<std::uint32_t> values) {
        hash_stream out;
        out.array(values.data(), values.size());
        return out.value();
    };
    CHECK(of({1, 2}) == of({1, 2}));
    CHECK(of({1, 2}) != of({2, 1}));
    CHECK(of({}) != of({0}));
}

} // namespace save_part_stream_test
