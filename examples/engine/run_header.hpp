// The line on standard error that says what a program runs on, once everything is open and before the long part begins.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include <string>
#include <vector>

namespace engine {

struct run_facts {
    std::string model; ///< its file, of which the name is said, or the name of a shape
    kvtl::shape shape;
    std::vector<std::string> policies;
    std::vector<double> memory_mib; ///< one, or one after the other
    std::string device;             ///< "uring (direct)"
    unsigned threads = 1;           ///< 0: no engine ran
};

/// "tiny-2k.gguf (6 layers, 4 query heads, 2 KV heads of 64), dynakv, 64 MiB, uring (direct), 2 threads". Of more than
/// four policies only the number is said; what there is none of is left out.
[[nodiscard]] std::string header_line(const run_facts& facts);

/// "uring (direct)", of what really ran.
/// `memory_backed`: a file that lies in memory is no flash.
[[nodiscard]] std::string device_words(const std::string& io, bool direct, bool memory_backed = false);

/// The program's name and that line, on standard error.
void print_header(const char* program, const run_facts& facts);

/// A line on standard error where a cache has exact products although relaxed ones were asked for, with what is missing.
/// `products`: cache_stats::products.
void note_products(const char* program, const std::string& policy, const std::string& products);

} // namespace engine
