// status and result: a code, a line of text, and a value or a reason.
// SPDX-License-Identifier: MIT
#include <kvtl/status.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>

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

TEST_CASE("long texts are cut, not overrun") {
    const std::string long_text(1000, 'x');
    const status s = status::failure(errc::io_error, "%s", long_text.c_str());
    CHECK(std::string(s.what()) == long_text.substr(0, 238));
    CHECK(sizeof(status) == 240);
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
