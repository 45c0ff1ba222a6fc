// SPDX-License-Identifier: MIT
#include "drift.hpp"

#include <algorithm>
#include <cmath>

namespace bench {

namespace {

/// A good 32-bit mixer in two multiplications, which compilers turn into vector code.
constexpr std::uint32_t mix(std::uint32_t x) noexcept {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}
constexpr std::uint32_t mix(std::uint32_t a, std::uint32_t b) noexcept {
    return mix(a ^ mix(b + 0x9e3779b9U));
}

/// About standard normal: four random bytes, added up.
constexpr float normal_of(std::uint32_t random) noexcept {
    const std::uint32_t pairs = (random & 0x00ff00ffU) + ((random >> 8) & 0x00ff00ffU);
    const std::uint32_t sum = (pairs + (pairs >> 16)) & 0x7ffU;
    return (static_cast<float>(static_cast<std::int32_t>(sum)) - 510.0F) * (1.0F / 147.8F);
}
constexpr float normal(std::uint32_t key, std::uint32_t i) noexcept {
    return normal_of(mix(key + i * 0x9e3779b9U));
}
constexpr double uniform(std::uint32_t key, std::uint32_t i) noexcept {
    return (static_cast<double>(mix(mix(key, i))) + 0.5) * 0x1p-32;
}

/// Names for the streams of numbers, so that none is used twice.
enum stream : std::uint32_t { of_text, of_model, of_topic, of_key, of_query, of_value, of_focus, of_guess };

void normalise(std::vector<float>& x) {
    double sum = 0;
    for (const float a : x) sum += static_cast<double>(a) * static_cast<double>(a);
    const auto factor = static_cast<float>(1 / std::sqrt(std::max(sum, 1e-30)));
    for (float& a : x) a *= factor;
}

} // namespace

drift::drift(const kvtl::shape& shape, std::size_t prompt_tokens, std::size_t tokens, std::size_t sequences,
             std::uint64_t seed, const drift_config& config)
    : shape_(shape), prompt_tokens_(prompt_tokens), tokens_(tokens), config_(config), texts_(sequences),
      heads_(std::size_t{shape.layers} * shape.kv_heads), focus_(shape.head_dim) {
    const std::uint32_t dim = shape.head_dim;
    const std::uint32_t pairs = dim / 2;
    for (std::uint32_t s = 0; s < sequences; ++s) {
        texts_[s].key = mix(
            mix(mix(static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)), s), of_text);
        write_text(texts_[s]);
    }
    turns_.resize(tokens * pairs * 2);
    for (std::size_t i = 0; i < pairs; ++i) {
        const double frequency = std::pow(config_.rope_base, -2.0 * static_cast<double>(i) / dim);
        for (std::size_t t = 0; t < tokens; ++t) {
            const double angle = static_cast<double>(t) * frequency;
            turns_[(t * pairs + i) * 2] = static_cast<float>(std::cos(angle));
            turns_[(t * pairs + i) * 2 + 1] = static_cast<float>(std::sin(angle));
        }
    }
    for (std::uint32_t lane = 0; lane < heads_.size(); ++lane) {
        head& h = heads_[lane];
        const std::uint32_t key = mix(lane, of_model);
        h.scale.resize(dim), h.offset.resize(dim), h.shared.assign(dim, 0), h.sink.assign(dim, 0);
        for (std::uint32_t d = 0; d < dim; ++d) {
            // The slowest pairs carry most; a little disorder keeps the order of axes from being a basis.
            const double place =
                static_cast<double>(dim - 1 - d) * std::exp(0.5 * static_cast<double>(normal(key, d)));
            h.scale[d] = static_cast<float>(std::pow(1 + place, -config_.spectrum / 2));
        }
        normalise(h.scale);
        for (std::uint32_t d = 0; d < dim; ++d) {
            h.offset[d] = h.scale[d] * normal(key, dim + d) * static_cast<float>(config_.offset);
            if (d < dim / 2) h.shared[d] = normal(key, 2 * dim + d);
            if (d >= dim - dim / 4) h.sink[d] = normal(key, 3 * dim + d);
        }
        normalise(h.shared), normalise(h.sink);
    }
}

void drift::write_text(text& t) const {
    std::uint32_t draws = 0;
    const auto draw = [&] { return uniform(t.key, draws++); };
    t.burst_of.resize(tokens_);
    for (std::size_t token = 0; token < tokens_;) {
        const auto known = static_cast<std::uint32_t>(t.born.size());
        const bool fresh = known == 0 || draw() < config_.fresh;
        const std::uint32_t topic = fresh ? known : popular(known, draw());
        if (fresh) t.born.push_back(static_cast<std::uint32_t>(token));
        const auto length = static_cast<std::size_t>(1 - std::log(draw()) * (config_.burst - 1)); // geometric
        t.bursts.push_back({static_cast<std::uint32_t>(token), topic, std::max(known, topic + 1)});
        const std::size_t end = std::min(tokens_, token + length);
        for (; token < end; ++token) t.burst_of[token] = static_cast<std::uint32_t>(t.bursts.size() - 1);
    }
}

/// A topic of rank r has weight r^-zipf; the sum is inverted as an integral.
std::uint32_t drift::popular(std::uint32_t known, double u) const {
    const double power = 1 - config_.zipf;
    const double top = static_cast<double>(known) + 1;
    const double rank =
        std::abs(power) < 1e-6 ? std::pow(top, u) : std::pow(1 + u * (std::pow(top, power) - 1), 1 / power);
    return std::min(known - 1, static_cast<std::uint32_t>(rank - 1));
}

/// Where a topic is at some token: a fixed part, and one that goes from one random place to the next.
void drift::centre(const text& t, std::uint32_t lane, const head& h, std::uint32_t topic, std::size_t token,
                   float* out) const {
    const std::uint32_t key = mix(mix(mix(t.key, lane), topic), of_topic);
    const double age = (static_cast<double>(token) - t.born[topic]) / config_.wander_tokens;
    const auto step = static_cast<std::uint32_t>(age);
    const double part = age - step;
    const double moving = std::sqrt(config_.wander / (part * part + (1 - part) * (1 - part)));
    const auto stays = static_cast<float>(std::sqrt(1 - config_.wander));
    const auto leaves = static_cast<float>((1 - part) * moving);
    const auto comes = static_cast<float>(part * moving);
    const std::uint32_t from = mix(key, step);
    const std::uint32_t to = mix(key, step + 1);
    for (std::uint32_t d = 0; d < shape_.head_dim; ++d)
        out[d] = h.scale[d] * (stays * normal(key, d) + leaves * normal(from, d) + comes * normal(to, d));
}

void drift::key_row(const text& t, std::uint32_t lane, const head& h, std::size_t token, const float* topic,
                    float* out) const {
    const std::uint32_t dim = shape_.head_dim;
    const std::uint32_t key = mix(mix(mix(t.key, lane), static_cast<std::uint32_t>(token)), of_key);
    const bool sink = token < config_.sinks;
    const auto length =
        static_cast<float>(std::exp(config_.norm_spread * static_cast<double>(normal(key, dim))));
    const float content = sink ? 0.0F : length;
    const float noise = content * static_cast<float>(config_.noise);
    const float shared = content * static_cast<float>(config_.shared);
    const float own = sink ? 1.0F : 0.0F;
    for (std::uint32_t d = 0; d < dim; ++d)
        out[d] = content * (h.offset[d] + topic[d]) + noise * h.scale[d] * normal(key, d) +
                 shared * h.shared[d] + own * h.sink[d];
}

void drift::query_row(const text& t, std::uint32_t lane, const head& h, std::uint32_t query_head,
                      std::size_t token, const float* topic, float* out) {
    const std::uint32_t dim = shape_.head_dim;
    const std::uint32_t identity = mix(mix(lane, query_head), of_query);
    const auto taste = [&](std::uint32_t what, double logit) { // this head's share of a knob
        return logit * std::exp(config_.variety * static_cast<double>(normal(identity, what)));
    };
    // For a while a head is after one old topic; when that changes is its own affair.
    const auto dwell = static_cast<std::size_t>(std::max(1.0, config_.dwell));
    const auto spell = static_cast<std::uint32_t>((token + identity % dwell) / dwell);
    const burst& now = t.bursts[t.burst_of[token]];
    const std::uint32_t after = popular(now.known, uniform(mix(mix(t.key, identity), of_focus), spell));
    centre(t, lane, h, after, token, focus_.data());

    const double root = std::sqrt(static_cast<double>(dim)); // attention divides by it
    const auto sink = static_cast<float>(root * taste(0, config_.sink_logit));
    const auto near =
        static_cast<float>(root * taste(1, config_.near_logit) / std::max(config_.shared, 1e-3));
    const auto own = static_cast<float>(root * taste(2, config_.topic_logit));
    const auto focus = static_cast<float>(root * taste(3, config_.focus_logit));
    // Against a key's own noise, whose elements are scale * normal: the deviation of the sum is the knob.
    double fourth = 0;
    for (const float s : h.scale)
        fourth +=
            static_cast<double>(s) * static_cast<double>(s) * static_cast<double>(s) * static_cast<double>(s);
    const double found = std::sqrt(fourth * (1 + config_.noise * config_.noise));
    const auto noise = static_cast<float>(root * config_.noise_logit / found);
    const std::uint32_t key = mix(mix(mix(t.key, identity), static_cast<std::uint32_t>(token)), of_query);
    for (std::uint32_t d = 0; d < dim; ++d)
        out[d] = sink * h.sink[d] + near * h.shared[d] + own * topic[d] + focus * focus_[d] +
                 noise * h.scale[d] * normal(key, d);
}

void drift::rotate(std::size_t token, float* row) const {
    const std::uint32_t pairs = shape_.head_dim / 2;
    const float* turn = turns_.data() + token * pairs * 2;
    for (std::uint32_t i = 0; i < pairs; ++i) {
        const float a = row[2 * i];
        const float b = row[2 * i + 1];
        row[2 * i] = a * turn[2 * i] - b * turn[2 * i + 1];
        row[2 * i + 1] = a * turn[2 * i + 1] + b * turn[2 * i];
    }
}

void drift::rows(std::size_t sequence, std::uint32_t layer, std::size_t first, std::size_t count,
                 const token_rows& out) {
    const text& t = texts_[sequence < texts_.size() ? sequence : 0];
    const std::uint32_t dim = shape_.head_dim;
    const std::uint32_t group = shape_.query_heads / shape_.kv_heads;
    std::vector<float> topic(dim), meaning(dim), key(dim);
    const auto certain = static_cast<float>(config_.prediction);
    const auto doubt =
        static_cast<float>(std::sqrt(std::max(0.0, 1 - config_.prediction * config_.prediction)));
    for (std::uint32_t kv = 0; kv < shape_.kv_heads; ++kv) {
        const std::uint32_t lane = layer * shape_.kv_heads + kv;
        const head& h = heads_[lane];
        std::size_t known_burst = t.bursts.size();
        for (std::size_t token = first; token < first + count; ++token) {
            const std::size_t b = t.burst_of[token];
            if (b != known_burst) { // a topic stays where it is during a burst
                centre(t, lane, h, t.bursts[b].topic, t.bursts[b].first, topic.data());
                const std::uint32_t value_key = mix(mix(mix(t.key, lane), t.bursts[b].topic), of_value);
                for (std::uint32_t d = 0; d < dim; ++d) meaning[d] = 0.5F * normal(value_key, d);
                known_burst = b;
            }
            const std::size_t at = ((token - first) * shape_.kv_heads + kv) * dim;
            if (!out.k.empty() || !out.k_pre.empty()) {
                key_row(t, lane, h, token, topic.data(), key.data());
                if (!out.k_pre.empty())
                    std::copy(key.begin(), key.end(), out.k_pre.begin() + static_cast<std::ptrdiff_t>(at));
                if (!out.k.empty()) {
                    rotate(token, key.data());
                    std::copy(key.begin(), key.end(), out.k.begin() + static_cast<std::ptrdiff_t>(at));
                }
            }
            if (!out.v.empty()) {
                const std::uint32_t value_key =
                    mix(mix(mix(t.key, lane), static_cast<std::uint32_t>(token)), of_value);
                const float size =
                    token < config_.sinks ? 0.05F : 0.5F; // models park attention where it says nothing
                float* v = out.v.data() + at;
                for (std::uint32_t d = 0; d < dim; ++d)
                    v[d] = size * normal(value_key, d) + (token < config_.sinks ? 0 : meaning[d]);
            }
            if (out.q.empty() && out.prediction.empty()) continue;
            for (std::uint32_t g = 0; g < group; ++g) {
                const std::uint32_t head_number = kv * group + g;
                query_row(t, lane, h, head_number, token, topic.data(), key.data());
                rotate(token, key.data());
                const std::size_t to = ((token - first) * shape_.query_heads + head_number) * dim;
                if (!out.q.empty())
                    std::copy(key.begin(), key.end(), out.q.begin() + static_cast<std::ptrdiff_t>(to));
                if (out.prediction.empty()) continue;
                double square = 0;
                for (const float x : key) square += static_cast<double>(x) * static_cast<double>(x);
                const float off = doubt * static_cast<float>(std::sqrt(square / dim));
                const std::uint32_t guess =
                    mix(mix(mix(t.key, mix(lane, head_number)), static_cast<std::uint32_t>(token)), of_guess);
                for (std::uint32_t d = 0; d < dim; ++d)
                    out.prediction[to + d] = certain * key[d] + off * normal(guess, d);
            }
        }
    }
}

} // namespace bench
