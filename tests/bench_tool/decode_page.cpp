// The page of decode rows: what stands together, what its bars are as long as, and that every part is closed again.
// SPDX-License-Identifier: MIT
#include "decode_page.hpp"

#include "contracts/io.hpp"
#include "decode.hpp"

#include <doctest/doctest.h>

#include <string>

using json = nlohmann::ordered_json;

namespace {

json row(const std::string& policy, double compute_us, double fetch_us) {
    return {{"policy", policy},
            {"shape", "tiny-2k"},
            {"context", 300},
            {"batch", 1},
            {"device", "native"},
            {"simulated", false},
            {"config", {{"attend_tokens", 96}, {"memory_mib", 4.0}, {"compute_us_per_layer", compute_us}}},
            {"step_ms_median", 1.25},
            {"compute_ms_per_step", compute_us * 6e-3},
            {"phase_us", {{"fetch_wait", fetch_us}, {"attend", 100.0}}},
            {"error", nullptr}};
}

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
}

} // namespace

TEST_CASE("a sweep stands together, its bars to one scale") {
    // 6 layers of 50 us and 100 + 100 us of the cache: 500; the other one is 200 + 100.
    const json rows = {row("dynakv", 0, 200), row("dynakv", 50, 100), row("kvswap", 0, 100)};
    const std::string page = bench::decode_page(rows);
    CHECK(count(page, "<h2>") == 2);
    CHECK(count(page, "<h2>dynakv, native device, 96 attended, 4 MiB</h2>") == 1);
    CHECK(count(page, "50 µs of compute per layer") == 1);
    CHECK(page.find("compute: 300.0 µs\" style=\"width:60.00%") != std::string::npos);
    CHECK(page.find("fetch_wait: 200.0 µs\" style=\"width:40.00%") != std::string::npos);
    CHECK(count(page, ">1.2 ms<") + count(page, ">1.3 ms<") == 3);
    for (const char* tag : {"div", "ul", "span", "h2", "body", "html"})
        CHECK_MESSAGE(count(page, std::string("<") + tag + ">") + count(page, std::string("<") + tag + " ") ==
                          count(page, std::string("</") + tag + ">"),
                      tag);
}

TEST_CASE("who could not run is named, in text that is safe") {
    json refused = row("dynakv", 0, 1);
    refused["error"] = "memory_bytes < 4 MiB";
    const std::string page = bench::decode_page(json::array({refused}));
    CHECK(page.find("dynakv: memory_bytes &lt; 4 MiB") != std::string::npos);
    CHECK(count(page, "class=\"bars\"") == 0);
}

TEST_CASE("times of compute share a prompt, and steps take as long") {
    const kvtl_test::scratch_folder folder;
    bench::decode_options o;
    o.shape = bench::find_shape("tiny-2k")->shape;
    o.context = 300, o.steps = 4, o.memory_mib = {4}, o.attend_tokens = {96};
    o.kv_path = folder.file("run.kv"), o.io = "posix";
    o.compute_us_per_layer = {0, 2000};
    const json rows = bench::run_decode(o, [](const auto&) {});
    REQUIRE(rows.size() == 2);
    CHECK(rows[0]["config"]["compute_us_per_layer"] == 0);
    CHECK(rows[1]["compute_ms_per_step"] == 12);
    CHECK(rows[1]["step_ms_median"] >= 12);
    CHECK(rows[0]["prefill_s"] == rows[1]["prefill_s"]);
    CHECK(count(bench::decode_page(rows), "of compute per layer") == 2);
}
