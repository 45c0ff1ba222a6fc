// libFuzzer target: any bytes, and edits of a valid file, are opened as a trace, and all of its records are read.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/trace_reader.hpp>
#include <kvtl/calibration/trace_writer.hpp>

#include "support/seeded.hpp"

namespace {

kvtl_fuzz::bytes make_seed() {
    return kvtl_fuzz::file_of([](const std::string& path) {
        const kvtl::shape model{2, 4, 2, 8};
        auto out = kvtl::trace_writer::create(path, {.shape = model});
        if (!out) std::abort();
        const std::vector<float> q(3 * 32, 1), k(3 * 16, 2);
        for (std::uint32_t layer = 0; layer < 2; ++layer) out->write(0, layer, {.q = q, .k = k, .v = k});
        if (!out->close(2, 3)) std::abort();
    });
}

} // namespace

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = make_seed();
    static const kvtl_fuzz::memory_file file;
    file.set(kvtl_fuzz::edited(seed, {data, size}));
    auto in = kvtl::trace_reader::open(file.path());
    if (!in) return 0;
    const kvtl::trace_header& h = in->header();
    for (std::uint64_t t = 0; t < std::min<std::uint64_t>(h.tokens, 8); ++t)
        for (std::uint32_t l = 0; l < std::min(h.shape.layers, 8U); ++l) static_cast<void>(in->read(t, l));
    static_cast<void>(in->read(h.tokens - 1, h.shape.layers - 1));
    return 0;
}
