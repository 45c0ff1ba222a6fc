// Runs a fuzz target without libFuzzer, so that any compiler and the tests can: the seeds, mutated copies of them, and files.
//
//   replay_TARGET                   seeds, and 2,000 mutated copies (KVTL_FUZZ_RUNS: so many), always the same
//   replay_TARGET FILE...           these inputs, such as libFuzzer's crash-*
//   replay_TARGET --corpus FOLDER   writes the seeds to files, for libFuzzer to begin with
// SPDX-License-Identifier: MIT
#include "seeded.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using kvtl_fuzz::bytes;
using engine_type = std::mt19937_64;

std::ptrdiff_t below(engine_type& random, std::size_t n) {
    return static_cast<std::ptrdiff_t>(random() % n);
}

/// One to eight changes of the kinds that libFuzzer makes.
bytes mutated(const std::vector<bytes>& seeds, engine_type& random) {
    bytes input = seeds[random() % seeds.size()];
    static constexpr std::uint8_t edges[] = {0, 1, 2, 4, 0x7F, 0x80, 0xFE, 0xFF};
    for (std::uint64_t changes = 1 + random() % 8; changes > 0; --changes) {
        const auto at = below(random, input.size() + 1);
        const std::size_t left = input.size() - static_cast<std::size_t>(at);
        switch (random() % 6) {
        case 0:
            if (left > 0)
                input[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1U << random() % 8);
            break;
        case 1: // a number of 1 to 8 bytes
            for (std::size_t i = 0, n = std::min<std::size_t>(left, std::size_t{1} << random() % 4); i < n;
                 ++i)
                input[static_cast<std::size_t>(at) + i] = edges[random() % std::size(edges)];
            break;
        case 2:
            input.insert(input.begin() + at, 1 + random() % 4, static_cast<std::uint8_t>(random()));
            break;
        case 3:
            if (left > 0)
                input.erase(input.begin() + at,
                            input.begin() + at + 1 + below(random, std::min<std::size_t>(left, 8)));
            break;
        case 4: // a piece of another one
        {
            const bytes& other = seeds[random() % seeds.size()];
            const auto from = below(random, other.size() + 1);
            const std::size_t n =
                std::min<std::size_t>(other.size() - static_cast<std::size_t>(from), random() % 64);
            input.insert(input.begin() + at, other.begin() + from,
                         other.begin() + from + static_cast<std::ptrdiff_t>(n));
            break;
        }
        default:
            if (random() % 8 == 0) input.resize(static_cast<std::size_t>(at));
        }
    }
    return input;
}

/// From a copy of its own size, so that a read beyond it is seen.
void run(const bytes& input) {
    const bytes exact(input);
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

} // namespace

int main(int argc, char** argv) {
    const std::vector<bytes> seeds = kvtl_fuzz::seeds();
    if (argc == 3 && std::string_view(argv[1]) == "--corpus") {
        for (std::size_t i = 0; i < seeds.size(); ++i) {
            std::ofstream out(argv[2] + ("/seed-" + std::to_string(i)), std::ios::binary);
            out.write(reinterpret_cast<const char*>(seeds[i].data()),
                      static_cast<std::streamsize>(seeds[i].size()));
            if (!out.flush()) {
                std::fprintf(stderr, "cannot write a seed to %s\n", argv[2]);
                return 2;
            }
        }
        return 0;
    }
    for (int i = 1; i < argc; ++i) {
        std::ifstream in(argv[i], std::ios::binary);
        if (!in) {
            std::fprintf(stderr, "cannot read %s\n", argv[i]);
            return 2;
        }
        run({std::istreambuf_iterator<char>(in), {}});
    }
    if (argc > 1) return 0;
    const char* const asked = std::getenv("KVTL_FUZZ_RUNS");
    const std::uint64_t runs = asked == nullptr ? 2000 : std::strtoull(asked, nullptr, 10);
    engine_type random(1);
    for (const bytes& seed : seeds) run(seed);
    for (std::uint64_t i = 0; i < runs; ++i) run(mutated(seeds, random));
    std::printf("%zu seeds, %llu mutated copies\n", seeds.size(), static_cast<unsigned long long>(runs));
    return 0;
}
