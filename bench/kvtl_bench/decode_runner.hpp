// A row of kvtl-bench decode while it is made: one policy at one budget, its cache, its prompt and its steps.
//
//   runner r(options, "dynakv", budget, false, 1, "run.kv");
//   r.open(files), r.prefill(w, bar), r.begin_run(device, 0, steps);
//   while (!r.finished()) data.generate(r.position()), r.step(data, false);
//   rows.push_back(r.row(before, after));
//
// Errors: what cannot be opened is engine::bad_input, what fails later engine::run_failure. attempt() makes either a runner
// that has failed, whose rows say why.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/views.hpp>

#include "decode.hpp"
#include "made_up_files.hpp"
#include "progress.hpp"
#include "random_reads.hpp"
#include "recall_samples.hpp"
#include "scratch_files.hpp"
#include "size_probe.hpp"
#include "thread_pool.hpp"
#include "workload.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// The budgets of a row.
struct budgets {
    std::size_t attend_tokens = 0, keep_tokens = 0;
    double memory_mib = 0;
    bool operator==(const budgets&) const = default;
};

/// Tokens that a sequence may come to hold when `runs` rows are measured one after the other.
[[nodiscard]] std::size_t most_tokens(const decode_options& o, std::size_t runs);

/// All of a row's options but where its file lies.
[[nodiscard]] engine::cache_options options_of(const decode_options& o, const std::string& policy,
                                               const budgets& b, std::size_t runs);

/// Of a policy that takes no part.
[[nodiscard]] nlohmann::ordered_json failed_row(const decode_options& o, const std::string& policy,
                                                const budgets& b, const kvtl::device_profile& device,
                                                bool simulated, const std::string& why);

/// One token of every sequence and layer, generated before the step that uses it.
class step_rows {
  public:
    step_rows(workload& w, std::size_t batch, std::uint64_t seed);

    void generate(std::size_t token);

    /// Of all sequences, one row each.
    [[nodiscard]] kvtl::layer_input input(std::uint32_t l);
    [[nodiscard]] std::span<const float> query(std::size_t b, std::uint32_t l) {
        return at(q_, b, l, query_);
    }
    /// Of all sequences.
    [[nodiscard]] std::span<const float> guesses(std::uint32_t l) const {
        return std::span(guess_).subspan(l * batch_ * query_, batch_ * query_);
    }

    bool with_k_pre = false, with_guess = false; ///< set once it is known what the policies want

  private:
    [[nodiscard]] std::span<float> at(std::vector<float>& all, std::size_t b, std::uint32_t l,
                                      std::size_t n) const {
        return std::span(all).subspan((l * batch_ + b) * n, n);
    }

    workload& w_;
    std::size_t batch_, query_, key_, heads_;
    std::uint64_t seed_;
    std::vector<float> q_, k_, v_, k_pre_, guess_, external_;
};

/// A policy with its cache, as far as its prompt and steps have come. Options must outlive it.
class runner {
  public:
    runner(const decode_options& o, std::string policy, const budgets& b, bool in_memory, std::size_t runs,
           const std::string& path);

    /// The size knob goes so many turns beyond the largest index that fits, as `probed` says why.
    void set_size(unsigned turns, nlohmann::ordered_json probed = nullptr);

    [[nodiscard]] kvtl::result<engine::memory_use> least(made_up_files& files);

    void open(made_up_files& files);

    /// Reads the prompt in, without attention, at the device's own speed.
    void prefill(workload& w, engine::progress_bar& bar);

    /// From here on it has another budget, of which only the memory differs. Throws engine::bad_input when its open cache
    /// cannot have so much or so little, and is as it was.
    void resize(const budgets& b);

    /// From here on the device is this one, and so long the rest of a layer; counting begins anew after the warm-up.
    void begin_run(const kvtl::device_profile& device, double compute_us_per_layer, std::size_t steps);

    [[nodiscard]] bool finished() const;

    /// One token of all sequences through all layers. `recall` samples the mass of some layers.
    void step(step_rows& rows, bool recall);

    /// Whether mass_recall looks at the next step.
    [[nodiscard]] bool samples_recall() const {
        return done_ >= decode_options::warm_up && samples_.has(done_ - decode_options::warm_up);
    }

    /// Adds up what share of full attention's mass the last step attended, where that was sampled.
    void sample_recall(workload& w, step_rows& rows);

    /// call(), unless something has failed before. What it throws is why this takes no part any longer: it is finished, and
    /// its cache closed.
    template <class Call> void attempt(Call&& call) {
        if (failed()) return;
        try {
            call();
        } catch (const std::runtime_error& e) {
            failure_ = e.what();
            cache_.reset();
        }
    }
    [[nodiscard]] bool failed() const { return failure_.has_value(); }

    [[nodiscard]] nlohmann::ordered_json row(const device_probes& before, const device_probes& after) const;
    [[nodiscard]] tried_size tried() const;
    [[nodiscard]] std::size_t position() const { return position_; }
    [[nodiscard]] const engine::cache_wants& wants() const { return wants_; }
    [[nodiscard]] std::size_t done() const { return done_; }

  private:
    /// Calibration and gates, made up where they are not given.
    void supply(made_up_files& files);
    /// The shard's part of a layer, of all sequences.
    [[nodiscard]] kvtl::status layer(step_rows& rows, std::uint32_t l, bool recall, unsigned shard) noexcept;
    /// What a layer's queries have seen: (batch, HQ).
    [[nodiscard]] std::span<float> lse_of(std::uint32_t l) noexcept;
    /// call(shard) for every shard of the cache, on whichever thread is free.
    template <class Call> void on_shards(const Call& call);
    /// How many of the last step's units the step before had chosen too.
    void note_reuse(const kvtl::statistics& now);

    const decode_options& o_;
    std::string policy_;
    budgets at_;
    bool in_memory_;
    std::optional<scratch_file> file_; ///< outlives the cache
    engine::cache_options options_;
    std::shared_ptr<kvtl::throttle> limit_;
    std::unique_ptr<engine::kv_cache> cache_;
    engine::cache_wants wants_;
    std::vector<std::string> stand_ins_;
    std::vector<kvtl::sequence_id> sequences_;
    std::vector<kvtl::batch_part> parts_; ///< a step of each
    std::vector<float> out_, lse_;        ///< (batch, HQ, D) and (L, batch, HQ)
    engine::thread_pool threads_;
    std::vector<kvtl::status> said_; ///< (shards)
    kvtl::device_profile device_;
    double compute_us_ = 0;
    recall_samples samples_;
    engine::cache_stats before_;
    kvtl::statistics last_; ///< after the last step
    std::vector<double> step_s_, reuse_;
    double prefill_s_ = 0, seconds_ = 0, cpu_s_ = 0, recall_sum_ = 0;
    std::size_t position_ = 0, begun_ = 0, done_ = 0, recall_count_ = 0, steps_ = 0;
    nlohmann::ordered_json probed_; ///< the sizes that were tried before this one was taken
    std::optional<std::string> failure_;
};

} // namespace bench
