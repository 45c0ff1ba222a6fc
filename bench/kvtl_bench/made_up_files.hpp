// Calibration and gates for policies that need a file which was not given.
// SPDX-License-Identifier: MIT
#pragma once

#include "decode.hpp"
#include "error.hpp"
#include "fit_calibration.hpp"
#include "scratch_files.hpp"
#include "stand_ins.hpp"
#include "workload.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace bench {

/// Each is made when a policy first needs it and removed at the end. Options and request must outlive it.
class made_up_files {
  public:
    made_up_files(const decode_options& o, const workload_request& r) : o_(o), request_(r) {}

    /// of_entries: with the bases of entries themselves, which are large. Throws engine::bad_input.
    [[nodiscard]] std::string bases(const std::string& policy, bool of_entries) {
        std::optional<scratch_file>& file = of_entries ? bases_of_entries_ : bases_;
        if (!file) {
            const auto sample = make_calibration_sample(request_);
            file.emplace(o_.kv_path + (of_entries ? ".calibration-entries" : ".calibration"),
                         scratch_file::owner::ours);
            const rotation turned = rope(o_.shape.head_dim, o_.rope_base, sample->neighbours());
            if (auto s = fit_calibration(o_.shape, *sample, file->path(), of_entries ? &turned : nullptr,
                                         largest_rank());
                !s)
                throw engine::bad_input(policy + " needs a calibration file: " + s.what());
        }
        return file->path();
    }
    /// Some gates read the layer's input, others the token's q, k and v. Some attend earlier tokens.
    [[nodiscard]] std::string gates(const std::string& policy, bool read_x, bool attend) {
        std::optional<scratch_file>& file = attend ? attending_gates_ : read_x ? gates_of_x_ : gates_of_qkv_;
        if (!file) {
            const kvtl::shape& s = o_.shape;
            const std::size_t rows = s.query_heads + (read_x ? 0U : 2 * s.kv_heads);
            file.emplace(o_.kv_path + (attend   ? ".gates-attending"
                                       : read_x ? ".gates-x"
                                                : ".gates-qkv"),
                         scratch_file::owner::ours);
            if (auto done =
                    write_random_gates(s, rows * s.head_dim, attend, seed_of(o_.workload), file->path());
                !done)
                throw engine::bad_input(policy + " needs gates: " + done.what());
        }
        return file->path();
    }

    /// Bases with gates of the rate that the settings choose for the policy.
    [[nodiscard]] std::string trained(const std::string& policy) {
        float rate = 0.20F;
        for (const engine::setting& s : o_.settings)
            if (s.policy == policy && s.slot == "compressor" && s.field == "rate")
                rate = std::strtof(s.value.c_str(), nullptr);
        std::optional<scratch_file>& file = trained_[policy];
        if (!file) {
            file.emplace(o_.kv_path + ".trained-" + policy, scratch_file::owner::ours);
            if (auto done = write_level_gates(o_.shape, bases(policy, true), rate, file->path()); !done)
                throw engine::bad_input(policy + " needs bases with gates: " + done.what());
        }
        return file->path();
    }

  private:
    /// Of the joint directions that settings ask for.
    [[nodiscard]] std::uint32_t largest_rank() const {
        std::uint32_t rank = 0;
        for (const engine::setting& s : o_.settings)
            if (s.slot == "index" && s.field == "rank")
                rank = std::max(rank, static_cast<std::uint32_t>(std::strtoul(s.value.c_str(), nullptr, 10)));
        return rank;
    }

    const decode_options& o_;
    const workload_request& request_;
    std::optional<scratch_file> bases_, bases_of_entries_, gates_of_x_, gates_of_qkv_, attending_gates_;
    std::map<std::string, std::optional<scratch_file>> trained_;
};

} // namespace bench
