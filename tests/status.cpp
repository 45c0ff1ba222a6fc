// status and result: a code, a line of text, and a value or a reason.
// SPDX-License-Identifier: MIT
#include <kvtl/status.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

using namespace kvtl;

TEST_CASE("a status is fine until it fails") {
    const status fine;
    CHECK(fine.ok());
    CHECK(static_cast<bool>(fine));
    CHECK(fine.code() == errc::ok);
    CHECK(std::string(fine.what()).empty());
    const status bad = status::failure(errc::disk_full, "%s is %d", "pages", 7);
    CHECK_FALSE(bad.ok());
    CHECK(bad.code() == errc::disk_full);
    CHECK(std::string(bad.what()) == "pages is 7");
}

TEST_CASE("errors have the names of their enumerators") {
    CHECK(std::string(name_of(errc::ok)) == "ok");
    CHECK(std::string(name_of(errc::bound_too_small)) == "bound_too_small");
    CHECK(std::string(name_of(errc::absent)) == "absent");
    for (int code = 0; code <= static_cast<int>(errc::absent); ++code)
        CHECK(std::string(name_of(static_cast<errc>(code))) != "unknown");
    CHECK(std::string(name_of(static_cast<errc>(200))) == "unknown");
}

TEST_CASE("long texts are cut, not overrun") {
    const std::string long_text(1000, 'x');
    const status s = status::failure(errc::io_error, "%s", long_text.c_str());
    CHECK(std::string(s.what()) == long_text.substr(0, 238));
    CHECK(sizeof(status) == 240);
}

namespace {
/// Counts those that live, and knows when it was moved from.
struct counted {
    static inline int alive = 0;
    int number;
    bool moved_from = false;
    explicit counted(int n) : number(n) { ++alive; }
    counted(const counted& other) : number(other.number) { ++alive; }
    counted(counted&& other) noexcept : number(other.number) {
        ++alive;
        other.moved_from = true;
    }
    counted& operator=(const counted&) = delete;
    ~counted() { --alive; }
};
const std::string long_reason(100, 'r'); // on the heap
result<counted> value_of(int n) {
    return counted(n);
}
result<counted> failed(const char* end) {
    return error(errc::io_error, long_reason + end);
}
bool holds(const result<counted>& r, int n) {
    return r.ok() && r->number == n && !r->moved_from;
}
bool says(const result<counted>& r, const char* end) {
    return !r.ok() && r.error().code == errc::io_error && r.error().message == long_reason + end;
}
} // namespace

TEST_CASE("results move, and are copied where their values can be: from either side to either") {
    for (const bool from_value : {true, false})
        for (const bool to_value : {true, false})
            for (const bool copy : {true, false}) {
                CAPTURE(from_value);
                CAPTURE(to_value);
                CAPTURE(copy);
                {
                    result<counted> from = from_value ? value_of(7) : failed("1");
                    result<counted> to = to_value ? value_of(8) : failed("2");
                    if (copy)
                        to = from;
                    else
                        to = std::move(from);
                    CHECK((from_value ? holds(to, 7) : says(to, "1")));
                    if (copy) CHECK((from_value ? holds(from, 7) : says(from, "1")));
                    if (!copy && from_value) CHECK(from->moved_from);
                    result<counted> made = copy ? result<counted>(to) : result<counted>(std::move(to));
                    CHECK((from_value ? holds(made, 7) : says(made, "1")));
                    result<counted>& itself = made;
                    made = std::move(itself);
                    CHECK((from_value ? holds(made, 7) : says(made, "1")));
                }
                CHECK(counted::alive == 0);
            }
    static_assert(!std::is_copy_constructible_v<result<std::unique_ptr<int>>>);
    static_assert(std::is_nothrow_move_constructible_v<result<std::unique_ptr<int>>>);
}

TEST_CASE("a result holds a value or an error") {
    result<std::unique_ptr<int>> good(std::make_unique<int>(5)); // a type that can only be moved
    REQUIRE(good.ok());
    CHECK(**good == 5);
    CHECK(*good->get() == 5);
    const std::unique_ptr<int> taken = *std::move(good);
    CHECK(*taken == 5);
    const result<int> bad(status::failure(errc::corrupt, "page %u", 3U));
    REQUIRE_FALSE(bad.ok());
    CHECK(bad.error().code == errc::corrupt);
    CHECK(bad.error().message == "page 3");
    const result<std::string> several(error(errc::bound_too_small, "one\ntwo"));
    CHECK(several.error().message == "one\ntwo");
}
