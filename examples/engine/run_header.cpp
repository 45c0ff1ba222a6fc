// SPDX-License-Identifier: MIT
#include "run_header.hpp"

#include <cstdio>
#include <filesystem>

namespace engine {

namespace {

std::string counted(unsigned n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

} // namespace

std::string header_line(const run_facts& f) {
    std::string text = std::filesystem::path(f.model).filename().string() + " (" +
                       counted(f.shape.layers, "layer") + ", " + counted(f.shape.query_heads, "query head") +
                       ", " + counted(f.shape.kv_heads, "KV head") + " of " +
                       std::to_string(f.shape.head_dim) + "), ";
    if (f.policies.size() > 4)
        text += std::to_string(f.policies.size()) + " policies, ";
    else
        for (const std::string& policy : f.policies) text += policy + ", ";
    for (std::size_t i = 0; i < f.memory_mib.size(); ++i) {
        char number[32];
        std::snprintf(number, sizeof number, "%s%g", i == 0 ? "" : " and ", f.memory_mib[i]);
        text += number;
    }
    if (!f.memory_mib.empty()) text += " MiB, ";
    if (!f.device.empty()) text += f.device + ", ";
    if (f.threads != 0) return text + counted(f.threads, "thread");
    return text.substr(0, text.size() - 2); // without the last comma
}

std::string device_words(const std::string& io, bool direct, bool memory_backed) {
    if (memory_backed && io != "memory") return io + " (a file in memory)";
    return direct ? io + " (direct)" : io;
}

void print_header(const char* program, const run_facts& facts) {
    std::fprintf(stderr, "%s: %s\n", program, header_line(facts).c_str());
}

void note_products(const char* program, const std::string& policy, const std::string& products) {
    if (products.starts_with("exact:"))
        std::fprintf(stderr, "%s: note: %s has no relaxed products; %s\n", program, policy.c_str(),
                     products.c_str());
}

} // namespace engine
