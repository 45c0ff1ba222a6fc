// SPDX-License-Identifier: MIT
#include "decode_runner.hpp"

#include <kvtl/element.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>

#include "error.hpp"
#include "mapped_file.hpp"
#include "median_interval.hpp"
#include "program.hpp"
#include "stand_ins.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <utility>

namespace bench {

namespace {

using json = nlohmann::ordered_json;
using clock = std::chrono::steady_clock;

constexpr std::size_t prompt_chunk = 1024;

double seconds_since(clock::time_point begin) {
    return std::chrono::duration<double>(clock::now() - begin).count();
}

/// Of all threads of the process.
double cpu_seconds() {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::size_t bytes_of(const budgets& b) {
    return static_cast<std::size_t>(b.memory_mib * (1 << 20));
}

void require(const kvtl::status& s) {
    if (!s) throw engine::run_failure(s.what());
}

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

} // namespace

std::size_t most_tokens(const decode_options& o, std::size_t runs) {
    return o.context + runs * (decode_options::warm_up + o.steps);
}

engine::cache_options options_of(const decode_options& o, const std::string& policy, const budgets& b,
                                 std::size_t runs) {
    engine::cache_options c;
    c.policy = policy;
    c.shape = o.shape;
    c.max_tokens = most_tokens(o, runs);
    c.max_sequences = o.batch;
    c.memory_bytes = bytes_of(b);
    c.attend_tokens = b.attend_tokens;
    if (wants_of(policy).evicts) c.keep_tokens = b.keep_tokens;
    c.prefill_tokens = o.context;
    c.engine_inputs = engine::model_file_inputs | kvtl::engine_input::external;
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

step_rows::step_rows(workload& w, std::size_t batch, std::uint64_t seed)
    : w_(w), batch_(batch), query_(w.query_floats()), key_(w.key_floats()), heads_(w.shape().kv_heads),
      seed_(seed) {
    const std::size_t n = batch * w.shape().layers;
    q_.resize(n * query_), guess_.resize(n * query_);
    k_.resize(n * key_), v_.resize(n * key_), k_pre_.resize(n * key_);
    external_.resize(n * heads_);
}

void step_rows::generate(std::size_t token) {
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

kvtl::layer_input step_rows::input(std::uint32_t l) {
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

runner::runner(const decode_options& o, std::string policy, const budgets& b, bool in_memory,
               std::size_t runs, const std::string& path)
    : o_(o), policy_(std::move(policy)), at_(b), in_memory_(in_memory),
      limit_(std::make_shared<kvtl::throttle>()), wants_(wants_of(policy_)), threads_(o.threads) {
    options_ = options_of(o, policy_, b, runs);
    options_.io = in_memory ? "memory" : o.io;
    options_.path = path;
    options_.limit = limit_;
    options_.threads = threads_.lend();
    lse_.resize(std::size_t{o.shape.layers} * o.batch * o.shape.query_heads);
    out_.resize(o.batch * o.shape.query_heads * o.shape.head_dim);
}

void runner::supply(made_up_files& files) {
    const auto needs = [&](kvtl::engine_input s) { return contains(wants_.inputs, s); };
    if (wants_.trained) {
        if (o_.gates.empty()) {
            options_.gates = files.trained(policy_);
            stand_ins_.push_back("level gates");
        }
    } else if (needs(kvtl::engine_input::calibration) && o_.calibration.empty())
        options_.calibration = files.bases(policy_, wants_.entry_bases);
    if (wants_.gates && o_.gates.empty()) {
        options_.gates = files.gates(policy_, needs(kvtl::engine_input::x), wants_.attending_gates);
        stand_ins_.push_back("random gates");
    }
    if (needs(kvtl::engine_input::x)) stand_ins_.push_back("queries as x");
    if (needs(kvtl::engine_input::external)) stand_ins_.push_back("random mask");
    if (needs(kvtl::engine_input::probe)) stand_ins_.push_back("predicted queries as probes");
}

void runner::set_size(unsigned turns, json probed) {
    options_.turns = turns;
    probed_ = std::move(probed);
}

kvtl::result<engine::memory_use> runner::least(made_up_files& files) {
    supply(files);
    return least_memory_of(options_);
}

void runner::open(made_up_files& files) {
    if (!in_memory_) file_.emplace(options_.path);
    supply(files);
    auto opened = engine::or_posix(options_.io, "kvtl-bench", [&] { return open_policy(options_); });
    if (!opened) throw engine::bad_input(policy_ + ": " + opened.error().message);
    cache_ = std::move(*opened);
}

template <class Call> void runner::on_shards(const Call& call) {
    said_.resize(cache_->shards());
    threads_.parallel(said_.size(),
                      [&](std::size_t i) noexcept { said_[i] = call(static_cast<unsigned>(i)); });
    for (const kvtl::status& s : said_) require(s);
}

void runner::prefill(workload& w, engine::progress_bar& bar) {
    limit_->set({});
    const std::size_t chunk = wants_.evicts ? o_.context : std::min(prompt_chunk, o_.context);
    const std::size_t key = w.key_floats(), heads = o_.shape.kv_heads;
    const auto if_needed = [&](kvtl::engine_input s, std::size_t n) {
        return contains(wants_.inputs, s) ? n : std::size_t{0};
    };
    std::vector<float> k(chunk * key), v(chunk * key),
        k_pre(if_needed(kvtl::engine_input::k_pre, chunk * key)),
        q(o_.prompt_queries || wants_.evicts ? chunk * w.query_floats() : 0),
        external(if_needed(kvtl::engine_input::external, chunk * heads)),
        probe(if_needed(kvtl::engine_input::probe, probes * w.query_floats()));
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
                // The last chunk's queries say what is retrieved together; codecs are fitted to the first one's.
                const bool last = first + n == o_.context;
                const std::span<float> asked =
                    wants_.evicts || last || first == 0 ? part(q) : std::span<float>{};
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
                on_shards([&](unsigned shard) noexcept { return cache_->prefill(*seq, l, in, {}, shard); });
                seconds += seconds_since(begin);
            }
            bar.update(b * o_.context + first + n);
        }
    }
    prefill_s_ = seconds;
    position_ = o_.context;
}

void runner::resize(const budgets& b) {
    const std::size_t bytes = bytes_of(b);
    if (b == at_) return;
    if (const kvtl::status s = failed() ? kvtl::status{} : cache_->resize(bytes); !s)
        throw engine::bad_input(policy_ + ": " + std::string(s.what()) + "; --keep-file asked for that");
    at_ = b;
    options_.memory_bytes = bytes;
}

void runner::begin_run(const kvtl::device_profile& device, double compute_us_per_layer, std::size_t steps) {
    device_ = device;
    steps_ = steps;
    samples_ = {};
    limit_->set(device);
    compute_us_ = compute_us_per_layer;
    step_s_.clear(), reuse_.clear();
    begun_ = position_;
    done_ = 0;
    seconds_ = 0, cpu_s_ = 0;
    recall_sum_ = 0, recall_count_ = 0;
}

bool runner::finished() const {
    if (failed() || done_ >= decode_options::warm_up + steps_) return true;
    return step_s_.size() >= decode_options::least_steps && seconds_ >= o_.max_seconds;
}

void runner::step(step_rows& rows, bool recall) {
    if (done_ == decode_options::warm_up) before_ = cache_->stats();
    const auto layers = o_.shape.layers;
    std::fill(lse_.begin(), lse_.end(), std::numeric_limits<float>::quiet_NaN());
    const double cpu = cpu_seconds();
    const auto begin = clock::now();
    for (std::uint32_t l = 0; l < layers; ++l) {
        on_shards([&](unsigned shard) noexcept {
            return layer(rows, l, recall && samples_.has_layer(l, layers), shard);
        });
        if (compute_us_ > 0) {
            const auto until =
                clock::now() + std::chrono::nanoseconds(static_cast<std::int64_t>(compute_us_ * 1e3));
            while (clock::now() < until) {
            }
        }
    }
    const double s = seconds_since(begin);
    if (done_ >= decode_options::warm_up) step_s_.push_back(s), seconds_ += s, cpu_s_ += cpu_seconds() - cpu;
    note_reuse(cache_->stats().detail);
    ++done_;
    ++position_;
}

kvtl::status runner::layer(step_rows& rows, std::uint32_t l, bool recall, unsigned shard) noexcept {
    // What the layer before has computed lies behind; an engine now projects this one's query.
    if (wants_.announced && o_.announce)
        for (const auto seq : sequences_) static_cast<void>(cache_->before_query(seq, l, shard));
    if (wants_.prefetch && l + 1 < o_.shape.layers) // a hint; what is wrong with it attend() will say
        static_cast<void>(cache_->prefetch_batch(sequences_, l + 1, rows.guesses(l + 1), shard));
    kvtl::layer_input in = rows.input(l);
    if (recall) in.lse = lse_of(l);
    if (o_.batch == 1) return cache_->attend(sequences_[0], l, in, out_, shard);
    return cache_->forward(parts_, l, in, out_, shard);
}

std::span<float> runner::lse_of(std::uint32_t l) noexcept {
    const std::size_t row = o_.batch * o_.shape.query_heads;
    return std::span(lse_).subspan(l * row, row);
}

void runner::note_reuse(const kvtl::statistics& now) {
    if (const auto chosen = now.chosen_units - last_.chosen_units;
        chosen > 0 && done_ >= decode_options::warm_up)
        reuse_.push_back(static_cast<double>(now.reused_units - last_.reused_units) /
                         static_cast<double>(chosen));
    last_ = now;
}

void runner::sample_recall(workload& w, step_rows& rows) {
    for (std::uint32_t l = 0; l < o_.shape.layers; ++l) {
        const auto seen = lse_of(l);       // the first sequence's come first
        if (std::isnan(seen[0])) continue; // not sampled
        const auto all = full_lse(w, l, position_, rows.query(0, l));
        for (std::size_t h = 0; h < all.size(); ++h)
            recall_sum_ += std::min(1.0, std::exp(static_cast<double>(seen[h]) - all[h])), ++recall_count_;
    }
    samples_.take();
}

tried_size runner::tried() const {
    std::vector<double> sorted = step_s_;
    std::sort(sorted.begin(), sorted.end());
    tried_size t{sorted[sorted.size() / 2] * 1e3, std::nullopt, cache_->stats().config};
    if (recall_count_ > 0) t.mass = recall_sum_ / static_cast<double>(recall_count_);
    return t;
}

json runner::row(const device_probes& before, const device_probes& after) const {
    if (failed()) {
        json why = failed_row(o_, policy_, at_, device_, in_memory_, *failure_);
        why["config"]["compute_us_per_layer"] = compute_us_;
        why["midway"] = true;
        return why;
    }
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
                   {"interleave", o_.interleave},
                   {"keep_file", o_.keep_file}};
    for (const auto& [name, value] : now.config) config[name] = value;
    if (!stand_ins_.empty()) config["stand_ins"] = stand_ins_;
    json parts = json::object();
    for (const auto& [name, bytes] : now.bytes_by_part) parts[name] = bytes;
    json shares = json::object();
    for (const auto& [name, share] : engine::shares_of(now.memory())) shares[name] = share;

    // Bytes of an entry as the policy stores it, from what it read; then entries per chosen unit.
    const double read_entries = gained(a.read_entries, b.read_entries);
    const double entry_bytes = read_entries > 0 ? gained(a.useful_bytes, b.useful_bytes) / read_entries : 0;
    // Entries of all KV heads that are held now; kept_entries is 0 where nothing is evicted.
    const double entries =
        b.kept_entries > 0 ? static_cast<double>(b.kept_entries)
                           : static_cast<double>(position_ * o_.batch) * o_.shape.layers * o_.shape.kv_heads;
    // Tokens times layers of a step, and bytes of keys and values that one token has in one layer.
    const double tokens_and_layers = static_cast<double>(o_.batch * o_.shape.layers);
    const double raw = static_cast<double>(o_.shape.kv_heads * o_.shape.head_dim * 4);
    const double chosen_units = gained(a.chosen_units, b.chosen_units);
    const double chosen_bytes = gained(a.chosen_bytes, b.chosen_bytes);
    return {
        {"policy", policy_},
        {"shape", o_.shape_name},
        {"context", o_.context},
        {"batch", o_.batch},
        {"threads", std::min(o_.threads, cache_->shards())},                   // that take shards
        {"lent_threads", o_.threads - std::min(o_.threads, cache_->shards())}, // that share clustering
        {"shards", cache_->shards()},
        {"steps", sorted.size()},
        {"position", begun_ + decode_options::warm_up}, // tokens in front of the first step that is measured
        {"device", std::string(device_.name)},
        {"simulated", in_memory_ && device_.limited()},
        {"config", config},
        {"io", now.io},
        {"direct", now.direct},
        {"registered_file", now.registered_file},
        {"registered_arena", now.registered_arena},
        {"products", now.products},
        {"prefill_s", prefill_s_},
        {"step_ms_median", median * 1e3},
        {"step_ms_low", known ? json(known->low * 1e3) : json(nullptr)}, // of the median, 95 %
        {"step_ms_high", known ? json(known->high * 1e3) : json(nullptr)},
        {"step_ms_p99", p99 * 1e3},
        {"tokens_per_s", static_cast<double>(o_.batch) / median},
        {"cpu_s_per_step", cpu_s_ / steps},
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
        {"unannounced_layers", b.unannounced_layers - a.unannounced_layers},
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
        {"bytes_written_per_step", gained(a.written_bytes, b.written_bytes) / steps},
        {"bytes_written_per_token_and_layer",
         gained(a.written_bytes, b.written_bytes) / (steps * tokens_and_layers)},
        // Bytes written for a byte of keys and values as f16: of the tokens of these steps, and of all tokens since open().
        {"write_amplification", gained(a.written_bytes, b.written_bytes) / (steps * tokens_and_layers * raw)},
        {"write_amplification_since_open",
         static_cast<double>(b.written_bytes) / (static_cast<double>(position_) * tokens_and_layers * raw)},
        {"bytes_moved_by_updates", b.bytes_moved_by_updates - a.bytes_moved_by_updates},
        {"bytes_moved_by_appends", b.bytes_moved_by_appends - a.bytes_moved_by_appends},
        {"bytes_moved_by_staying_children",
         b.bytes_moved_by_staying_children - a.bytes_moved_by_staying_children},
        {"bytes_moved_by_leaving_children",
         b.bytes_moved_by_leaving_children - a.bytes_moved_by_leaving_children},
        {"kept_entries", b.kept_entries},
        {"kept_bytes", b.kept_bytes > 0 ? json(b.kept_bytes) : json(nullptr)},
        {"bytes_per_entry",
         b.kept_bytes > 0 ? ratio(static_cast<double>(b.kept_bytes), entries) : json(nullptr)},
        {"storage_bytes", now.storage_bytes},
        {"resident_bytes_peak", now.resident_bytes_peak},
        {"borrowed_bytes", b.borrowed_bytes},
        {"bytes_by_part", parts},
        {"raw_cache_bytes", now.raw_cache_bytes},
        {"share_by_part", shares},
        {"mass_recall",
         recall_count_ > 0 ? json(recall_sum_ / static_cast<double>(recall_count_)) : json(nullptr)},
        {"size_probe", probed_},
        {"probe_before", probe_json(before.one)},
        {"probe_after", probe_json(after.one)},
        {"probe_before_threads",
         probe_json(before.threads)}, // as many queues as --threads says, where it says more than one
        {"probe_after_threads", probe_json(after.threads)},
        {"error", nullptr},
    };
}

} // namespace bench
