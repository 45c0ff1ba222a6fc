// SPDX-License-Identifier: MIT
#include "evaluator.hpp"

#include "cleanup.hpp"
#include "demo_document.hpp"
#include "episode_probe.hpp"
#include "error.hpp"
#include "foresight.hpp"
#include "lookahead.hpp"
#include "program.hpp"
#include "sampler.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace eval {

namespace {

using clock = std::chrono::steady_clock;

double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
}

/// Natural logarithms of the probabilities.
void log_softmax(std::span<const float> logits, std::vector<double>& out) {
    out.assign(logits.begin(), logits.end());
    const double top = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (const double x : out) sum += std::exp(x - top);
    const double shift = top + std::log(sum);
    for (double& x : out) x -= shift;
}

/// |a - b| / |b|.
double relative_error(std::span<const float> a, std::span<const float> b) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        difference += d * d;
        size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    return size > 0 ? std::sqrt(difference / size) : (difference > 0 ? 1 : 0);
}

/// What was counted between two looks at the same cache.
kvtl::statistics difference(const kvtl::statistics& after, const kvtl::statistics& before) {
    kvtl::statistics d;
    d.read_bytes = after.read_bytes - before.read_bytes;
    d.reads = after.reads - before.reads;
    d.useful_bytes = after.useful_bytes - before.useful_bytes;
    d.chosen_bytes = after.chosen_bytes - before.chosen_bytes;
    d.resident_chosen_bytes = after.resident_chosen_bytes - before.resident_chosen_bytes;
    d.read_entries = after.read_entries - before.read_entries;
    d.decode_reads = after.decode_reads - before.decode_reads;
    d.choices = after.choices - before.choices;
    d.selectable_entries = after.selectable_entries - before.selectable_entries;
    d.empty_choices = after.empty_choices - before.empty_choices;
    d.choosing.scored = after.choosing.scored - before.choosing.scored;
    d.choosing.compared = after.choosing.compared - before.choosing.compared;
    d.choosing.opened = after.choosing.opened - before.choosing.opened;
    d.phase_ns.append = after.phase_ns.append - before.phase_ns.append;
    d.phase_ns.score = after.phase_ns.score - before.phase_ns.score;
    d.phase_ns.choose = after.phase_ns.choose - before.phase_ns.choose;
    d.phase_ns.fetch_wait = after.phase_ns.fetch_wait - before.phase_ns.fetch_wait;
    d.phase_ns.attend = after.phase_ns.attend - before.phase_ns.attend;
    d.phase_ns.maintain = after.phase_ns.maintain - before.phase_ns.maintain;
    d.phase_ns.evict = after.phase_ns.evict - before.phase_ns.evict;
    return d;
}

/// What follows the document.
std::string question_of(const example& e, const engine::tokenizer& words) {
    std::string text;
    for (std::size_t i = engine::question_begin(words, e.tokens); i < e.tokens.size(); ++i)
        text += words.piece(e.tokens[i]);
    return text;
}

/// Layers with entries of their own.
double caches(const engine::cache_options& options) {
    std::size_t n = 0;
    for (std::uint32_t l = 0; l < options.shape.layers; ++l)
        n += options.owner.empty() || options.owner[l] == l;
    return static_cast<double>(n);
}

std::span<const float> row_of(const std::vector<float>& all, std::size_t i, std::size_t floats) {
    return all.empty() ? std::span<const float>{} : std::span(all).subspan(i * floats, floats);
}

} // namespace

engine::cache_options sized_for(engine::cache_options options, const task& of, const example& e) {
    const engine::cache_wants budgets = engine::policy_wants(options.policy);
    if (budgets.evicts && !budgets.retrieves) {
        options.prefill_tokens = e.prefill;
        options.chunk_tokens = block_tokens;
        options.max_tokens = of.most_tokens(e);
    }
    return options;
}

struct evaluator::opened {
    std::unique_ptr<engine::kv_cache> cache;
    kvtl::sequence_id sequence{};
    std::string policy;

    void require(const kvtl::status& s) const {
        if (!s) throw engine::run_failure(policy + ": " + s.what());
    }
};

evaluator::evaluator(const engine::model& m, const engine::tokenizer& words, engine::thread_pool& pool,
                     const engine::cache_options& options, engine::cache_wants wants, const char* program)
    : model_(m), words_(words), pool_(pool), options_(options), program_(program), shape_(m.hyper().shape),
      stage_(shape_, std::max(1U, options.shards), wants), transformer_(m, stage_, pool),
      per_shard_(std::max(1U, options.shards)) {
    look_ahead(engine::default_probe);
    transformer_.share_layers(options.owner);
}

void evaluator::look_ahead(std::string_view text, std::size_t earlier) {
    true_probe_ = text.empty();
    probe_earlier_ = earlier;
    probe_ = engine::continuation(words_, text);
    transformer_.look_ahead(engine::continuation(words_, text), earlier);
}

evaluator::opened evaluator::open(const engine::cache_options& options) {
    opened o;
    o.policy = options.policy;
    engine::cache_options asked = options;
    o.cache = engine::open_or_fall_back(asked, program_);
    const auto sequence = o.cache->begin();
    if (!sequence) throw engine::run_failure(options.policy + ": " + sequence.error().message);
    o.sequence = *sequence;
    return o;
}

void evaluator::record(const task& of, const example& e) {
    engine::cache_options options = options_;
    options.policy = "full";
    options.keep_tokens = 0;
    options.io = "memory";
    recording_ = {};
    read(of, e, open(options), &recording_);
    kinds_ = kinds_of(std::span(e.tokens).first(of.forced_tokens(e)), words_);
    if (options.owner.empty()) return;
    const std::vector<float> prompt = std::move(prompt_logits_);
    options.owner.clear();
    transformer_.share_layers({});
    read(of, e, open(options), nullptr);
    prompt_logits_ = prompt;
    transformer_.share_layers(options_.owner);
}

void evaluator::read(const task& of, const example& e, const opened& full, recording* into) {
    stage_.set(*full.cache, full.sequence, into);
    transformer_.begin();
    const std::span<const engine::token_id> tokens = e.tokens;
    if (true_probe_) {
        constexpr std::size_t most = 32; // as many queries as other policies' windows have
        const auto rest = tokens.subspan(e.prefill).first(std::min(most, tokens.size() - e.prefill));
        probe_.assign(rest.begin(), rest.end());
        transformer_.look_ahead(probe_, probe_earlier_);
    }
    const auto prompt = transformer_.prefill(tokens.first(e.prefill));
    prompt_logits_.assign(prompt.begin(), prompt.end());
    const std::size_t end = of.forced_tokens(e);
    logits_.clear();
    for (std::size_t i = e.prefill; i < end; ++i) {
        const auto logits = transformer_.step(tokens[i]);
        logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
    transformer_.rewind(end - e.prefill);
}

/// The whole prompt, layer by layer. The model's outputs are known, so attention is computed only for a
/// policy that needs its mass.
void evaluator::replay_prompt(opened& o) {
    const engine::cache_wants wants = o.cache->wants();
    for (std::uint32_t l = 0; l < shape_.layers; ++l) {
        const layer_recording& r = recording_.layers[l];
        const std::size_t n = recording_.prefilled;
        const std::size_t total = n + recording_.decoded;
        kvtl::layer_input in;
        in.q = std::span(r.q).first(r.q.size() / total * n);
        in.k = std::span(r.k).first(r.k.size() / total * n);
        in.v = std::span(r.v).first(r.v.size() / total * n);
        if (contains(wants.inputs, kvtl::engine_input::k_pre))
            in.k_pre = std::span(r.k_pre).first(in.k.size());
        if (contains(wants.inputs, kvtl::engine_input::x))
            in.x = std::span(r.x).first(r.x.size() / total * n);
        if (contains(wants.inputs, kvtl::engine_input::probe)) in.probe = r.probe;
        std::vector<float> later; // of the full model: for policies that are told what to keep
        if (contains(wants.inputs, kvtl::engine_input::external))
            in.external = later = later_attention(r, shape_, n, recording_.decoded);
        const auto all_parts = [&](std::span<float> out) {
            pool_.parallel(o.cache->shards(), [&](std::size_t s) noexcept {
                per_shard_[s] = o.cache->prefill(o.sequence, l, in, out, static_cast<unsigned>(s));
            });
        };
        const auto refused = [](const kvtl::status& s) {
            return s.code() == kvtl::errc::unsupported || s.code() == kvtl::errc::invalid_argument;
        };
        all_parts({});
        if (std::all_of(per_shard_.begin(), per_shard_.begin() + o.cache->shards(), refused)) {
            out_.resize(in.q.size());
            all_parts(out_);
        }
        for (unsigned s = 0; s < o.cache->shards(); ++s) o.require(per_shard_[s]);
    }
}

/// The prompt as the policy makes the model read it: later chunks see what earlier ones left, or all of it is read twice.
void evaluator::read_prompt(const example& e, opened& o) {
    engine::transformer reader(model_, *o.cache, pool_, block_tokens);
    reader.replay(engine::continuation(words_, engine::replay_first),
                  engine::continuation(words_, engine::replay_later));
    reader.share_layers(options_.owner);
    reader.look_ahead(e.windows.empty() || true_probe_ ? probe_ : probe_of(model_, e, episodes_).probe);
    reader.go_on_in(o.sequence, 0);
    static_cast<void>(reader.prefill(std::span(e.tokens).first(e.prefill)));
}

void evaluator::compare(std::span<const float> logits, std::span<const float> full,
                        const engine::token_id* next, tally& to) {
    log_softmax(full, p_);
    log_softmax(logits, q_);
    double kl = 0;
    for (std::size_t i = 0; i < p_.size(); ++i) kl += std::exp(p_[i]) * (p_[i] - q_[i]);
    to.kl += kl;
    to.kl_max = std::max(to.kl_max, kl);
    const auto best = [](const std::vector<double>& x) {
        return std::max_element(x.begin(), x.end()) - x.begin();
    };
    to.agreements += best(p_) == best(q_) ? 1 : 0;
    ++to.predictions;
    if (next == nullptr) return;
    to.nll -= q_[*next];
    to.nll_full -= p_[*next];
}

std::span<const float> evaluator::timed_step(engine::token_id token, tally& to) {
    const auto start = clock::now();
    const auto logits = transformer_.step(token);
    to.decode_s += seconds_since(start);
    ++to.steps;
    return logits;
}

void evaluator::answer(const example& e, std::span<const float> logits, tally& to) {
    engine::sampler greedy(0, 1);
    std::string text;
    for (std::size_t n = 1;; ++n) {
        const auto token = greedy.choose(logits);
        if (words_.is_end(token)) break;
        text += words_.piece(token);
        if (engine::without_spaces(text).size() >= e.answer.size() || n >= e.most_answer_tokens) break;
        logits = timed_step(token, to);
    }
    const bool right = engine::without_spaces(text).starts_with(e.answer);
    ++to.asked;
    to.right += right ? 1 : 0;
    if (!to.first) to.first = {question_of(e, words_), e.answer, std::move(text), right};
}

void evaluator::closed_loop(const task& of, const example& e, opened& o, tally& to) {
    stage_.set(*o.cache, o.sequence);
    const engine::cache_stats before = o.cache->stats();
    const std::size_t vocabulary = prompt_logits_.size();
    const std::size_t first_step = to.steps;
    std::span<const float> logits = prompt_logits_;
    const std::size_t end = of.forced_tokens(e);
    engine::sampler greedy(0, 1);
    auto span = e.earlier.begin();
    bool right = true;
    for (std::size_t i = e.prefill; i < end; ++i) {
        logits = timed_step(e.tokens[i], to);
        compare(logits, row_of(logits_, i - e.prefill, vocabulary),
                of.kind == task_kind::nll ? &e.tokens[i + 1] : nullptr, to);
        const std::size_t next = i + 1; // the token that these logits predict
        if (span == e.earlier.end() || next < span->begin) continue;
        right = right && greedy.choose(logits) == e.tokens[next];
        if (next + 1 < span->end) continue;
        ++to.asked;
        to.right += right ? 1 : 0;
        right = true;
        ++span;
    }
    if (of.kind == task_kind::needle) answer(e, logits, to);
    const std::size_t steps = to.steps - first_step;
    transformer_.rewind(steps);

    to.last = o.cache->stats();
    to.decode += difference(to.last.detail, before.detail);
    to.resident_bytes_peak = std::max(to.resident_bytes_peak, to.last.resident_bytes_peak);
    const double all = static_cast<double>(e.prefill + steps) * caches(options_) * shape_.kv_heads;
    const std::uint64_t kept = to.last.detail.kept_entries; // 0: the policy evicts nothing
    to.kept_entries += kept != 0 ? static_cast<double>(kept) : all;
    to.kept_bytes += static_cast<double>(to.last.detail.kept_bytes);
    if (!o.cache->wants().evicts) return;
    to.kept_by_layer.resize(shape_.layers);
    for (std::uint32_t l = 0; l < shape_.layers; ++l)
        to.kept_by_layer[l] +=
            static_cast<double>(o.cache->kept_entries(o.sequence, l)) / static_cast<double>(shape_.kv_heads);
}

void evaluator::open_loop(opened& o, tally& to) {
    const engine::cache_wants wants = o.cache->wants();
    const std::size_t queries = std::size_t{shape_.query_heads} * shape_.head_dim;
    const std::size_t keys = std::size_t{shape_.kv_heads} * shape_.head_dim;
    out_.resize(queries);
    lse_.resize(shape_.query_heads);
    const std::vector<float> keep(shape_.kv_heads, std::numeric_limits<float>::max());
    for (std::size_t i = 0; i < recording_.decoded; ++i)
        for (std::uint32_t l = 0; l < shape_.layers; ++l) {
            const std::size_t at = recording_.prefilled + i;
            const layer_recording& r = recording_.layers[l];
            kvtl::layer_input in{
                .q = row_of(r.q, at, queries), .k = row_of(r.k, at, keys), .v = row_of(r.v, at, keys)};
            if (contains(wants.inputs, kvtl::engine_input::k_pre)) in.k_pre = row_of(r.k_pre, at, keys);
            if (contains(wants.inputs, kvtl::engine_input::x))
                in.x = row_of(r.x, at, r.x.size() / (recording_.prefilled + recording_.decoded));
            if (contains(wants.inputs, kvtl::engine_input::external)) in.external = keep;
            lse_.assign(lse_.size(), std::numeric_limits<float>::quiet_NaN());
            in.lse = lse_;
            const bool guesses = wants.prefetch && l + 1 < shape_.layers;
            pool_.parallel(o.cache->shards(), [&](std::size_t shard) noexcept {
                const auto s = static_cast<unsigned>(shard);
                if (wants.announced) static_cast<void>(o.cache->before_query(o.sequence, l, s));
                if (guesses) // a hint, as it is in the transformer
                    static_cast<void>(o.cache->prefetch(
                        o.sequence, l + 1, row_of(recording_.layers[l + 1].guess, i, queries), s));
                per_shard_[s] = o.cache->attend(o.sequence, l, in, out_, s);
            });
            for (unsigned s = 0; s < o.cache->shards(); ++s) o.require(per_shard_[s]);
            to.output_error += relative_error(out_, row_of(r.out, i, queries));
            ++to.outputs;
            const auto full = row_of(r.lse, i, shape_.query_heads);
            for (std::size_t h = 0; h < lse_.size(); ++h) {
                const double share = std::exp(static_cast<double>(lse_[h]) - static_cast<double>(full[h]));
                to.has_mass = to.has_mass && !std::isnan(share);
                to.mass += share;
                ++to.masses;
            }
        }
}

void evaluator::measure(const task& of, const example& e, const engine::cache_options& options,
                        bool with_open_loop, tally& to) {
    const std::size_t prompt_end = transformer_.position();
    const engine::cache_options own = sized_for(options, of, e);
    const engine::cache_wants wants = engine::policy_wants(options.policy);
    const bool by_chunk = wants.by_chunk, reads = by_chunk || wants.replays;
    try {
        {
            opened o = open(own);
            const auto start = clock::now();
            reads ? read_prompt(e, o) : replay_prompt(o);
            to.prefill_s += seconds_since(start);
            closed_loop(of, e, o, to);
            if (by_chunk && !e.windows.empty()) {
                to.last.config.emplace_back("episodes", std::to_string(episodes_.episodes));
                to.last.config.emplace_back("medoids", std::to_string(episodes_.medoids));
            }
            const auto sizes = o.cache->sizes();
            if (!sizes) throw engine::run_failure(options.policy + ": " + sizes.error().message);
            if (*sizes) to.kept_of_rows.add(**sizes, recording_, shape_, kinds_);
        }
        if (with_open_loop && recording_.decoded != 0) {
            opened o = open(own);
            reads ? read_prompt(e, o) : replay_prompt(o);
            open_loop(o, to);
        }
    } catch (...) { // the next policy finds the model where this one did
        transformer_.rewind(transformer_.position() - prompt_end);
        engine::forget_file();
        throw;
    }
    engine::forget_file();
    ++to.examples;
}

row tally::to_row(const engine::cache_options& options, const task& of) const {
    row r;
    r.policy = options.policy;
    r.task = of.name;
    r.question = of.question();
    r.attend_tokens = options.attend_tokens;
    if (options.keep_tokens != 0) r.keep_tokens = options.keep_tokens;
    r.evicts = engine::policy_wants(options.policy).evicts;
    r.first = first;
    r.config = last.config;
    r.config.emplace_back("memory_bytes", std::to_string(options.memory_bytes));
    if (!options.owner.empty()) {
        std::string owners;
        for (const std::uint32_t l : options.owner) owners += (owners.empty() ? "" : ",") + std::to_string(l);
        r.config.emplace_back("owner", owners);
    }
    if (contains(engine::policy_wants(options.policy).inputs, kvtl::engine_input::external))
        r.config.emplace_back("external", "the full model's later attention");
    r.config.emplace_back("products", last.products);
    r.config.emplace_back("shards", std::to_string(std::max(1U, options.shards)));
    const auto mean = [](double sum, std::size_t n) { return sum / static_cast<double>(n); };
    if (asked != 0) {
        r.accuracy = mean(static_cast<double>(right), asked);
        r.accuracy_ci95 = wilson95(right, asked);
    }
    if (predictions != 0) {
        r.kl = std::max(0.0, mean(kl, predictions)); // rounding may leave -1e-17 where both are equal
        r.kl_max = kl_max;
        r.top1_agreement = mean(static_cast<double>(agreements), predictions);
        if (of.kind == task_kind::nll) {
            r.nll = mean(nll, predictions);
            r.nll_full = mean(nll_full, predictions);
        }
    }
    const auto share = [&](std::string name, const retained_sum& s) {
        return row::retained_share{std::move(name), mean(s.keys, s.rows), mean(s.values, s.rows)};
    };
    for (std::size_t i = 0; i < token_kinds.size(); ++i)
        if (const auto& sum = kept_of_rows.kinds[i]; sum.rows != 0)
            r.retained_by_kind.push_back(share(std::string(token_kinds[i]), sum));
    for (std::size_t l = 0; l < kept_of_rows.layers.size(); ++l)
        r.retained_by_layer.push_back(share("layer " + std::to_string(l), kept_of_rows.layers[l]));
    if (outputs != 0) r.output_error = mean(output_error, outputs);
    if (masses != 0 && has_mass) r.mass_recall = mean(mass, masses);
    if (examples != 0) {
        r.kept_bytes = mean(kept_bytes, examples);
        if (kept_entries > 0) r.bytes_per_entry = kept_bytes / kept_entries;
        r.prefill_s = mean(prefill_s, examples);
        for (const double kept : kept_by_layer) r.kept_by_layer.push_back(mean(kept, examples));
        r.calibration_bytes = static_cast<double>(last.detail.bytes_by_part.calibration);
        r.resident_bytes_peak = static_cast<double>(resident_bytes_peak);
        r.bytes_by_part = last.bytes_by_part;
        r.raw_cache_bytes = last.raw_cache_bytes;
    }
    if (steps != 0) {
        const auto per_token = [&](std::uint64_t n) { return mean(static_cast<double>(n), steps); };
        r.read_bytes_per_token = per_token(decode.read_bytes);
        r.useful_bytes_per_token = per_token(decode.useful_bytes);
        r.reads_per_token = per_token(decode.reads);
        r.read_entries = per_token(decode.read_entries) /
                         (static_cast<double>(options.shape.layers) * options.shape.kv_heads);
        r.mean_read_entries = decode.mean_read_entries();
        r.hit_rate = decode.hit_rate();
        if (decode.choices != 0) {
            r.selectable_entries = decode.mean_selectable_entries();
            r.empty_choices = static_cast<double>(decode.empty_choices) / static_cast<double>(decode.choices);
            r.scored_per_token = per_token(decode.choosing.scored);
            r.compared_per_token = per_token(decode.choosing.compared);
            r.opened_per_token = per_token(decode.choosing.opened);
        }
        if (decode_s > 0) r.tokens_per_s = static_cast<double>(steps) / decode_s;
        const auto& t = decode.phase_ns;
        for (const auto& [name, ns] :
             {std::pair{"append", t.append}, std::pair{"score", t.score}, std::pair{"choose", t.choose},
              std::pair{"fetch_wait", t.fetch_wait}, std::pair{"attend", t.attend},
              std::pair{"maintain", t.maintain}, std::pair{"evict", t.evict}})
            if (const auto n = ns; t.append + t.attend + t.fetch_wait != 0)
                r.phase_us.emplace_back(name, per_token(n) / 1000);
    }
    r.examples = examples;
    r.decoded_tokens = steps;
    r.io = last.io;
    r.direct = last.direct;
    return r;
}

} // namespace eval
