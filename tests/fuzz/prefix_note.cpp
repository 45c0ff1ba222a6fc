// libFuzzer target: any bytes, and edits of a valid one, are the note of a saved file whose checksums are right, and are read
// as a prefix store does when it finds its files again. A finding is a crash, or a label that contradicts the file.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>
#include <kvtl/store/prefix_note.hpp>

#include "../support/simulated_disk.hpp"
#include "support/seeded.hpp"

namespace {

using file_type = kvtl::basic_saved_file<kvtl_test::simulated_file_ops>;
constexpr std::uint32_t tokens = 6;

} // namespace

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = [] {
        const std::vector<std::uint32_t> text = {1, 2, 3, 4, 5, 6};
        const auto note = kvtl::note_of({.model = 7,
                                         .made = 9,
                                         .tokens = tokens,
                                         .space = {.tenant = "one", .adapter = "", .input = "an image"},
                                         .hashes = {{1, 2}, {3, 4}}},
                                        text);
        kvtl_fuzz::bytes all(note.size());
        std::memcpy(all.data(), note.data(), note.size());
        return all;
    }();
    const kvtl_fuzz::bytes note = kvtl_fuzz::edited(seed, {data, size});
    kvtl_test::simulated_disk disk;
    auto file = file_type::create("seq", 4096, {&disk});
    if (!file || !file->put(kvtl::section_kind::lane, 0, {}) ||
        !file->commit({.tokens = tokens, .model = 7, .note = std::as_bytes(std::span(note))}) ||
        !file->publish())
        std::abort();
    std::vector<std::uint32_t> text;
    const auto label = kvtl::read_label(*file, &text);
    if (label && (label->tokens != tokens || text.size() != tokens || label->hashes.empty() ||
                  label->hashes.size() > tokens))
        std::abort();
    if (label && note.size() != kvtl::note_of(*label, text).size()) std::abort();
    return 0;
}
