// Calibration files: what was written comes back, and nothing else is taken for it.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/writer.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

using namespace kvtl;
using kind = kvtl::calibration_kind;

namespace {

constexpr shape small{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
constexpr std::uint64_t fingerprint = 0x0123456789ABCDEFU;
constexpr std::uint32_t every_kind = (1U << calibration_kinds) - 1;

struct folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("kvtl-calibration-" + std::to_string(::getpid()));
    folder() { std::filesystem::create_directories(path); }
    ~folder() { std::filesystem::remove_all(path); }
    folder(const folder&) = delete;
    folder& operator=(const folder&) = delete;
    [[nodiscard]] std::string file(const char* name) const { return (path / name).string(); }
};

/// One section of every kind, filled with numbers that say where they are.
struct sample {
    std::vector<float> adapter = oracle::normal_values(2 * 3 * 8, 1);
    std::vector<float> pca = oracle::normal_values(2 * 2 * 4 * 4, 2);
    std::vector<float> skew = oracle::normal_values(2 * 2 * 4 * 4, 3);
    std::vector<std::uint32_t> channels = {0, 1, 1, 0, 1, 0, 0, 1};
    std::vector<float> map = oracle::normal_values(16 * 16, 4);
    std::vector<float> joint_keys = oracle::normal_values(2 * 8 * 8, 5),
                       head_values = oracle::normal_values(2 * 2 * 4 * 4, 6),
                       gated = oracle::normal_values(2 * 25 * 8, 7),
                       nuq = oracle::normal_values(2 * (16 + 28), 8);

    void write(const std::string& path, std::uint64_t id = fingerprint, bool of_entries = false) const {
        calibration_writer out(small, id);
        REQUIRE(out.add(kind::joint_adapter, 3, adapter, true));
        REQUIRE(out.add(kind::pca_basis, 4, pca));
        REQUIRE(out.add(kind::skew_basis, 4, skew));
        REQUIRE(out.add_channels(2, channels, 2));
        REQUIRE(out.add(kind::query_map, 16, map));
        if (of_entries) {
            REQUIRE(out.add(kind::joint_keys, 8, joint_keys, true));
            REQUIRE(out.add(kind::joint_values, 8, joint_keys));
            REQUIRE(out.add(kind::head_keys, 4, head_values, true));
            REQUIRE(out.add(kind::head_values, 4, head_values));
            REQUIRE(out.add_gated(kind::gated_keys, gated, 0.25F));
            REQUIRE(out.add_gated(kind::gated_values, gated, 0.25F));
            REQUIRE(out.add(kind::prefix_keys, 4, head_values));
            REQUIRE(out.add(kind::prefix_values, 4, head_values));
            REQUIRE(out.add(kind::value_norms, 4, pca));
            REQUIRE(out.add(kind::nuq_keys, 28, nuq, true));
            REQUIRE(out.add(kind::nuq_values, 28, std::span(nuq).first(2 * 28)));
        }
        REQUIRE(out.write(path));
    }
};

std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
void store(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}
/// The message of a load that must fail; it always names the file.
std::string refusal(const std::string& path, const shape& model = small, std::uint32_t kinds = 0,
                    std::uint64_t id = fingerprint) {
    const auto loaded = calibration::load(path, model, {.kinds = kinds, .fingerprint = id});
    REQUIRE(!loaded);
    CHECK(loaded.error().message.find(path) != std::string::npos);
    return loaded.error().message;
}
bool says(const std::string& message, const char* part) {
    CAPTURE(message);
    const bool found = message.find(part) != std::string::npos;
    CHECK(found);
    return found;
}

} // namespace

TEST_CASE("every section comes back where it belongs") {
    const folder here;
    const sample s;
    s.write(here.file("a.cal"), fingerprint, true);
    CHECK(!std::filesystem::exists(here.file("a.cal.part")));
    const auto loaded =
        calibration::load(here.file("a.cal"), small, {.kinds = every_kind, .fingerprint = fingerprint});
    REQUIRE(loaded);
    const calibration_view& v = loaded->view();
    CHECK(v.rank(kind::joint_adapter) == 3);
    CHECK(v.pre_rope(kind::joint_adapter));
    CHECK(!v.pre_rope(kind::pca_basis));
    CHECK(v.pair_distance() == 2);
    CHECK(v.heads(kind::joint_keys) == 1);
    CHECK(v.heads(kind::head_values) == 2);
    CHECK(v.pre_rope(kind::joint_keys));
    CHECK(v.basis(kind::joint_keys, 1, 0).count == 8);
    CHECK(v.basis(kind::joint_keys, 1, 0).row(7)[3] == s.joint_keys[64 + 7 * 8 + 3]);
    CHECK(v.basis(kind::head_values, 1, 1).row(2)[1] == s.head_values[3 * 16 + 2 * 4 + 1]);
    CHECK(v.rate(kind::gated_keys) == 0.25F);
    CHECK(v.rate(kind::prefix_keys) == 0.0F);
    CHECK(v.basis(kind::prefix_values, 1, 1).row(2)[1] == s.head_values[3 * 16 + 2 * 4 + 1]);
    CHECK(v.basis(kind::value_norms, 1, 0).row(3)[2] == s.pca[2 * 16 + 3 * 4 + 2]);
    CHECK(v.layers(kind::nuq_keys) == 2);
    CHECK(v.basis(kind::nuq_keys, 1, 0).dim == 16 + 28);
    CHECK(v.basis(kind::nuq_keys, 1, 0).row(0)[43] == s.nuq[2 * 44 - 1]);
    CHECK(v.basis(kind::nuq_values, 1, 0).row(0)[27] == s.nuq[2 * 28 - 1]);
    const gated_basis gated = v.gated(kind::gated_values, 1);
    for (std::size_t j = 0; j < 8; ++j)
        for (std::size_t i = 0; i < 8; ++i) {
            CHECK(gated.project.row(j)[i] == s.gated[25 * 8 + j * 8 + i]);
            CHECK(gated.rebuild.row(j)[i] == s.gated[25 * 8 + (8 + j) * 8 + i]);
            CHECK(gated.gate.row(j)[i] == s.gated[25 * 8 + (16 + j) * 8 + i]);
            CHECK(gated.bias[i] == s.gated[25 * 8 + 24 * 8 + i]);
        }
    CHECK(v.check_inverse(kind::gated_values).code() == errc::file_refused); // random numbers invert nothing
    for (std::uint32_t l = 0; l < 2; ++l) {
        REQUIRE(v.adapter(l).count == 3);
        REQUIRE(v.adapter(l).dim == 8);
        for (std::size_t j = 0; j < 3; ++j)
            for (std::size_t i = 0; i < 8; ++i)
                CHECK(v.adapter(l).row(j)[i] == from_float<f16>(s.adapter[(l * 3 + j) * 8 + i]));
        for (std::uint32_t h = 0; h < 2; ++h) {
            for (std::size_t j = 0; j < 4; ++j)
                for (std::size_t i = 0; i < 4; ++i) {
                    const std::size_t at = ((l * 2 + h) * 4 + j) * 4 + i;
                    CHECK(v.pca_basis(l, h).row(j)[i] == s.pca[at]);
                    CHECK(v.skew_basis(l, h).row(j)[i] == s.skew[at]);
                }
            REQUIRE(v.channels(l, h).size() == 2);
            for (std::size_t j = 0; j < 2; ++j) CHECK(v.channels(l, h)[j] == s.channels[(l * 2 + h) * 2 + j]);
        }
    }
    REQUIRE(v.query_map(1).count == 16);
    CHECK(v.query_map(1).row(15)[14] == s.map[15 * 16 + 14]);
}

TEST_CASE("only what was asked for is read, and its size is known before") {
    const folder here;
    sample().write(here.file("a.cal"));
    const auto file = calibration_file::open(here.file("a.cal"), small, {.kinds = kind_bit(kind::pca_basis)});
    REQUIRE(file);
    CHECK(file->bytes() == 2 * 2 * 16 * 4);
    CHECK(file->header().fingerprint == fingerprint);
    std::vector<std::byte> memory(file->bytes() + 1, std::byte{0x5A});
    const auto view = file->read(std::span(memory).first(file->bytes()));
    REQUIRE(view);
    CHECK(view->has(kind::pca_basis));
    CHECK(!view->has(kind::joint_adapter));
    CHECK(memory.back() == std::byte{0x5A});
    const auto pairs = calibration_file::open(here.file("a.cal"), small, {.kinds = kind_bit(kind::channels)});
    REQUIRE(pairs);
    REQUIRE(pairs->read(std::span(memory).first(pairs->bytes()))); // whatever the memory held before
    const auto all = calibration_file::open(here.file("a.cal"), small);
    REQUIRE(all);
    CHECK(all->bytes() == 128 + 256 + 256 + 64 + 1024); // the adapter's 48 numbers take 2 bytes each here,
    CHECK(all->bytes() + 64 + 64 * 6 == std::filesystem::file_size(here.file("a.cal")));
}

TEST_CASE("what is optional is read where it is there, all of it, and missed nowhere") {
    const folder here;
    const sample s;
    s.write(here.file("old.cal"));
    s.write(here.file("new.cal"), fingerprint, true);
    constexpr std::uint32_t norms = kind_bit(kind::value_norms), adapter = kind_bit(kind::joint_adapter);
    const auto none = calibration::load(here.file("old.cal"), small, {.optional = norms});
    REQUIRE(none);
    CHECK(none->bytes() == 0); // and not everything, as without a wish
    CHECK(!none->view().has(kind::value_norms));
    CHECK(!none->view().has(kind::pca_basis));
    const auto both =
        calibration::load(here.file("new.cal"), small, {.kinds = adapter, .optional = norms, .rank = 2});
    REQUIRE(both);
    CHECK(both->view().rank(kind::joint_adapter) == 2);
    CHECK(!both->view().has(kind::pca_basis));
    REQUIRE(both->view().has(kind::value_norms));
    CHECK(both->view().basis(kind::value_norms, 1, 1).count == 4); // a factor has no prefix
    CHECK(both->view().basis(kind::value_norms, 1, 1).row(3)[3] == s.pca.back());
    CHECK(!calibration::load(here.file("old.cal"), small, {.kinds = norms}));
}

TEST_CASE("the first directions are read alone") {
    const folder here;
    const sample s;
    s.write(here.file("a.cal"));
    const auto adapter = kind_bit(kind::joint_adapter), pca = kind_bit(kind::pca_basis);
    const auto loaded = calibration::load(here.file("a.cal"), small, {.kinds = adapter | pca, .rank = 2});
    REQUIRE(loaded);
    CHECK(loaded->bytes() == 2 * 2 * 8 * 2 + 2 * 2 * 2 * 4 * 4);
    const calibration_view& v = loaded->view();
    CHECK(v.rank(kind::joint_adapter) == 2);
    CHECK(v.rank(kind::pca_basis) == 2);
    for (std::uint32_t l = 0; l < 2; ++l) {
        CHECK(v.adapter(l).count == 2);
        for (std::size_t i = 0; i < 16; ++i)
            CHECK(v.adapter(l).data[i] == from_float<f16>(s.adapter[l * 24 + i]));
        for (std::uint32_t h = 0; h < 2; ++h)
            for (std::size_t i = 0; i < 8; ++i)
                CHECK(v.pca_basis(l, h).data[i] == s.pca[(l * 2 + h) * 16 + i]);
    }
    const auto more = calibration::load(here.file("a.cal"), small, {.kinds = adapter, .rank = 4});
    REQUIRE(!more);
    says(more.error().message, "has 3 directions in section joint_adapter; rank wants 4");
}

TEST_CASE("sections longer than a piece") {
    constexpr shape wide{.layers = 3, .query_heads = 4, .kv_heads = 4, .head_dim = 32};
    constexpr std::size_t row = 128, rank = 70; // 107,520 bytes
    const folder here;
    const auto values = oracle::normal_values(3 * rank * row, 5);
    calibration_writer out(wide, 1);
    REQUIRE(out.add(kind::joint_adapter, rank, values));
    REQUIRE(out.write(here.file("a.cal")));
    for (const std::uint32_t r : {1U, 37U, 70U}) {
        const auto loaded = calibration::load(here.file("a.cal"), wide, {.rank = r});
        REQUIRE(loaded);
        bool same = true;
        for (std::uint32_t l = 0; l < 3; ++l)
            for (std::size_t i = 0; i < r * row; ++i)
                same &= loaded->view().adapter(l).data[i] ==
                        from_float<f16>(static_cast<float>(values[l * rank * row + i]));
        CHECK(same);
    }
    std::string bytes = content(here.file("a.cal"));
    bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] + 1); // in a row that is not wanted
    store(here.file("a.cal"), bytes);
    const auto damaged = calibration::load(here.file("a.cal"), wide, {.rank = 1});
    REQUIRE(!damaged);
    says(damaged.error().message, "section joint_adapter has another checksum");
}

TEST_CASE("a file cut short at any byte is refused, and so is a longer one") {
    const folder here;
    const std::string path = here.file("a.cal");
    sample().write(path);
    store(path, content(path) + 'x');
    says(refusal(path), "2177 bytes instead of 2176");
    for (std::size_t n = 2176; n-- > 0;) {
        std::filesystem::resize_file(path, n);
        CAPTURE(n);
        if (!says(refusal(path), "is cut short: ")) break;
    }
}

TEST_CASE("damage to any byte is noticed") {
    const folder here;
    const std::string path = here.file("a.cal");
    sample().write(path);
    const std::string whole = content(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](std::size_t n, char c) {
        file.seekp(static_cast<std::streamoff>(n)).put(c).flush();
    };
    for (std::size_t n = 0; n < whole.size(); ++n) {
        put(n, static_cast<char>(whole[n] ^ 0x10));
        CAPTURE(n);
        REQUIRE(!calibration::load(path, small, {.fingerprint = fingerprint}));
        put(n, whole[n]);
    }
    REQUIRE(calibration::load(path, small, {.fingerprint = fingerprint}));
    put(whole.size() - 1, 1);
    says(refusal(path), "section query_map has another checksum");
    const auto unread = calibration::load(path, small, {.kinds = kind_bit(kind::channels)});
    CHECK(unread); // a section that nobody asked for is not looked at
}

TEST_CASE("what does not belong to the caller is refused with both sides named") {
    const folder here;
    sample().write(here.file("a.cal"));
    SUBCASE("another shape") {
        shape other = small;
        other.kv_heads = 4;
        const std::string why = refusal(here.file("a.cal"), other);
        says(why, "2 layers, 4 query heads, 2 KV heads of 4");
        says(why, "2 layers, 4 query heads, 4 KV heads of 4");
    }
    SUBCASE("another model") {
        const std::string why = refusal(here.file("a.cal"), small, 0, 0xFFU);
        says(why, "0123456789abcdef");
        says(why, "00000000000000ff");
        CHECK(calibration::load(here.file("a.cal"), small)); // nobody asks
    }
    SUBCASE("another format version") {
        std::string bytes = content(here.file("a.cal"));
        bytes[8] = 9;
        store(here.file("a.cal"), bytes);
        says(refusal(here.file("a.cal")), "has format version 9; this kvtl reads version 1");
    }
    SUBCASE("another element type") { // said in the header, whose checksum is right
        std::string bytes = content(here.file("a.cal"));
        calibration_header header;
        calibration_table table{};
        std::memcpy(&header, bytes.data(), sizeof header);
        header.element = 1;
        std::memcpy(table.data(), bytes.data() + sizeof header, header.sections * sizeof table[0]);
        header.checksum = checksum_of(header, table);
        std::memcpy(bytes.data(), &header, sizeof header);
        store(here.file("a.cal"), bytes);
        says(refusal(here.file("a.cal")), "holds values of element type 1; this kvtl reads type 0, f32");
    }
    SUBCASE("another kind of section") {
        calibration_writer out(small, fingerprint);
        REQUIRE(out.add(kind::joint_adapter, 3, sample().adapter));
        REQUIRE(out.write(here.file("b.cal")));
        says(refusal(here.file("b.cal"), small, kind_bit(kind::joint_adapter) | kind_bit(kind::channels)),
             "has no section channels; it has joint_adapter");
    }
    SUBCASE("another kind of file") {
        store(here.file("b.cal"), std::string(4096, 'x'));
        says(refusal(here.file("b.cal")), "is not a calibration file of kvtl");
        store(here.file("b.cal"), "x");
        says(refusal(here.file("b.cal")), "is not a calibration file of kvtl");
        says(refusal(here.path.string()), "is not a regular file");
        says(refusal(here.file("nothing.cal")), "cannot be opened: No such file or directory");
    }
}

TEST_CASE("a value that is not finite is refused, though every checksum is right") {
    const folder here;
    const std::string path = here.file("a.cal");
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
        sample().write(path);
        std::string bytes = content(path);
        calibration_header header;
        calibration_table table{};
        std::memcpy(&header, bytes.data(), sizeof header);
        std::memcpy(table.data(), bytes.data() + sizeof header, header.sections * sizeof table[0]);
        calibration_section& pca = table[1];
        REQUIRE(pca.kind == kind::pca_basis);
        std::memcpy(bytes.data() + pca.offset + 7 * sizeof bad, &bad, sizeof bad);
        REQUIRE(pca.bytes <= calibration_piece);
        pca.checksum = add_piece(0, std::as_bytes(std::span(bytes)).subspan(pca.offset, pca.bytes));
        header.checksum = checksum_of(header, table);
        std::memcpy(bytes.data(), &header, sizeof header);
        std::memcpy(bytes.data() + sizeof header, table.data(), header.sections * sizeof table[0]);
        store(path, bytes);
        says(refusal(path), "section pca_basis holds a value that is not finite");
        CHECK(calibration::load(path, small, {.kinds = kind_bit(kind::skew_basis)})); // nobody asks
    }
}

TEST_CASE("numbers of an adapter that f16 does not have are refused, those of other kinds are kept") {
    const folder here;
    sample s;
    s.adapter[3] = 65519.0F; // rounds to 65504
    s.pca[3] = 1e9F;
    s.write(here.file("a.cal"));
    const auto loaded = calibration::load(here.file("a.cal"), small);
    REQUIRE(loaded);
    CHECK(to_float(loaded->view().adapter(0).row(0)[3]) == 65504.0F);
    CHECK(loaded->view().pca_basis(0, 0).row(0)[3] == 1e9F);
    s.adapter[3] = -65520.0F;
    s.write(here.file("a.cal"));
    says(refusal(here.file("a.cal"), small, kind_bit(kind::joint_adapter)),
         "section joint_adapter holds a value that is not finite or beyond 65504");
}

TEST_CASE("the writer refuses what no reader could use") {
    const sample s;
    calibration_writer out(small, fingerprint);
    const auto why = [](const status& outcome) { return std::string(outcome.what()); };
    CHECK(why(out.add(kind::joint_adapter, 9, s.adapter)) == "joint_adapter: rank 9; valid: 1 to 8");
    CHECK(why(out.add(kind::joint_adapter, 0, {})) == "joint_adapter: rank 0; valid: 1 to 8");
    CHECK(why(out.add(kind::joint_adapter, 2, s.adapter)) == "joint_adapter: 48 numbers instead of 32");
    CHECK(why(out.add(kind::pca_basis, 3, s.pca)) == "pca_basis: rank 3; valid: 4 to 4");
    const std::vector<std::uint32_t> pairs = {0, 1, 2, 0, 1, 0, 0, 1};
    CHECK(why(out.add_channels(2, pairs)) == "channels: pair 2; valid: 0 to 1");
    CHECK(why(out.add_channels(2, s.channels, 3)) == "channels: pair_distance 3; valid: 1 to 2");
    CHECK(!out.add(kind::channels, 2, s.map));
    auto broken = s.skew;
    broken[5] = std::numeric_limits<float>::quiet_NaN();
    CHECK(why(out.add(kind::skew_basis, 4, broken)) == "skew_basis: a value is not finite");
    CHECK(out.add(kind::pca_basis, 4, s.pca));
    CHECK(why(out.add(kind::pca_basis, 4, s.pca)) == "pca_basis: the file has this section already");
    const status unwritten = out.write("/nowhere/at/all.cal");
    CHECK(unwritten.code() == errc::io_error);
    CHECK(says(why(unwritten), "No such file or directory"));
}

TEST_CASE("pairs cover every element of a head once") {
    for (const std::uint32_t distance : {1U, 2U, 4U}) { // of 8 elements: neighbours, 4 turned, all turned
        std::uint32_t seen = 0;
        for (std::uint32_t pair = 0; pair < 4; ++pair) {
            const auto [a, b] = pair_elements(pair, distance);
            seen |= 1U << a | 1U << b;
        }
        CHECK(seen == 0xFFU);
    }
    CHECK(pair_elements(1, 1) == std::pair(2U, 3U));
    CHECK(pair_elements(1, 4) == std::pair(1U, 5U));
    CHECK(pair_elements(3, 2) == std::pair(6U, 7U));
}

TEST_CASE("writing replaces a file only when it is complete") {
    const folder here;
    sample().write(here.file("a.cal"), 1);
    const std::string before = content(here.file("a.cal"));
    std::filesystem::create_directory(here.file("a.cal.part")); // the draft cannot be made
    calibration_writer out(small, 2);
    CHECK(!out.write(here.file("a.cal")));
    CHECK(content(here.file("a.cal")) == before);
}
