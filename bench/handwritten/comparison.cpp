// SPDX-License-Identifier: MIT
#include "comparison.hpp"

#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/kvswap.hpp>

#include "error.hpp"
#include "fit_calibration.hpp"
#include "kvswap_loop.hpp"
#include "scratch_files.hpp"
#include "take_over.hpp"
#include "workload.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <vector>

namespace bench {

namespace {

static_assert(dynakv_loop::dim == kvswap_loop::dim);

void require(const kvtl::status& s) {
    if (!s) throw engine::run_failure(s.what());
}

template <class T> T opened(kvtl::result<T> made, const std::string& policy) {
    if (!made) throw engine::bad_input(policy + ": " + made.error().message);
    return *std::move(made);
}

/// What the model hands over for one token: every layer's rows.
class token_of_all_layers {
  public:
    explicit token_of_all_layers(workload& w)
        : w_(w), q_(w.shape().layers * w.query_floats()), guess_(q_.size()),
          k_(w.shape().layers * w.key_floats()), v_(k_.size()) {}
    void generate(std::size_t token) {
        for (std::uint32_t l = 0; l < w_.shape().layers; ++l)
            w_.rows(0, l, token, 1,
                    {.q = part(q_, l), .k = part(k_, l), .v = part(v_, l), .prediction = part(guess_, l)});
    }
    [[nodiscard]] std::span<float> q(std::uint32_t l) { return part(q_, l); }
    [[nodiscard]] std::span<float> k(std::uint32_t l) { return part(k_, l); }
    [[nodiscard]] std::span<float> v(std::uint32_t l) { return part(v_, l); }
    [[nodiscard]] std::span<float> guess(std::uint32_t l) { return part(guess_, l); }

  private:
    [[nodiscard]] std::span<float> part(std::vector<float>& all, std::uint32_t l) const {
        const std::size_t n = all.size() / w_.shape().layers;
        return std::span(all).subspan(l * n, n);
    }
    workload& w_;
    std::vector<float> q_, guess_, k_, v_;
};

/// take(layer, tokens, k, v) for the prompt, chunk by chunk.
template <class Take> void read_prompt(workload& w, std::size_t tokens, Take&& take) {
    constexpr std::size_t chunk = 1024;
    std::vector<float> k(chunk * w.key_floats()), v(k.size());
    for (std::size_t first = 0; first < tokens; first += chunk) {
        const std::size_t n = std::min(chunk, tokens - first), floats = n * w.key_floats();
        for (std::uint32_t l = 0; l < w.shape().layers; ++l) {
            w.rows(0, l, first, n, {.k = std::span(k).first(floats), .v = std::span(v).first(floats)});
            take(l, std::span<const float>(k).first(floats), std::span<const float>(v).first(floats),
                 first + n == tokens);
        }
    }
}

template <class Cache> typename Cache::config config_of(const comparison_options& o) {
    typename Cache::config c;
    c.shape = o.shape;
    c.max_tokens = o.context + o.steps + comparison_options::warm_up;
    c.memory_bytes = static_cast<std::size_t>(o.memory_mib * (1 << 20));
    c.attend_tokens = o.attend_tokens;
    c.read_through_pages = 0; // a gap costs its bytes, and a request nothing
    c.lend_tables = false;    // by hand there are as many frames all the time
    return c;
}

template <class Cache> void prefill(Cache& cache, kvtl::sequence_id seq, workload& w, std::size_t tokens) {
    read_prompt(w, tokens, [&](std::uint32_t l, auto k, auto v, bool last) {
        kvtl::layer_input in;
        in.k = k, in.v = v, in.last_chunk = last;
        require(cache.prefill(seq, l, in, {}));
    });
}

/// CPU time of this thread: nothing here waits, and what other programs take of the machine is no part of it.
double milliseconds() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

/// The summary of samples, and the median's interval.
double median_of(std::vector<double> samples, std::optional<interval>& known) {
    std::sort(samples.begin(), samples.end());
    known = median_interval95(samples);
    return samples[samples.size() / 2];
}

/// Both sides decode: composed(token, out) and handwritten(token, out) are one step of all layers.
template <class Composed, class Handwritten>
comparison run(const comparison_options& o, workload& w, Composed&& composed, Handwritten&& handwritten) {
    token_of_all_layers token(w);
    std::vector<float> a(o.shape.layers * w.query_floats()), b(a.size());
    std::vector<double> a_ms, b_ms, ratio;
    comparison c;
    const auto timed = [&](auto& side, std::vector<float>& out) {
        const double begin = milliseconds();
        require(side(token, std::span(out)));
        return milliseconds() - begin;
    };
    for (; c.steps < comparison_options::warm_up + o.steps; ++c.steps) {
        token.generate(o.context + c.steps);
        double of_a = 0, of_b = 0;
        if (c.steps % 2 == 0) {
            of_a = timed(composed, a);
            of_b = timed(handwritten, b);
        } else {
            of_b = timed(handwritten, b);
            of_a = timed(composed, a);
        }
        c.equal_steps += std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 ? 1 : 0;
        if (c.steps < comparison_options::warm_up) continue;
        a_ms.push_back(of_a), b_ms.push_back(of_b), ratio.push_back(of_a / of_b);
    }
    c.composed_ms = median_of(std::move(a_ms), c.composed);
    c.handwritten_ms = median_of(std::move(b_ms), c.handwritten);
    c.ratio = median_of(std::move(ratio), c.of_ratio);
    return c;
}

void note_bytes(comparison& c, std::uint64_t composed, std::uint64_t handwritten) {
    c.composed_bytes = static_cast<double>(composed) / static_cast<double>(c.steps);
    c.handwritten_bytes = static_cast<double>(handwritten) / static_cast<double>(c.steps);
}

comparison compare_dynakv(const comparison_options& o, workload& w) {
    using cache_type = kvtl::kv_manager<dynakv_in_memory>;
    const auto config = opened(cache_type::fitted(config_of<cache_type>(o)), o.policy);
    cache_type cache = opened(cache_type::open(config), o.policy);
    const kvtl::sequence_id seq = opened(cache.begin(), o.policy);
    prefill(cache, seq, w, o.context);
    dynakv_loop loop = opened(take_over(cache, config), o.policy);
    const std::uint64_t before = cache.stats().read_bytes;
    const std::size_t row = w.query_floats();
    comparison c = run(
        o, w,
        [&](token_of_all_layers& t, std::span<float> out) {
            kvtl::status done;
            for (std::uint32_t l = 0; done.ok() && l < o.shape.layers; ++l)
                done =
                    cache.attend(seq, l, {.q = t.q(l), .k = t.k(l), .v = t.v(l)}, out.subspan(l * row, row));
            return done;
        },
        [&](token_of_all_layers& t, std::span<float> out) {
            kvtl::status done;
            for (std::uint32_t l = 0; done.ok() && l < o.shape.layers; ++l)
                done = loop.step(l, t.q(l).data(), t.k(l).data(), t.v(l).data(), &out[l * row]);
            return done;
        });
    note_bytes(c, cache.stats().read_bytes - before, loop.read_bytes());
    return c;
}

struct kvswap_in_memory : kvtl::presets::kvswap {
    using io = kvtl::in_memory;
};

comparison compare_kvswap(const comparison_options& o, workload& w, const workload_request& request) {
    using cache_type = kvtl::kv_manager<kvswap_in_memory, kvtl::engine_inputs_for<kvswap_in_memory>>;
    const scratch_file file(o.scratch + ".calibration", scratch_file::owner::ours);
    require(fit_calibration(o.shape, *make_calibration_sample(request), file.path()));
    auto config = config_of<cache_type>(o);
    config.calibration = file.path();
    config = opened(cache_type::fitted(config), o.policy);
    cache_type cache = opened(cache_type::open(config), o.policy);
    const kvtl::sequence_id seq = opened(cache.begin(), o.policy);
    prefill(cache, seq, w, o.context);

    const auto adapter = opened(kvtl::calibration::load(file.path(), o.shape), o.policy);
    kvswap_sizes s;
    s.layers = o.shape.layers, s.kv_heads = o.shape.kv_heads;
    s.group = o.shape.query_heads / o.shape.kv_heads;
    s.max_tokens = static_cast<std::uint32_t>(config.max_tokens);
    s.attend_tokens = static_cast<std::uint32_t>(o.attend_tokens);
    s.window = config.window_tokens;
    s.true_layers = config.schedule.true_layers;
    s.rank =
        static_cast<std::uint32_t>(std::min<std::size_t>(config.index.rank, adapter.view().adapter(0).count));
    s.slots = kvtl::shard_access::of(cache, 0).store().pool_of(0).size() / s.layers;
    s.scale = 1.0F / std::sqrt(static_cast<float>(kvswap_loop::dim));
    kvswap_loop loop = opened(kvswap_loop::open(s, adapter.view()), o.policy);
    read_prompt(w, o.context, [&](std::uint32_t l, auto k, auto v, bool) {
        for (std::size_t at = 0; at < k.size(); at += w.key_floats()) require(loop.take(l, &k[at], &v[at]));
    });
    const std::uint64_t before = cache.stats().read_bytes;
    const std::size_t row = w.query_floats();
    comparison c = run(
        o, w,
        [&](token_of_all_layers& t, std::span<float> out) {
            kvtl::status done;
            for (std::uint32_t l = 0; done.ok() && l < o.shape.layers; ++l) {
                if (l + 1 < o.shape.layers) done = cache.prefetch(seq, l + 1, t.guess(l + 1));
                if (done.ok())
                    done = cache.attend(seq, l, {.q = t.q(l), .k = t.k(l), .v = t.v(l)},
                                        out.subspan(l * row, row));
            }
            return done;
        },
        [&](token_of_all_layers& t, std::span<float> out) {
            kvtl::status done;
            for (std::uint32_t l = 0; done.ok() && l < o.shape.layers; ++l) {
                if (l + 1 < o.shape.layers) done = loop.prefetch(l + 1, t.guess(l + 1).data());
                if (done.ok())
                    done = loop.step(l, t.q(l).data(), t.k(l).data(), t.v(l).data(), &out[l * row]);
            }
            return done;
        });
    note_bytes(c, cache.stats().read_bytes - before, loop.read_bytes());
    return c;
}

} // namespace

comparison compare_with_handwritten(const comparison_options& o) {
    workload_request request;
    request.text = o.workload, request.shape = o.shape, request.prompt_tokens = o.context;
    request.tokens = o.context + o.steps + comparison_options::warm_up, request.rope_base = o.rope_base;
    const auto w = make_workload(request);
    return o.policy == "dynakv" ? compare_dynakv(o, *w) : compare_kvswap(o, *w, request);
}

} // namespace bench
