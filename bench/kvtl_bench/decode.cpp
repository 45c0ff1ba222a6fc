// SPDX-License-Identifier: MIT
#include "decode.hpp"

#include <kvtl/element.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>

#include "error.hpp"
#include "made_up_files.hpp"
#include "mapped_file.hpp"
#include "median_interval.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "random_reads.hpp"
#include "scratch_files.hpp"
#include "size_probe.hpp"
#include "stand_ins.hpp"
#include "thread_pool.hpp"
#include "workload.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace bench {

namespace {

using json = nlohmann::ordered_json;
using clock = std::chrono::steady_clock;

constexpr std::size_t prompt_chunk = 1024;
constexpr std::size_t recall_every = 8; ///< steps, and layers

double seconds_since(clock::time_point begin) {
    return std::chrono::duration<double>(clock::now() - begin).count();
}

void require(const kvtl::status& s) {
    if (!s) throw engine::run_failure(s.what());
}

/// Tokens that a sequence may come to hold when `runs` rows are measured one after the other.
std::size_t most_tokens(const decode_options& o, std::size_t runs) {
    return o.context + runs * (decode_options::warm_up + o.steps);
}

/// One token of every sequence and layer, generated before the step that uses it.
class step_rows {
  public:
    step_rows(workload& w, std::size_t batch, std::uint64_t seed)
        : w_(w), batch_(batch), query_(w.query_floats()), key_(w.key_floats()), heads_(w.shape().kv_heads),
          seed_(seed) {
        const std::size_t n = batch * w.shape().layers;
        q_.resize(n * query_), guess_.resize(n * query_);
        k_.resize(n * key_), v_.resize(n * key_), k_pre_.resize(n * key_);
        external_.resize(n * heads_);
    }

    void generate(std::size_t token) {
        for (std::uint32_t l = 0; l < w_.shape().layers; ++l)
            for (std::size_t b = 0; b < batch_; ++b) {
                random_mask(seed_, b, l, token, at(external_, b, l, heads_));
                w_.rows(b, l, token, 1,
                        {.q = at(q_, b, l, query_),
                         .k = at(k_, b, l, key_),
                         .v = at(v_, b, l, key_),
                         .k_pre = with_k_pre ? at(k_pre_, b, l, key_) : std::span<float>{},
                         .prediction = with_guess ? at(guess_, b, l, query_) : std::span<float>{}});
            }
    }

    /// Of all sequences, one row each.
    [[nodiscard]] kvtl::layer_input input(std::uint32_t l) {
        const auto of_layer = [&](std::vector<float>& all) {
            const std::size_t n = all.size() / w_.shape().layers;
            return std::span(all).subspan(l * n, n);
        };
        kvtl::layer_input in;
        in.q = of_layer(q_), in.x = of_layer(q_), in.k = of_layer(k_), in.v = of_layer(v_);
        if (with_k_pre) in.k_pre = of_layer(k_pre_);
        in.external = of_layer(external_);
        return in;
    }
    [[nodiscard]] std::span<const float> query(std::size_t b, std::uint32_t l) {
        return at(q_, b, l, query_);
    }
    [[nodiscard]] std::span<const float> guess(std::size_t b, std::uint32_t l) {
        return at(guess_, b, l, query_);
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

/// Log of the sum of exp(logit) over all tokens [0, tokens) for every query head: what full attention sees.
/// In f16, as caches hold keys.
std::vector<double> full_lse(workload& w, std::uint32_t layer, std::size_t tokens, std::span<const float> q) {
    const kvtl::shape& s = w.shape();
    const std::size_t key = w.key_floats(), dim = s.head_dim, group = s.query_heads / s.kv_heads;
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    std::vector<double> largest(s.query_heads, -std::numeric_limits<double>::infinity()),
        sum(s.query_heads, 0.0);
    std::vector<float> keys(prompt_chunk * key);
    std::vector<kvtl::f16> half(keys.size());
    for (std::size_t first = 0; first < tokens; first += prompt_chunk) {
        const std::size_t n = std::min(prompt_chunk, tokens - first);
        w.rows(0, layer, first, n, {.k = std::span(keys).first(n * key)});
        kvtl::simd::encode(keys.data(), half.data(), n * key);
        for (std::size_t h = 0; h < s.query_heads; ++h)
            for (std::size_t t = 0; t < n; ++t) {
                const double x =
                    scale * static_cast<double>(kvtl::simd::dot(
                                q.data() + h * dim, half.data() + t * key + h / group * dim, dim));
                if (x > largest[h]) sum[h] *= std::exp(largest[h] - x), largest[h] = x;
                sum[h] += std::exp(x - largest[h]);
            }
    }
    for (std::size_t h = 0; h < s.query_heads; ++h) sum[h] = largest[h] + std::log(sum[h]);
    return sum;
}

/// The budgets of a row.
struct budgets {
    std::size_t attend_tokens = 0, keep_tokens = 0;
    double memory_mib = 0;
    bool operator==(const budgets&) const = default;
};

/// A policy at a budget.
struct entry {
    std::string policy;
    budgets at;
    bool operator==(const entry&) const = default;
};

std::vector<budgets> budgets_of(const decode_options& o) {
    std::vector<budgets> all;
    for (const std::size_t attend : o.attend_tokens)
        for (const std::size_t keep : o.keep_tokens)
            for (const double mib : o.memory_mib) all.push_back({attend, keep, mib});
    return all;
}

/// A policy has a row for each value of the budgets that it has, not of the others.
bool is_repeated(const decode_options& o, const std::string& policy, const budgets& b) {
    const engine::cache_wants wants = wants_of(policy);
    const bool attends = wants.retrieves || b.keep_tokens == 0;
    return (!wants.evicts && b.keep_tokens != o.keep_tokens.front()) ||
           (!attends && b.attend_tokens != o.attend_tokens.front());
}

/// All of a row's options but where its file lies.
engine::cache_options options_of(const decode_options& o, const std::string& policy, const budgets& b,
                                 std::size_t runs) {
    engine::cache_options c;
    c.policy = policy;
    c.shape = o.shape;
    c.max_tokens = most_tokens(o, runs);
    c.max_sequences = o.batch;
    c.memory_bytes = static_cast<std::size_t>(b.memory_mib * (1 << 20));
    c.attend_tokens = b.attend_tokens;
    if (wants_of(policy).evicts) c.keep_tokens = b.keep_tokens;
    c.prefill_tokens = o.context;
    c.supplied = engine::engine_signals | kvtl::signal::external;
    rotation turned = rope(o.shape.head_dim, o.rope_base, o.rope_neighbours);
    c.rope_frequencies = std::move(turned.frequencies);
    c.rope_neighbours = turned.neighbours;
    c.calibration = o.calibration;
    c.gates = o.gates;
    c.shards = o.shards != 0 ? o.shards : o.threads;
    c.time_phases = true;
    c.settings = o.settings;
    c.fit = o.fit;
    return c;
}

workload_request request_of(const decode_options& o) {
    return {.text = o.workload,
            .shape = o.shape,
            .prompt_tokens = o.context,
            .tokens = most_tokens(o, o.runs(o.devices.size())),
            .sequences = o.batch,
            .rope_base = o.rope_base};
}

/// A policy with its cache, as far as its prompt and steps have come.
class runner {
  public:
    runner(const decode_options& o, std::string policy, const budgets& b, bool in_memory, std::size_t runs,
           const std::string& path)
        : o_(o), policy_(std::move(policy)), in_memory_(in_memory), file_(path),
          limit_(std::make_shared<kvtl::throttle>()), wants_(wants_of(policy_)), threads_(o.threads) {
        options_ = options_of(o, policy_, b, runs);
        options_.io = in_memory ? "memory" : o.io;
        options_.path = path;
        options_.limit = limit_;
        lse_.resize(std::size_t{o.shape.layers} * o.batch * o.shape.query_heads);
        out_.resize(o.batch * o.shape.query_heads * o.shape.head_dim);
    }

    /// Calibration and gates, made up where they are not given.
    void supply(made_up_files& files) {
        const auto needs = [&](kvtl::signal s) { return contains(wants_.signals, s); };
        if (wants_.trained) {
            if (o_.gates.empty()) {
                options_.gates = files.trained(policy_);
                stand_ins_.push_back("level gates");
            }
        } else if (needs(kvtl::signal::calibration) && o_.calibration.empty())
            options_.calibration = files.bases(policy_, wants_.entry_bases);
        if (wants_.gates && o_.gates.empty()) {
            options_.gates = files.gates(policy_, needs(kvtl::signal::x));
            stand_ins_.push_back("random gates");
        }
        if (needs(kvtl::signal::x)) stand_ins_.push_back("queries as x");
        if (needs(kvtl::signal::external)) stand_ins_.push_back("random mask");
        if (needs(kvtl::signal::probe)) stand_ins_.push_back("predicted queries as probes");
    }

    /// The size knob goes so many turns beyond the largest index that fits, as `probed` says why.
    void set_size(unsigned turns, json probed = nullptr) {
        options_.turns = turns;
        probed_ = std::move(probed);
    }

    [[nodiscard]] kvtl::result<engine::memory_use> least(made_up_files& files) {
        supply(files);
        return least_memory_of(options_);
    }

    void open(made_up_files& files) {
        supply(files);
        auto opened = open_policy(options_);
        if (!opened && opened.error().code == kvtl::errc::unsupported && options_.io == "uring") {
            std::fprintf(stderr, "kvtl-bench: warning: io_uring cannot be used (%s); using posix\n",
                         opened.error().message.c_str());
            options_.io = "posix";
            opened = open_policy(options_);
        }
        if (!opened) throw engine::bad_input(policy_ + ": " + opened.error().message);
        cache_ = std::move(*opened);
    }

    /// Reads the prompt in, without attention, at the device's own speed.
    void prefill(workload& w, engine::progress_bar& bar) {
        limit_->set({});
        const std::size_t chunk = wants_.evicts ? o_.context : std::min(prompt_chunk, o_.context);
        const std::size_t key = w.key_floats(), heads = o_.shape.kv_heads;
        const auto if_needed = [&](kvtl::signal s, std::size_t n) {
            return contains(wants_.signals, s) ? n : std::size_t{0};
        };
        std::vector<float> k(chunk * key), v(chunk * key), k_pre(if_needed(kvtl::signal::k_pre, chunk * key)),
            q(o_.prompt_queries || wants_.evicts ? chunk * w.query_floats() : 0),
            external(if_needed(kvtl::signal::external, chunk * heads)),
            probe(if_needed(kvtl::signal::probe, probes * w.query_floats()));
        const std::uint64_t seed = seed_of(o_.workload);
        double seconds = 0;
        for (std::size_t b = 0; b < o_.batch; ++b) {
            auto seq = cache_->begin();
            if (!seq) throw engine::run_failure(seq.error().message);
            sequences_.push_back(*seq);
            parts_.push_back({.seq = *seq});
            for (std::size_t first = 0; first < o_.context; first += chunk) {
                const std::size_t n = std::min(chunk, o_.context - first);
                for (std::uint32_t l = 0; l < o_.shape.layers; ++l) {
                    const auto part = [&](std::vector<float>& all) {
                        return std::span(all).first(all.size() / chunk * n);
                    };
                    const bool last = first + n == o_.context; // whose queries say what is retrieved together
                    const std::span<float> asked = wants_.evicts || last ? part(q) : std::span<float>{};
                    w.rows(b, l, first, n, {.q = asked, .k = part(k), .v = part(v), .k_pre = part(k_pre)});
                    for (std::size_t t = 0; t < n && !external.empty(); ++t)
                        random_mask(seed, b, l, first + t, std::span(external).subspan(t * heads, heads));
                    kvtl::layer_input in;
                    in.q = asked, in.x = asked, in.k = part(k), in.v = part(v), in.k_pre = part(k_pre);
                    in.external = part(external);
                    in.last_chunk = last;
                    if (in.last_chunk && !probe.empty()) {
                        w.rows(b, l, o_.context, probes, {.prediction = probe});
                        in.probe = probe;
                    }
                    const auto begin = clock::now();
                    on_shards(
                        [&](unsigned shard) noexcept { return cache_->prefill(*seq, l, in, {}, shard); });
                    seconds += seconds_since(begin);
                }
                bar.update(b * o_.context + first + n);
            }
        }
        prefill_s_ = seconds;
        position_ = o_.context;
    }

    /// From here on the device is this one, and so long the rest of a layer; counting begins anew after the warm-up.
    void begin_run(const kvtl::device_profile& device, double compute_us_per_layer, std::size_t steps) {
        device_ = device;
        steps_ = steps;
        limit_->set(device);
        compute_us_ = compute_us_per_layer;
        step_s_.clear(), reuse_.clear();
        done_ = 0;
        seconds_ = 0;
        recall_sum_ = 0, recall_count_ = 0;
    }

    [[nodiscard]] bool finished() const {
        if (done_ >= decode_options::warm_up + steps_) return true;
        return step_s_.size() >= decode_options::least_steps && seconds_ >= o_.max_seconds;
    }

    /// One token of all sequences through all layers. `recall` samples the mass of some layers.
    void step(step_rows& rows, bool recall) {
        if (done_ == decode_options::warm_up) before_ = cache_->stats();
        const auto layers = o_.shape.layers;
        std::fill(lse_.begin(), lse_.end(), std::numeric_limits<float>::quiet_NaN());
        const std::size_t sampled = done_ / recall_every % std::min<std::size_t>(recall_every, layers);
        const auto begin = clock::now();
        for (std::uint32_t l = 0; l < layers; ++l) {
            on_shards([&](unsigned shard) noexcept {
                return layer(rows, l, recall && l % recall_every == sampled, shard);
            });
            if (compute_us_ > 0) {
                const auto until =
                    clock::now() + std::chrono::nanoseconds(static_cast<std::int64_t>(compute_us_ * 1e3));
                while (clock::now() < until) {
                }
            }
        }
        const double s = seconds_since(begin);
        if (done_ >= decode_options::warm_up) step_s_.push_back(s), seconds_ += s;
        note_reuse(cache_->stats().detail);
        ++done_;
        ++position_;
    }

    /// The shard's part of a layer, of all sequences.
    [[nodiscard]] kvtl::status layer(step_rows& rows, std::uint32_t l, bool recall, unsigned shard) noexcept {
        // What the layer before has computed lies behind; an engine now projects this one's query.
        if (wants_.announced)
            for (const auto seq : sequences_) static_cast<void>(cache_->before_query(seq, l, shard));
        if (wants_.prefetch && l + 1 < o_.shape.layers)
            for (std::size_t b = 0; b < o_.batch; ++b) // a hint; what is wrong with it attend() will say
                static_cast<void>(cache_->prefetch(sequences_[b], l + 1, rows.guess(b, l + 1), shard));
        kvtl::layer_input in = rows.input(l);
        if (recall) in.lse = lse_of(l);
        if (o_.batch == 1) return cache_->attend(sequences_[0], l, in, out_, shard);
        return cache_->forward(parts_, l, in, out_, shard);
    }
    /// What a layer's queries have seen: (batch, HQ).
    [[nodiscard]] std::span<float> lse_of(std::uint32_t l) noexcept {
        const std::size_t row = o_.batch * o_.shape.query_heads;
        return std::span(lse_).subspan(l * row, row);
    }
    /// call(shard) for every shard of the cache, on whichever thread is free.
    template <class Call> void on_shards(const Call& call) {
        said_.resize(cache_->shards());
        threads_.parallel(said_.size(),
                          [&](std::size_t i) noexcept { said_[i] = call(static_cast<unsigned>(i)); });
        for (const kvtl::status& s : said_) require(s);
    }

    /// How many of the last step's units the step before had chosen too.
    void note_reuse(const kvtl::statistics& now) {
        if (const auto chosen = now.chosen_units - last_.chosen_units;
            chosen > 0 && done_ >= decode_options::warm_up)
            reuse_.push_back(static_cast<double>(now.reused_units - last_.reused_units) /
                             static_cast<double>(chosen));
        last_ = now;
    }

    /// Whether mass_recall looks at the next step. A sample generates every key before it once more, so a
    /// long run takes some 64 of them instead of one every 8 steps.
    [[nodiscard]] bool samples_recall() const {
        const std::size_t every = std::max(recall_every, steps_ / 64 / recall_every * recall_every);
        return done_ >= decode_options::warm_up && done_ % every == 0;
    }

    /// Adds up what share of full attention's mass the last step attended, where that was sampled.
    void sample_recall(workload& w, step_rows& rows) {
        for (std::uint32_t l = 0; l < o_.shape.layers; ++l) {
            const auto seen = lse_of(l);       // the first sequence's come first
            if (std::isnan(seen[0])) continue; // not sampled
            const auto all = full_lse(w, l, position_, rows.query(0, l));
            for (std::size_t h = 0; h < all.size(); ++h)
                recall_sum_ += std::min(1.0, std::exp(static_cast<double>(seen[h]) - all[h])),
                    ++recall_count_;
        }
    }

    [[nodiscard]] json row(const std::optional<device_probe>& before,
                           const std::optional<device_probe>& after) const;
    [[nodiscard]] bool measured() const { return !step_s_.empty(); }
    [[nodiscard]] tried_size tried() const {
        std::vector<double> sorted = step_s_;
        std::sort(sorted.begin(), sorted.end());
        tried_size t{sorted[sorted.size() / 2] * 1e3, std::nullopt, cache_->stats().config};
        if (recall_count_ > 0) t.mass = recall_sum_ / static_cast<double>(recall_count_);
        return t;
    }
    [[nodiscard]] std::size_t position() const { return position_; }
    [[nodiscard]] const engine::cache_wants& wants() const { return wants_; }
    [[nodiscard]] std::size_t done() const { return done_; }

  private:
    const decode_options& o_;
    std::string policy_;
    bool in_memory_;
    scratch_file file_; ///< outlives the cache
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
    engine::cache_stats before_;
    kvtl::statistics last_; ///< after the last step
    std::vector<double> step_s_, reuse_;
    double prefill_s_ = 0, seconds_ = 0, recall_sum_ = 0;
    std::size_t position_ = 0, done_ = 0, recall_count_ = 0, steps_ = 0;
    json probed_; ///< the sizes that were tried before this one was taken
};

/// Extremes and standard deviation over the steps; null where nothing is chosen.
json reuse_spread(const std::vector<double>& rates) {
    if (rates.empty()) return nullptr;
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    double mean = 0, square = 0;
    for (const double r : rates) mean += r / static_cast<double>(rates.size());
    for (const double r : rates) square += (r - mean) * (r - mean) / static_cast<double>(rates.size());
    return {{"min", *least}, {"max", *most}, {"deviation", std::sqrt(square)}};
}

json probe_json(const std::optional<device_probe>& p) {
    if (!p) return nullptr;
    return {{"iops_4k", p->iops_4k}, {"mb_per_s_128k", p->mb_per_s_128k}};
}

json runner::row(const std::optional<device_probe>& before, const std::optional<device_probe>& after) const {
    const engine::cache_stats now = cache_->stats();
    const kvtl::statistics& a = before_.detail;
    const kvtl::statistics& b = now.detail;
    std::vector<double> sorted = step_s_;
    std::sort(sorted.begin(), sorted.end());
    const auto steps = static_cast<double>(sorted.size());
    const double median = sorted[sorted.size() / 2];
    const auto known = median_interval95(sorted);
    const double p99 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)];
    const auto gained = [](std::uint64_t from, std::uint64_t to) { return static_cast<double>(to - from); };
    const auto ratio = [](double x, double y) { return y > 0 ? json(x / y) : json(nullptr); };

    const kvtl::phase_times &p = a.phase_ns, &q = b.phase_ns;
    const auto phase = [&](std::uint64_t from, std::uint64_t to) { return gained(from, to) / steps * 1e-3; };
    json config = {{"attend_tokens", options_.attend_tokens},
                   {"keep_tokens", options_.keep_tokens},
                   {"memory_mib", static_cast<double>(options_.memory_bytes) / (1 << 20)},
                   {"workload", o_.workload},
                   {"compute_us_per_layer", compute_us_},
                   {"calibration", options_.calibration},
                   {"interleave", o_.interleave}};
    for (const auto& [name, value] : now.config) config[name] = value;
    if (!stand_ins_.empty()) config["stand_ins"] = stand_ins_;
    json parts = json::object();
    for (const auto& [name, bytes] : now.bytes_by_part) parts[name] = bytes;
    json shares = json::object();
    for (const auto& [name, share] : engine::shares_of(now.memory())) shares[name] = share;

    // Bytes of an entry as the policy stores it, from what it read; then entries per chosen unit.
    const double read_entries = gained(a.read_entries, b.read_entries);
    const double entry_bytes = read_entries > 0 ? gained(a.useful_bytes, b.useful_bytes) / read_entries : 0;
    const double chosen_units = gained(a.chosen_units, b.chosen_units);
    const double chosen_bytes = gained(a.chosen_bytes, b.chosen_bytes);
    return {
        {"policy", policy_},
        {"shape", o_.shape_name},
        {"context", o_.context},
        {"batch", o_.batch},
        {"threads", std::min(o_.threads, cache_->shards())},
        {"shards", cache_->shards()},
        {"steps", sorted.size()},
        {"device", std::string(device_.name)},
        {"simulated", in_memory_ && device_.limited()},
        {"config", config},
        {"io", now.io},
        {"direct", now.direct},
        {"prefill_s", prefill_s_},
        {"step_ms_median", median * 1e3},
        {"step_ms_low", known ? json(known->low * 1e3) : json(nullptr)}, // of the median, 95 %
        {"step_ms_high", known ? json(known->high * 1e3) : json(nullptr)},
        {"step_ms_p99", p99 * 1e3},
        {"tokens_per_s", static_cast<double>(o_.batch) / median},
        {"compute_ms_per_step", compute_us_ * o_.shape.layers * 1e-3},
        {"phase_us",
         {{"append", phase(p.append, q.append)},
          {"score", phase(p.score, q.score)},
          {"choose", phase(p.choose, q.choose)},
          {"fetch_wait", phase(p.fetch_wait, q.fetch_wait)},
          {"attend", phase(p.attend, q.attend)},
          {"maintain", phase(p.maintain, q.maintain)},
          {"evict", phase(p.evict, q.evict)}}},
        {"read_bytes_per_step", gained(a.read_bytes, b.read_bytes) / steps},
        {"useful_bytes_per_step", gained(a.useful_bytes, b.useful_bytes) / steps},
        {"wasted_bytes", b.wasted_bytes - a.wasted_bytes},
        {"hot_set_bytes_per_step", gained(a.hot_set_bytes, b.hot_set_bytes) / steps},
        {"representative_bytes_per_step",
         gained(a.representative_bytes_read, b.representative_bytes_read) / steps},
        {"representative_bytes_written_per_step",
         gained(a.representative_bytes_written, b.representative_bytes_written) / steps},
        {"hot_set_reads_per_step", gained(a.hot_set_reads, b.hot_set_reads) / steps},
        {"late_hot_sets", b.late_hot_sets - a.late_hot_sets},
        {"reads_per_step", gained(a.reads, b.reads) / steps},
        {"mean_read_entries", ratio(read_entries, gained(a.decode_reads, b.decode_reads))},
        {"hit_rate", ratio(gained(a.resident_chosen_bytes, b.resident_chosen_bytes), chosen_bytes)},
        {"reuse_rate", ratio(gained(a.reused_units, b.reused_units), chosen_units)},
        {"reuse_rate_spread", reuse_spread(reuse_)},
        {"selectable_entries",
         ratio(gained(a.selectable_entries, b.selectable_entries), gained(a.choices, b.choices))},
        {"empty_choices", ratio(gained(a.empty_choices, b.empty_choices), gained(a.choices, b.choices))},
        {"scored_per_step", gained(a.choosing.scored, b.choosing.scored) / steps},
        {"compared_per_step", gained(a.choosing.compared, b.choosing.compared) / steps},
        {"opened_per_step", gained(a.choosing.opened, b.choosing.opened) / steps},
        {"unpredicted_choices", b.unpredicted_choices - a.unpredicted_choices},
        {"units", b.units},
        {"splits", b.splits - a.splits},
        {"delayed_splits", b.delayed_splits - a.delayed_splits},
        {"forced_loads", b.forced_loads - a.forced_loads},
        {"mean_unit_entries",
         entry_bytes > 0 ? ratio(chosen_bytes / entry_bytes, chosen_units) : json(nullptr)},
        {"bytes_written", b.written_bytes - a.written_bytes},
        {"bytes_moved_by_updates", b.bytes_moved_by_updates - a.bytes_moved_by_updates},
        {"bytes_moved_by_appends", b.bytes_moved_by_appends - a.bytes_moved_by_appends},
        {"bytes_moved_by_staying_children",
         b.bytes_moved_by_staying_children - a.bytes_moved_by_staying_children},
        {"bytes_moved_by_leaving_children",
         b.bytes_moved_by_leaving_children - a.bytes_moved_by_leaving_children},
        {"kept_entries", b.kept_entries},
        {"storage_bytes", now.storage_bytes},
        {"resident_bytes_peak", now.resident_bytes_peak},
        {"borrowed_bytes", b.borrowed_bytes},
        {"bytes_by_part", parts},
        {"raw_cache_bytes", now.raw_cache_bytes},
        {"share_by_part", shares},
        {"mass_recall",
         recall_count_ > 0 ? json(recall_sum_ / static_cast<double>(recall_count_)) : json(nullptr)},
        {"size_probe", probed_},
        {"probe_before", probe_json(before)},
        {"probe_after", probe_json(after)},
        {"error", nullptr},
    };
}

/// Of a policy that takes no part.
json failed_row(const decode_options& o, const std::string& policy, const budgets& b,
                const kvtl::device_profile& device, bool simulated, const std::string& why) {
    return {{"policy", policy},
            {"shape", o.shape_name},
            {"context", o.context},
            {"batch", o.batch},
            {"device", std::string(device.name)},
            {"simulated", simulated && device.limited()},
            {"config",
             {{"attend_tokens", b.attend_tokens},
              {"keep_tokens", b.keep_tokens},
              {"memory_mib", b.memory_mib},
              {"workload", o.workload}}},
            {"error", why}};
}

/// Devices that one opened cache can stand for: those slower than the real one, or those imitated in memory.
struct device_group {
    bool simulated = false;
    std::vector<kvtl::device_profile> devices;
};

std::vector<device_group> group_devices(const decode_options& o, const std::optional<device_probe>& native) {
    device_group real{.simulated = false, .devices = {}}, imitated{.simulated = true, .devices = {}};
    for (const auto& name : o.devices) {
        const kvtl::device_profile& d = *kvtl::find_device(name);
        const bool faster =
            native && d.limited() && (d.mb_per_s > native->mb_per_s_128k || d.iops > native->iops_4k);
        (faster ? imitated : real).devices.push_back(d);
    }
    std::vector<device_group> groups;
    for (auto& g : {real, imitated})
        if (!g.devices.empty()) groups.push_back(g);
    return groups;
}

std::string gib(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GiB", bytes / (1 << 30));
    return text;
}

resources free_resources(const decode_options& o, bool in_memory) {
    return {.disk = in_memory ? 0 : free_disk_bytes(o.kv_path), .memory = available_memory_bytes()};
}

/// Steps until every runner has had its share. The rows of a token are generated once, outside the timers,
/// and given to all runners that are there; with one runner that is all there is to it.
void run_steps(const std::vector<std::unique_ptr<runner>>& all, step_rows& data, workload& w,
               engine::progress_bar& bar) {
    for (bool busy = true; busy;) {
        busy = false;
        std::size_t next = 0; // the token behind the one that the rows are of
        for (const auto& r : all) {
            if (r->finished()) continue;
            busy = true;
            if (next != r->position() + 1) data.generate(r->position()), next = r->position() + 1;
            const bool recall = r->samples_recall();
            r->step(data, recall);
            if (recall) r->sample_recall(w, data);
            bar.update(r->done());
        }
    }
}

} // namespace

resources needs(const decode_options& o, const std::vector<std::string>& policies, bool in_memory) {
    const std::size_t tokens = most_tokens(o, o.runs(o.devices.size()));
    const kvtl::shape& s = o.shape;
    const double entries = static_cast<double>(tokens) * static_cast<double>(o.batch) * s.layers * s.kv_heads;
    const double raw = entries * s.head_dim * 2 * sizeof(kvtl::f16);
    const double rows = static_cast<double>(o.batch) * s.layers * s.head_dim *
                        (2.0 * s.query_heads + 3.0 * s.kv_heads) * sizeof(float);
    const double turns =
        static_cast<double>(tokens) * s.head_dim * sizeof(float); // cos and sin of the workload
    constexpr double program = 64 << 20;
    resources need{.disk = 0, .memory = rows + turns + program};
    const double bound = *std::max_element(o.memory_mib.begin(), o.memory_mib.end()) * (1 << 20);
    for (const auto& policy : policies) {
        if (policy == "full") {
            need.memory += 1.1 * raw; // everything is window
            continue;
        }
        need.memory += bound;
        if (const auto wants = wants_of(policy); wants.evicts) { // the prompt comes in one chunk
            need.memory += static_cast<double>(o.context) * s.head_dim * (s.query_heads + 2.0 * s.kv_heads) *
                           sizeof(float);
            if (!wants.retrieves) continue; // it has no file
        }
        // What is stored may be smaller than what is said of 16-bit entries; not every policy can say without its files.
        engine::cache_options one = options_of(o, policy, budgets_of(o).front(), o.runs(o.devices.size()));
        one.io = "memory";
        const auto known = least_memory_of(one);
        const double file = known ? static_cast<double>(known->storage) : 2.5 * raw;
        // In memory, pages that nobody wrote cost nothing.
        (in_memory ? need.memory : need.disk) += in_memory ? .6 * file : file;
    }
    return need;
}

std::string too_large(const decode_options& o, const std::string& policy, const resources& free,
                      bool in_memory) {
    const resources need = needs(o, {policy}, in_memory);
    if (need.memory <= 0.8 * free.memory && need.disk <= 0.8 * free.disk) return {};
    return policy + " takes up to " + gib(need.memory) + " of memory and " + gib(need.disk) +
           " of disk; 80 % of what is free is " + gib(0.8 * free.memory) + " and " + gib(0.8 * free.disk);
}

std::vector<std::vector<std::string>> plan_rounds(const decode_options& o, const resources& free,
                                                  bool in_memory) {
    std::vector<std::vector<std::string>> rounds;
    for (const auto& policy : o.policies) {
        if (const std::string why = too_large(o, policy, free, in_memory); !why.empty())
            throw engine::bad_input(why);
        if (o.interleave && !rounds.empty()) {
            auto together = rounds.back();
            together.push_back(policy);
            const resources need = needs(o, together, in_memory);
            if (need.memory <= 0.8 * free.memory && need.disk <= 0.8 * free.disk) {
                rounds.back() = together;
                continue;
            }
        }
        rounds.push_back({policy});
    }
    return rounds;
}

std::vector<engine::least_row> least_memory(const decode_options& o) {
    const workload_request request = request_of(o);
    made_up_files files(o, request);
    std::vector<engine::least_row> rows;
    for (const auto& policy : o.policies)
        for (const budgets& b : budgets_of(o)) {
            if (is_repeated(o, policy, b) || b.memory_mib != o.memory_mib.front()) continue;
            std::string with = std::to_string(b.attend_tokens) + " attended";
            if (b.keep_tokens != 0 && wants_of(policy).evicts)
                with += ", " + std::to_string(b.keep_tokens) + " kept";
            runner one(o, policy, b, true, o.runs(o.devices.size()), o.kv_path);
            rows.push_back({policy, with, one.least(files)});
        }
    return rows;
}

json run_decode(const decode_options& o, const std::function<void(const json&)>& row_done,
                const std::function<void()>& begun) {
    const bool memory_only = o.io == "memory";
    // Before the probe writes: whether any policy fits the machine.
    const auto fits = [&](const std::string& policy) {
        return too_large(o, policy, free_resources(o, memory_only), memory_only).empty();
    };
    if (std::none_of(o.policies.begin(), o.policies.end(), fits))
        static_cast<void>(plan_rounds(o, free_resources(o, memory_only), memory_only)); // says why
    const workload_request request = request_of(o);
    const auto w = make_workload(request);

    // The probe tells what the device can do, and by its change whether the machine was busy with other
    // things.
    std::optional<random_reader> reader;
    if (!memory_only) reader.emplace(random_reader::config{.path = o.kv_path + ".probe", .io = o.io});
    const auto take_probe = [&]() -> std::optional<device_probe> {
        if (!reader) return std::nullopt;
        return probe(*reader);
    };
    const auto groups = group_devices(o, take_probe());
    made_up_files files(o, request);
    const auto make_runner = [&](const device_group& group, const std::string& policy, const budgets& b,
                                 std::size_t place) {
        const std::string path = o.kv_path + (place == 0 ? "" : "." + std::to_string(place));
        return std::make_unique<runner>(o, policy, b, group.simulated || memory_only,
                                        o.runs(group.devices.size()), path);
    };
    const std::vector<budgets> all_budgets = budgets_of(o);
    const auto repeats = [&](const std::string& policy, const budgets& b) {
        return is_repeated(o, policy, b);
    };
    // What cannot be opened, or is too large for the machine, is known before the others run for an hour: rows that say why.
    json rows = json::array();
    const auto refuse = [&](const device_group& group, const std::string& policy, const budgets& b,
                            const std::string& why) {
        for (const auto& device : group.devices)
            rows.push_back(failed_row(o, policy, b, device, group.simulated, why));
    };
    std::vector<std::vector<entry>> able(groups.size()); // what each group of devices runs
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const bool in_memory = groups[g].simulated || memory_only;
        for (const budgets& b : all_budgets)
            for (const auto& policy : o.policies) {
                if (repeats(policy, b)) continue;
                std::string why = too_large(o, policy, free_resources(o, in_memory), in_memory);
                if (policy == mapped_file_name &&
                    std::any_of(groups[g].devices.begin(), groups[g].devices.end(),
                                [](const kvtl::device_profile& d) { return d.limited(); }))
                    why = "mapped_file: page faults cannot be slowed down; valid: --device native";
                try {
                    if (why.empty()) make_runner(groups[g], policy, b, 0)->open(files);
                } catch (const engine::bad_input& e) {
                    why = e.what();
                }
                if (why.empty())
                    able[g].push_back({policy, b});
                else
                    refuse(groups[g], policy, b, why);
            }
    }
    if (std::all_of(able.begin(), able.end(), [](const auto& some) { return some.empty(); }))
        throw engine::bad_input(rows.at(0)["error"].get<std::string>());
    if (begun) begun();
    for (const json& row : rows)
        if (row_done) row_done(row);

    step_rows data(*w, o.batch, seed_of(o.workload));
    const auto fill = [&](runner& r, const std::string& what) {
        engine::progress_bar bar(what, o.batch * o.context);
        r.prefill(*w, bar);
        data.with_guess |= r.wants().prefetch;
        data.with_k_pre |= contains(r.wants().signals, kvtl::signal::k_pre);
    };
    // Each size with a prompt of its own, on the first of the group's devices.
    const auto choose_size = [&](const device_group& group, const entry& e) -> size_choice {
        // What was set for a policy is not tried away.
        const bool set = std::any_of(o.settings.begin(), o.settings.end(),
                                     [&](const engine::setting& given) { return given.policy == e.policy; });
        if (!o.fit || set || o.size_candidates < 2 || e.policy == mapped_file_name ||
            !wants_of(e.policy).retrieves)
            return {};
        const auto opened = [&](unsigned turns) {
            auto r = make_runner(group, e.policy, e.at, 0);
            r->set_size(turns);
            try {
                r->open(files);
            } catch (const engine::bad_input&) {
                r.reset();
            }
            return r;
        };
        if (!opened(1)) return {}; // there is nothing to choose from
        std::vector<tried_size> tried;
        for (unsigned turns = 0; turns < o.size_candidates; ++turns) {
            std::vector<std::unique_ptr<runner>> one;
            one.push_back(opened(turns));
            if (!one.front()) break;
            fill(*one.front(), e.policy + ": size " + std::to_string(turns + 1));
            one.front()->begin_run(group.devices.front(), o.compute_us_per_layer.front(),
                                   std::min(o.steps, decode_options::probe_steps));
            engine::progress_bar bar(e.policy + ": size " + std::to_string(turns + 1),
                                     decode_options::probe_steps + decode_options::warm_up);
            run_steps(one, data, *w, bar);
            tried.push_back(one.front()->tried());
        }
        return choice_of(tried);
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const device_group& group = groups[g];
        const bool in_memory = group.simulated || memory_only;
        for (const budgets& b : all_budgets) {
            decode_options at = o;
            std::erase_if(at.policies, [&](const std::string& policy) {
                return std::find(able[g].begin(), able[g].end(), entry{policy, b}) == able[g].end();
            });
            for (const auto& policies : plan_rounds(at, free_resources(o, in_memory), in_memory)) {
                std::vector<std::unique_ptr<runner>> all;
                std::vector<size_choice> sizes;
                for (const auto& policy : policies) sizes.push_back(choose_size(group, {policy, b}));
                for (std::size_t i = 0; i < policies.size(); ++i) {
                    all.push_back(make_runner(group, policies[i], b, i));
                    all.back()->set_size(sizes[i].turns, std::move(sizes[i].tried));
                    all.back()->open(files);
                }
                for (std::size_t i = 0; i < all.size(); ++i) fill(*all[i], policies[i] + ": prompt");
                const std::size_t times = o.compute_us_per_layer.size();
                for (std::size_t run = 0; run < o.runs(group.devices.size()); ++run) {
                    const kvtl::device_profile& device = group.devices[run / times];
                    const auto before = take_probe();
                    for (auto& r : all) r->begin_run(device, o.compute_us_per_layer[run % times], o.steps);
                    engine::progress_bar bar(std::string(device.name) + ": steps",
                                             o.steps + decode_options::warm_up);
                    run_steps(all, data, *w, bar);
                    bar.clear();
                    const auto after = take_probe();
                    for (auto& r : all) {
                        rows.push_back(r->row(before, after));
                        if (row_done) row_done(rows.back());
                    }
                }
            }
        }
    }
    return rows;
}

} // namespace bench
