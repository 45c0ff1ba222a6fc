// libFuzzer target: any bytes, and edits of a valid one, are a manifest of a remote tier. A finding is a crash, or a manifest that is
// not written as it was read.
// SPDX-License-Identifier: MIT
#include <kvtl/store/remote_manifest.hpp>

#include "support/seeded.hpp"

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = [] {
        kvtl::remote_manifest m{
            .header = {.chunk_bytes = 65536, .file_bytes = 131072 + 64, .model = 7, .tokens = 5},
            .sums = {1, 2, 3},
            .space = {.tenant = "one", .input = "an image"},
            .tokens = {1, 2, 3, 4, 5}};
        m.header.space_bytes = static_cast<std::uint32_t>(m.space.bytes().size());
        const auto all = kvtl::bytes_of(m);
        kvtl_fuzz::bytes bytes(all.size());
        std::memcpy(bytes.data(), all.data(), all.size());
        return bytes;
    }();
    const kvtl_fuzz::bytes input = kvtl_fuzz::edited(seed, {data, size});
    const auto m = kvtl::parse_manifest(std::as_bytes(std::span(input)));
    if (!m) return 0;
    const auto again = kvtl::bytes_of(*m);
    if (again.size() != input.size() || std::memcmp(again.data(), input.data(), input.size()) != 0)
        std::abort();
    return 0;
}
