// reservation and carver: one block, divided twice in the same way.
// SPDX-License-Identifier: MIT
#include <kvtl/reservation.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace kvtl;

namespace {

struct record {
    std::uint32_t a = 7;
    double b = 0.5;
};

/// Takes pieces as a seed says; returns where each begins and how many bytes it has.
std::vector<std::pair<std::byte*, std::size_t>> divide(carver& c, std::uint64_t seed) {
    oracle::generator random(seed);
    std::vector<std::pair<std::byte*, std::size_t>> pieces;
    const auto note = [&](auto span) {
        pieces.emplace_back(reinterpret_cast<std::byte*>(span.data()), span.size_bytes());
    };
    for (int i = 0; i < 40; ++i) switch (const std::size_t n = random.below(50); random.below(4)) {
        case 0:
            note(c.take<std::byte>(n));
            break;
        case 1:
            note(c.take<float>(n));
            break;
        case 2:
            note(c.take<record>(n));
            break;
        default:
            note(c.take<std::uint64_t>(n, 4096));
            break;
        }
    return pieces;
}

} // namespace

TEST_CASE("a reservation is zeroed, aligned and movable") {
    auto made = reservation::make(100000);
    REQUIRE(made.ok());
    const auto memory = made->memory();
    CHECK(memory.size() == 100000);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096 == 0);
    CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0}; }));
    memory[99999] = std::byte{1};
    reservation moved(std::move(*made));
    CHECK(made->memory().empty());
    CHECK(moved.memory().data() == memory.data());
    reservation other;
    other = std::move(moved);
    CHECK(other.memory()[99999] == std::byte{1});
}

TEST_CASE("memory that the system does not have is an error, not a crash") {
    const auto made = reservation::make(std::numeric_limits<std::size_t>::max() / 2);
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().code == errc::bound_too_small);
    CHECK(made.error().message.find("memory_bytes") == 0);
}

TEST_CASE("counting and laying out agree") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        carver counting;
        for (const auto& [at, bytes] : divide(counting, seed)) {
            CHECK(at == nullptr);
            CHECK(bytes == 0);
        }
        auto block = reservation::make(counting.used());
        REQUIRE(block.ok());
        carver laying(block->memory());
        auto pieces = divide(laying, seed);
        CHECK(laying.used() == counting.used());
        const std::byte* end = block->memory().data();
        for (const auto& [at, bytes] : pieces) { // in order, apart, inside
            CHECK(at >= end);
            CHECK(reinterpret_cast<std::uintptr_t>(at) % 64 == 0);
            end = at + bytes;
        }
        CHECK(end <= block->memory().data() + block->memory().size());
    }
}

TEST_CASE("objects are made with their default values, bytes are left alone") {
    std::vector<std::uint64_t> memory(64, ~std::uint64_t{0});
    carver c(std::as_writable_bytes(std::span(memory)));
    for (const record& r : c.take<record>(3)) {
        CHECK(r.a == 7);
        CHECK(r.b == 0.5);
    }
    for (const std::byte b : c.take<std::byte>(8)) CHECK(b == std::byte{0xFF});
}
