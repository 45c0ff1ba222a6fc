// libFuzzer target: any bytes are opened as a saved file, and all of it is read and saved to again.
//
//   saved_file [corpus] -max_len=65536
//
// The checksums of superblocks and root are made right first where the last byte is odd, so that what stands behind them is
// reached too. A finding is a crash, a sanitizer's report, or memory that the file's length does not bound.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>

#include "../support/saved_model.hpp"
#include "../support/simulated_disk.hpp"
#include "support/seeded.hpp"

namespace {

using namespace kvtl;
using file_type = basic_saved_file<kvtl_test::simulated_file_ops>;

void mend(std::span<std::byte> file) {
    for (std::size_t slot = 0; slot < 2; ++slot) {
        saved_superblock s;
        if (file.size() < slot * 4096 + sizeof s) return;
        std::memcpy(&s, file.data() + slot * 4096, sizeof s);
        s.magic = saved_magic;
        s.byte_order = saved_byte_order;
        s.format = saved_format_version;
        s.page_bytes = 4096;
        s.generation = s.generation % 1000 * 2 + slot;
        const std::uint64_t begin = s.root_block * std::uint64_t{4096},
                            n = blocks_of(s.root_bytes % 65536, 4096) * 4096;
        s.root_bytes %= 65536;
        if (begin + n <= file.size())
            s.root_checksum = saved_checksum(s.file_id, {section_kind::root, 0, s.root_block, s.generation},
                                             std::span<const std::byte>(file).subspan(begin, n));
        s.checksum = superblock_checksum(s);
        std::memcpy(file.data() + slot * 4096, &s, sizeof s);
    }
}

} // namespace

/// A file of one generation and of three.
std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    std::vector<bytes> all;
    for (const std::uint64_t generations : {1U, 3U}) {
        kvtl_test::simulated_disk disk;
        std::mt19937_64 random(5);
        std::vector<kvtl_test::saved_model> models(1);
        {
            auto file = file_type::create("seq", 4096, {&disk});
            if (!file) std::abort();
            for (std::uint64_t g = 1; g <= generations; ++g) {
                models.push_back(kvtl_test::saved_model::next(models.back(), random, 3000, 2, 3));
                if (!kvtl_test::write_model(*file, models[g], models[g - 1], random) || !file->publish())
                    std::abort();
            }
        }
        const auto& seen = disk.seen.at("seq")->seen;
        for (const std::uint8_t mends : {std::uint8_t{0}, std::uint8_t{1}}) { // the last byte says so
            bytes& input = all.emplace_back(seen.size());
            std::memcpy(input.data(), seen.data(), seen.size());
            input.push_back(mends);
        }
    }
    return all;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    kvtl_test::simulated_disk disk;
    auto& bytes = (disk.seen["seq"] = std::make_shared<kvtl_test::simulated_disk::file>())->seen;
    bytes.resize(size);
    if (size != 0) std::memcpy(bytes.data(), data, size);
    if (size != 0 && data[size - 1] % 2 != 0) mend(bytes);
    auto file = file_type::open("seq", {&disk});
    if (!file) return 0;
    std::vector<std::byte> into(file->facts().page_bytes);
    for (const saved_section& s : file->sections()) {
        for (std::uint64_t at = 0; at < s.bytes; at += into.size()) {
            const auto n = std::min<std::uint64_t>(into.size(), s.bytes - at);
            if (!file->get(s, at, std::span(into).first(n))) break;
            if (s.kind != section_kind::pages) continue;
            for (std::size_t r = 0; r + sizeof(block_ref) <= n; r += sizeof(block_ref)) {
                block_ref ref;
                std::vector<std::byte> page(into.size());
                std::memcpy(&ref, into.data() + r, sizeof ref);
                (void)file->get_pages(std::span(&ref, 1), page);
            }
        }
    }
    (void)file->identity();
    (void)file->note();
    if (file->put(section_kind::lane, 0, into) && file->commit({})) (void)file->publish();
    return 0;
}
