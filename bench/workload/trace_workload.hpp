// A recorded trace (kvtl/calibration/trace_format.hpp), replayed. A trace holds one sequence; all sequences of a batch are it.
// Where no prediction was recorded (the prompt, the first layer) the query itself stands in.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/trace_reader.hpp>

#include "error.hpp"
#include "workload.hpp"

#include <algorithm>
#include <string>

namespace bench {

class trace_workload final : public workload {
  public:
    /// `neighbours`: of a file that does not say. Throws engine::bad_input.
    explicit trace_workload(const std::string& path, bool neighbours = false)
        : trace_(engine::insist(kvtl::trace_reader::open(path))),
          neighbours_(trace_.header().pair_distance == 0 ? neighbours : trace_.header().pair_distance == 1) {
        engine::insist(trace_.require(true, true));
    }

    /// Throws engine::bad_input that names both shapes.
    void require_shape(const kvtl::shape& shape) const { engine::insist(trace_.require_shape(shape)); }

    [[nodiscard]] const kvtl::shape& shape() const noexcept override { return trace_.header().shape; }
    [[nodiscard]] std::size_t tokens() const noexcept override { return trace_.header().tokens; }
    [[nodiscard]] std::size_t prompt_tokens() const noexcept override {
        return trace_.header().prompt_tokens;
    }
    [[nodiscard]] bool neighbours() const noexcept override { return neighbours_; }
    void rows(std::size_t /*sequence*/, std::uint32_t layer, std::size_t first, std::size_t count,
              const token_rows& out) override {
        for (std::size_t i = 0; i < count; ++i) {
            const kvtl::trace_entry e = engine::insist(trace_.read(first + i, layer));
            const auto put = [i](std::span<const float> from, std::span<float> to) {
                if (!to.empty() && !from.empty())
                    std::copy(from.begin(), from.end(), to.subspan(i * from.size()).begin());
            };
            put(e.q, out.q);
            put(e.k, out.k);
            put(e.v, out.v);
            if (!out.k_pre.empty() && e.k_pre.empty())
                throw engine::run_failure("the trace has no keys before RoPE, which the policy needs");
            put(e.k_pre, out.k_pre);
            put(e.prediction.empty() ? e.q : e.prediction, out.prediction);
        }
    }

  private:
    kvtl::trace_reader trace_;
    bool neighbours_;
};

} // namespace bench
