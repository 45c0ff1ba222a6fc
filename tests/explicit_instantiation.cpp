// An explicit instantiation of a manager puts its calls into the object file: an engine that compiles its
// cache in one translation unit and declares it `extern template` in the others relies on that. Nothing else
// in this file uses the two managers, so what the program's symbols show is what the instantiations emitted.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/snapkv.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <string>

template class kvtl::kv_manager<kvtl::presets::snapkv_group>; // entries are dropped
template class kvtl::kv_manager<kvtl::presets::dynakv>;       // entries go to storage

namespace {

/// What nm prints of this program, names demangled.
std::string symbols() {
    const std::string command =
        std::string(KVTL_NM) + " -C '" + std::filesystem::read_symlink("/proc/self/exe").string() + "'";
    std::FILE* pipe = popen(command.c_str(), "r");
    REQUIRE_MESSAGE(pipe != nullptr, command);
    std::string text(std::size_t{1} << 20, '\0');
    std::size_t size = 0;
    while (const std::size_t n = std::fread(text.data() + size, 1, text.size() - size, pipe))
        if (size += n; size == text.size()) text.resize(2 * size);
    REQUIRE_MESSAGE(pclose(pipe) == 0, command);
    text.resize(size);
    return text;
}

/// A line `ADDRESS T|W kvtl::v0::CLASS<...ARGUMENT...>::CALL(...`: code that other object files can link to.
bool emitted(const std::string& all, const std::string& of, const std::string& argument,
             const std::string& call) {
    const std::string begins = " kvtl::v0::" + of + "<", member = ">::" + call + "(";
    for (std::size_t at = all.find(begins); at != std::string::npos; at = all.find(begins, at + 1)) {
        const std::string_view name = std::string_view(all).substr(at, all.find('\n', at) - at);
        const bool global = at > 0 && (all[at - 1] == 'W' || all[at - 1] == 'T');
        if (global && name.find(argument) != std::string_view::npos &&
            name.find(member) != std::string_view::npos)
            return true;
    }
    return false;
}

} // namespace

TEST_CASE("an explicitly instantiated manager has its calls in the object file") {
    const std::string all = symbols();
    for (const char* preset : {"presets::snapkv_group", "presets::dynakv"})
        for (const char* call : {"open", "save", "load", "resize"}) {
            CAPTURE(std::string(preset));
            CAPTURE(std::string(call));
            CHECK(emitted(all, "kv_manager", preset, call));
        }
    for (const char* policy : {"window_attention", "variance_split"}) // what open() makes
        for (const char* call : {"prefill", "attend", "append", "prefetch", "rewind"}) {
            CAPTURE(std::string(policy));
            CAPTURE(std::string(call));
            CHECK(emitted(all, "shard", policy, call));
        }
    CHECK_FALSE(emitted(all, "kv_manager", "presets::snapkv_group", "no_such_call"));
}
