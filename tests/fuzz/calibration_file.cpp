// libFuzzer target: any bytes, and edits of a valid file, are loaded as a calibration file of a small model. The checksum of
// the header is made right where the size of the input is no multiple of 4.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/writer.hpp>

#include "support/seeded.hpp"

namespace {

constexpr kvtl::shape model{2, 4, 2, 8};

kvtl_fuzz::bytes make_seed() {
    using kind = kvtl::calibration_kind;
    return kvtl_fuzz::file_of([](const std::string& path) {
        kvtl::calibration_writer out(model, 1);
        const std::vector<float> joint(2 * 16 * 16, 0.5F), heads(2 * 2 * 8 * 8, 0.25F),
            adapter(2 * 4 * 16, 1);
        const std::vector<std::uint32_t> pairs(2 * 2 * 2, 1);
        const bool good = out.add(kind::joint_adapter, 4, adapter).ok() &&
                          out.add(kind::pca_basis, 8, heads).ok() &&
                          out.add(kind::joint_keys, 16, joint, true).ok() &&
                          out.add_channels(2, pairs, 1).ok() && out.write(path).ok();
        if (!good) std::abort();
    });
}

} // namespace

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = make_seed();
    static const kvtl_fuzz::memory_file file;
    kvtl_fuzz::bytes content = kvtl_fuzz::edited(seed, {data, size});
    kvtl::calibration_header header;
    kvtl::calibration_table table{};
    if (size % 4 != 0 && content.size() >= sizeof header + sizeof table) {
        std::memcpy(&header, content.data(), sizeof header);
        std::memcpy(table.data(), content.data() + sizeof header, sizeof table);
        header.checksum = 0;
        header.sections %= static_cast<std::uint32_t>(table.size()) + 1;
        header.checksum = kvtl::checksum_of(header, table);
        std::memcpy(content.data(), &header, sizeof header);
    }
    file.set(content);
    static_cast<void>(kvtl::calibration::load(file.path(), model));
    static_cast<void>(kvtl::calibration::load(file.path(), model, {.rank = 4}));
    return 0;
}
