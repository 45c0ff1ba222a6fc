// SPDX-License-Identifier: MIT
#include "fit_calibration.hpp"

#include <kvtl/calibration/fit/calibration_fit.hpp>
#include <kvtl/policies/support/position_table.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

namespace bench {

namespace {

class position_turns {
  public:
    position_turns(const rotation& r, std::uint32_t dim, std::size_t tokens) : dim_(dim) {
        const auto pairs = static_cast<std::uint32_t>(r.frequencies.size()),
                   most = static_cast<std::uint32_t>(tokens);
        memory_.resize(kvtl::position_table::bytes(pairs, most) / sizeof(float));
        table_ = kvtl::position_table(std::as_writable_bytes(std::span(memory_)), r.frequencies, most,
                                      r.neighbours);
    }
    /// keys: (tokens, H, D), to what they were before RoPE.
    void take_back(std::vector<float>& keys, std::size_t tokens) const {
        const std::size_t row = keys.size() / tokens;
        for (std::size_t i = 0; i < keys.size(); i += dim_)
            table_.turn_back(keys.data() + i, static_cast<std::uint32_t>(i / row));
    }

  private:
    std::uint32_t dim_;
    std::vector<float> memory_;
    kvtl::position_table table_;
};

} // namespace

kvtl::status fit_calibration(const kvtl::shape& shape, workload& sample, const std::string& path,
                             const rotation* turned, std::uint32_t rank) {
    constexpr std::uint64_t any_model = 0; // generated data have no weights to belong to
    try {
        const auto keys_wide = static_cast<std::uint32_t>(sample.key_floats());
        // Policies keep an eighth of the directions unless they are told otherwise; small models up to a head's worth.
        auto fit = kvtl::calibration_fit::make(
            shape, {.rank = std::min(keys_wide, std::max({64U, keys_wide / 8, rank})),
                    .pair_distance = sample.neighbours() ? 1 : shape.head_dim / 2});
        if (!fit) return kvtl::status::failure(fit.error().code, "%s", fit.error().message.c_str());
        const std::size_t tokens = sample.prompt_tokens();
        std::vector<float> keys(tokens * sample.key_floats()), values(keys.size()), before,
            queries(tokens * sample.query_floats());
        std::optional<position_turns> turns;
        if (turned != nullptr) turns.emplace(*turned, shape.head_dim, tokens);
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
            sample.rows(0, layer, 0, tokens, {.q = queries, .k = keys, .v = values});
            kvtl::layer_input in{.q = queries, .k = keys};
            if (turns) {
                before = keys;
                turns->take_back(before, tokens);
                in.v = values, in.k_pre = before;
            }
            if (auto s = fit->add(layer, in); !s) return s;
        }
        const auto bases = fit->finish();
        if (!bases) return kvtl::status::failure(bases.error().code, "%s", bases.error().message.c_str());
        return bases->write(path, any_model);
    } catch (const std::exception& e) {
        return kvtl::status::failure(kvtl::errc::io_error, "%s", e.what());
    }
}

} // namespace bench
