// Traces: what is written comes back, and broken files say what was expected.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/trace_format.hpp>
#include <kvtl/calibration/trace_reader.hpp>
#include <kvtl/calibration/trace_writer.hpp>

#include "support/scratch_folder.hpp"
#include "support/small_trace.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using kvtl::trace_header;
using kvtl::trace_reader;
using kvtl::trace_writer;
using kvtl_test::copy, kvtl_test::create_trace, kvtl_test::numbers, kvtl_test::scratch_folder,
    kvtl_test::write_small_trace;

namespace {

constexpr kvtl::shape small = kvtl_test::small_trace;

trace_reader open(const std::string& path) {
    auto in = trace_reader::open(path);
    REQUIRE_MESSAGE(in.ok(), (in.ok() ? std::string() : in.error().message));
    return *std::move(in);
}
kvtl::trace_entry read(trace_reader& in, std::uint64_t token, std::uint32_t layer) {
    const auto e = in.read(token, layer);
    REQUIRE_MESSAGE(e.ok(), (e.ok() ? std::string() : e.error().message));
    return *e;
}
std::string refusal(const std::string& path) {
    const auto in = trace_reader::open(path);
    return in ? std::string() : in.error().message;
}

/// One byte of the file.
void change(const std::string& path, std::streamoff at, char to) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(to);
}

} // namespace

TEST_CASE("a trace gives back what was written") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    write_small_trace(path);
    trace_reader in = open(path);
    CHECK(in.header().shape == small);
    CHECK(in.header().tokens == 5);
    CHECK(in.header().prompt_tokens == 3);
    CHECK(in.header().pair_distance == 4);
    CHECK(in.header().fingerprint == 0x77);
    for (const std::size_t t : {4U, 0U, 3U, 2U})
        for (std::uint32_t l = 0; l < 3; ++l) {
            const auto e = read(in, t, l);
            CHECK(copy(e.q) == numbers(32, t, l, 0));
            CHECK(copy(e.k) == numbers(16, t, l, 1));
            CHECK(copy(e.v) == numbers(16, t, l, 2));
            CHECK(copy(e.k_pre) == numbers(16, t, l, 3));
            if (t >= 3 && l > 0)
                CHECK(copy(e.prediction) == numbers(32, t, l, 4));
            else
                CHECK(e.prediction.empty());
        }
    CHECK(in.read(5, 0).error().message ==
          "trace " + path + ": token 5, layer 0; it has 5 tokens of 3 layers");
    CHECK(in.read(0, 3).error().code == kvtl::errc::out_of_range);
}

TEST_CASE("a trace holds as little as its header says, and says what it lacks") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    write_small_trace(path, trace_header::without_q | trace_header::without_v);
    trace_reader keys = open(path);
    CHECK(std::filesystem::file_size(path) == trace_header::bytes + 5 * 3 * 16 * 2);
    const auto e = read(keys, 4, 2);
    CHECK(copy(e.k) == numbers(16, 4, 2, 1));
    CHECK((e.q.empty() && e.v.empty() && e.k_pre.empty() && e.prediction.empty()));
    CHECK(keys.require(false, false).ok());
    CHECK(std::string(keys.require(true, false).what()) ==
          "trace " + path + " has no queries, which are needed here");
    CHECK(std::string(keys.require(false, true).what()) ==
          "trace " + path + " has no values, which are needed here");
    CHECK(std::string(keys.require(false, false, trace_header::has_k_pre).what()) ==
          "trace " + path + " has no keys before RoPE, which are needed here");
    CHECK(std::string(keys.require_shape({4, 4, 2, 8}).what()) ==
          "trace " + path +
              " has 3 layers, 4 query heads, 2 KV heads of 8; expected 4 layers, 4 query heads, 2 KV heads "
              "of 8");
    write_small_trace(path, 0);
    trace_reader bare = open(path);
    CHECK(copy(read(bare, 1, 1).v) == numbers(16, 1, 1, 2));
    CHECK(read(bare, 4, 1).k_pre.empty());
    CHECK(read(bare, 4, 1).prediction.empty());
}

TEST_CASE("chunks are written as their tokens one by one, in any element type") {
    const scratch_folder folder;
    std::vector<float> q, k;
    for (std::size_t t = 0; t < 4; ++t)
        for (const auto& [to, n, tensor] : {std::tuple{&q, 32U, 0U}, {&k, 16U, 1U}}) {
            const auto x = numbers(n, t, 0, tensor);
            to->insert(to->end(), x.begin(), x.end());
        }
    std::vector<kvtl::f16> narrow;
    for (const float x : k) narrow.push_back(kvtl::from_float<kvtl::f16>(x));
    constexpr kvtl::shape one{.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
    trace_writer out = create_trace(folder.file("a.trc"), {.shape = one});
    out.write(0, 0, {.q = std::span(q).first(96), .k = std::span(k).first(48), .v = std::span(k).first(48)});
    out.write(3, 0,
              {.q = std::span(q).last(32), .k = std::span(narrow).last(16), .v = std::span(narrow).last(16)});
    REQUIRE(out.close(3, 4));
    std::vector<float> fused; // q and k of a token behind one another
    for (std::size_t t = 0; t < 4; ++t) {
        fused.insert(fused.end(), q.data() + t * 32, q.data() + (t + 1) * 32);
        fused.insert(fused.end(), k.data() + t * 16, k.data() + (t + 1) * 16);
    }
    const auto keys = kvtl::tensor_view::in_rows(fused.data() + 32, 4, 16, 48);
    trace_writer rows = create_trace(folder.file("b.trc"), {.shape = one});
    rows.write(0, 0, {.q = kvtl::tensor_view::in_rows(fused.data(), 4, 32, 48), .k = keys, .v = keys});
    REQUIRE(rows.close(3, 4));
    trace_reader in = open(folder.file("a.trc")), in_rows = open(folder.file("b.trc"));
    for (std::size_t t = 0; t < 4; ++t) {
        CHECK(copy(read(in_rows, t, 0).q) == numbers(32, t, 0, 0));
        CHECK(copy(read(in_rows, t, 0).k) == numbers(16, t, 0, 1));
        CHECK(copy(read(in, t, 0).q) == numbers(32, t, 0, 0));
        CHECK(copy(read(in, t, 0).v) == numbers(16, t, 0, 1));
    }
}

TEST_CASE("broken traces are refused with the reason") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc"), it = "trace " + path + ": ";
    write_small_trace(path);
    const auto size = std::filesystem::file_size(path);
    CHECK(refusal(path).empty());

    const std::string cut =
        "cut short: " + std::to_string(size - 1) +
        " bytes for 5 tokens of 3 layers, 4 query heads, 2 KV heads of 8, 224 bytes each in a layer";
    std::filesystem::resize_file(path, size - 1);
    CHECK(refusal(path) == it + cut);
    std::filesystem::resize_file(path, 100);
    CHECK(refusal(path).find("cut short: 100 bytes") != std::string::npos);
    std::filesystem::resize_file(path, 10);
    CHECK(refusal(path) == it + "not a trace");
    std::filesystem::resize_file(path, 0);
    CHECK(refusal(path) == it + "empty; expected a trace of version 1");
    std::ofstream(path) << std::string(5000, 'x');
    CHECK(refusal(path) == it + "not a trace");
    std::filesystem::remove(path);
    CHECK(refusal(path) == it + "No such file or directory");
    CHECK(refusal(folder.path()).find("not a regular file") != std::string::npos);

    { // a run that was interrupted: records, but no header
        trace_writer out = create_trace(path, {.shape = small});
        const auto q = numbers(32, 0, 0, 0), k = numbers(16, 0, 0, 1);
        out.write(0, 0, {.q = q, .k = k, .v = k});
    }
    CHECK(refusal(path) == it + "cut short: its recording was never finished");

    const auto changed = [&](std::streamoff at, char to) {
        write_small_trace(path);
        change(path, at, to);
        return refusal(path);
    };
    CHECK(changed(8, 9) == it + "version 9; valid: 1");
    CHECK(changed(12, 16) == it + "fields 16; valid: sums of 1, 2, 4 and 8");
    CHECK(changed(24, 0) == it + "shape.kv_heads is 0; valid: 1 to 65536");
    CHECK(changed(32, 6) == it + "5 tokens, 6 of them of the prompt: not possible");
    CHECK(changed(47, 1).find("tokens, 3 of them of the prompt: not possible") != std::string::npos); // 2^56
    CHECK(changed(44, 1).find("cut short") == std::string::npos); // 2^32 + 5
    CHECK(changed(43, 1).find("cut short") != std::string::npos); // 2^24 + 5
    CHECK(changed(48, 1) == it + "numbers of element type 1; valid: 0, f16");
    CHECK(changed(52, 5) == it + "pair distance 5; valid: 1 to 4, or 0 for not told");
}

TEST_CASE("a number that is not finite is refused where it is read") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    trace_writer out = create_trace(path, {.shape = small});
    const auto q = numbers(32, 0, 0, 0), k = numbers(16, 0, 0, 1);
    for (std::size_t t = 0; t < 2; ++t)
        for (std::uint32_t l = 0; l < 3; ++l) {
            auto v = k;
            if (t == 1 && l == 2) v[3] = 1e6F; // beyond f16
            out.write(t, l, {.q = q, .k = k, .v = v});
        }
    REQUIRE(out.close(1, 2));
    trace_reader in = open(path);
    CHECK(in.read(1, 1).ok());
    CHECK(in.read(1, 2).error().message == "trace " + path + ": token 1, layer 2: a number is not finite");
}

TEST_CASE("what cannot be recorded is said when the recording is closed") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    const auto q = numbers(32, 0, 0, 0), k = numbers(16, 0, 0, 1);
    const auto said = [&](auto&& record) {
        trace_writer out = create_trace(path, {.shape = small});
        record(out);
        const std::string text = out.close(1, 1).what();
        CHECK(!refusal(path).empty()); // nothing that would pass for a trace is left
        return text;
    };
    CHECK(said([&](trace_writer& out) { out.write(0, 3, {.q = q, .k = k, .v = k}); }) ==
          "trace: layer 3; valid: 0 to 2");
    CHECK(said([&](trace_writer& out) { out.write(0, 1, {.q = q, .k = q, .v = k}); }) ==
          "trace: layer 1, token 0: q has 32 numbers; valid for 2 tokens: 64");
    CHECK(said([&](trace_writer& out) { out.write(0, 1, {.q = q, .k = std::span(k).first(5), .v = k}); }) ==
          "trace: layer 1, token 0: k has 5 numbers; valid: multiples of 16");
    CHECK(said([&](trace_writer& out) { out.write(0, 0, {.q = q, .k = k}); }) ==
          "trace: layer 0, token 0: v has 0 numbers; valid for 1 tokens: 16");
    CHECK(said([&](trace_writer& out) { out.write(0, 0, {.q = q, .k = k, .v = k}); }) ==
          "trace: 1 tokens, 1 of them of the prompt; layer 1 has 0 that were written");

    const auto heads = kvtl::tensor_view::in_rows(q.data(), 2, 8, 12);
    CHECK(said([&](trace_writer& out) { out.write(0, 0, {.q = q, .k = heads, .v = k}); }) ==
          "trace: layer 0, token 0: k has rows of 8 numbers with a stride of 12; valid: rows of 16 with a "
          "stride of "
          "16 or more");
    CHECK(said([&](trace_writer& out) { out.write(3, 1, {.q = q, .k = k, .v = k}); }) ==
          "trace: layer 1, token 3; valid: 0 to 0");
    trace_writer full = create_trace("/dev/full", {.shape = small});
    for (std::uint32_t layer = 0; layer < 3; ++layer) full.write(0, layer, {.q = q, .k = k, .v = k});
    CHECK(std::string(full.close(1, 1).what()) == "cannot write trace /dev/full: No space left on device");

    CHECK(trace_writer::create("no/such/folder/x.trc", {.shape = small}).error().message ==
          "cannot write trace no/such/folder/x.trc: No such file or directory");
    CHECK(trace_writer::create(path, {.shape = small, .pair_distance = 5}).error().message ==
          "trace: pair distance 5; valid: 1 to 4, or 0 for not told");
    CHECK(trace_writer::create(path, {.shape = {3, 4, 3, 8}}).error().message ==
          "trace: shape.query_heads is 4, which is not a multiple of shape.kv_heads = 3");
}
