// What a trainer or the engine's user would supply, made up: enough to measure time and bytes of policies
// that need it, nothing to measure quality with. Rows say so ("stand_ins").
//
//   gates     normal weights of variance 1 / inputs, no hidden units (kvtl/calibration/gate_weights.hpp)
//   trained   principal directions for trained ones, and gates that give every row the same rank
//   mask      a number in (0, 1] for half of the entries, 0 for the others
//   x         the token's queries stand in for the layer's input: as wide, and as different from token to token
//   probes    the predicted queries of the next `probes` tokens: true ones with the noise of a prediction
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace bench {

inline constexpr std::size_t probes = 8;

/// The seed of everything that is made up beside a workload: equal texts, equal numbers, whatever their knobs.
[[nodiscard]] std::uint64_t seed_of(std::string_view workload) noexcept;

/// Gates that read `inputs` numbers per token, and attend earlier tokens or not, into a file for cache_options::gates.
[[nodiscard]] kvtl::status write_random_gates(const kvtl::shape& shape, std::size_t inputs, bool attend,
                                              std::uint64_t seed, const std::string& path);

/// The sections that only training makes, for a model whose bases are in `bases`: the same directions, and gates of
/// `rate`.
[[nodiscard]] kvtl::status write_level_gates(const kvtl::shape& shape, const std::string& bases, float rate,
                                             const std::string& path);

/// The mask of one token, a number per KV head. A sequence's first token is wanted by all heads.
void random_mask(std::uint64_t seed, std::size_t sequence, std::uint32_t layer, std::size_t token,
                 std::span<float> out) noexcept;

} // namespace bench
