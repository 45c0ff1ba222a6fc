// Index: product codes of the keys (PQCache; product quantisation: Jegou, Douze, Schmid 2011).
//
// The D channels of a head are divided into m parts. Each part of a lane's keys has its own 2^b centroids. A
// key is stored as m numbers: the nearest centroid of each part. With d(entry) the key decoded from them,
//
//   score(q, entry) = q . d(entry) = sum over parts s of table_s[code_s]      table_s[c] = q_s . centroid_s,c
//
// fit() finds the centroids by k-means over an even sample of a lane's first keys. They never change after
// that, as in the paper. A codebook has fewer than 2^b centroids if there was no prompt, if the prompt was
// short, or if its keys are alike. Every new key that is not yet a centroid then becomes one.
//
// Bytes:  per entry and KV head m (a code takes a byte for any b); per lane and KV head 4 D 2^b for
//         centroids, 4 m for their numbers.
// Cost:   absorb 2^b D multiply-adds per head; a query's tables 2^b D, then m loads and additions per entry.
// Limits: b <= 8. The lengths of parts differ by one if m does not divide D.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/policies/support/kmeans.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/lookup.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct product_codes {
    static constexpr std::string_view name = "product_codes";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool per_entry = true;
    static constexpr bool fits = true;
    static constexpr std::uint32_t most_iterations =
        256; ///< of k-means, which ends where nothing moves any more
    struct config {
        std::uint32_t parts = 2;       ///< m, at most D
        std::uint32_t bits = 6;        ///< b, 1 to 8
        std::uint32_t sample = 4096;   ///< keys that fit() looks at
        std::uint32_t iterations = 10; ///< of k-means; the paper runs as many as prefill leaves time for
        std::uint64_t seed = 1;
        template <class Visit> void fields(Visit&& visit) {
            visit("parts", parts);
            visit("bits", bits);
            visit("sample", sample);
            visit("iterations", iterations);
            visit("seed", seed);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : config_(c) {
            config_.bits = std::clamp(c.bits, 1U, 8U);
            config_.sample = std::max(c.sample, 1U);
        }

        /// Refuses a config that cannot work.
        [[nodiscard]] static status check(const config& c) noexcept {
            const auto wrong = errc::invalid_argument;
            if (c.parts == 0) return status::failure(wrong, "index.parts is 0; valid: 1 to head_dim");
            if (c.bits == 0 || c.bits > 8)
                return status::failure(wrong, "index.bits is %u; valid: 1 to 8", c.bits);
            if (c.sample == 0) return status::failure(wrong, "index.sample is 0; valid: 1 or more");
            if (c.iterations == 0 || c.iterations > most_iterations)
                return status::failure(wrong, "index.iterations is %u; valid: 1 to %u", c.iterations,
                                       most_iterations);
            return {};
        }

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return shape.max_entries * code_bytes(shape);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return books_at(shape) + centroids() * shape.width() * sizeof(float);
        }
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return parts(shape) * centroids();
        }
        [[nodiscard]] std::size_t fit_scratch_bytes(const summary_shape& shape,
                                                    std::size_t max_tokens) const noexcept {
            const std::size_t n = std::min<std::size_t>(max_tokens, config_.sample);
            carver c;
            static_cast<void>(c.take<std::uint32_t>(n));
            return c.used() + 64 +
                   kmeans_scratch_bytes(n, begin(shape, 1), std::min<std::size_t>(n, centroids()));
        }

        /// keys: (T, lane heads * D), the lane's first
        template <element E>
        void fit(const summary_view& view, rows_view<E> keys, std::span<std::byte> scratch) const noexcept {
            if (keys.count == 0) return;
            const std::size_t step = (keys.count + config_.sample - 1) / config_.sample;
            const std::size_t n = (keys.count + step - 1) / step;
            const auto k = static_cast<std::uint32_t>(std::min(n, centroids()));
            carver c(scratch);
            std::uint32_t* label = c.take<std::uint32_t>(n).data();
            const auto rest = scratch.subspan((c.used() + 63) / 64 * 64);
            kmeans_config how;
            how.seed = config_.seed;
            how.max_iterations = std::max(config_.iterations, 1U);
            for_each_part(view.shape, [&](std::uint32_t h, std::uint32_t s, std::size_t first,
                                          std::size_t d) {
                const rows_view<E> sample{keys.data + h * view.shape.dim + first, n, d, step * keys.stride};
                float* book = codebook(view, h, s);
                kmeans(sample, k, how, rest, book, label);
                std::uint32_t& kept = filled(view, h, s) = 0;
                for (std::size_t j = 0; j < k; ++j) // with fewer different keys some are copies
                    if (is_new(nearest(book + j * d, book, kept, d))) {
                        if (j != kept) std::copy_n(book + j * d, d, book + kept * d);
                        ++kept;
                    }
            });
        }

        /// Entries that are absent get code 0, which every table has.
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::fill_n(codes(view, u, 0), unit_bytes(view.shape), std::uint8_t{0});
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            std::uint8_t* code = codes(view, u, i);
            for_each_part(view.shape,
                          [&](std::uint32_t h, std::uint32_t s, std::size_t first, std::size_t d) {
                              const float* part = key + h * view.shape.dim + first;
                              float* book = codebook(view, h, s);
                              std::uint32_t& n = filled(view, h, s);
                              simd::neighbour at = nearest(part, book, n, d);
                              if (n < centroids() && is_new(at)) {
                                  std::copy_n(part, d, book + n * d);
                                  at.index = n++;
                              }
                              *code++ = static_cast<std::uint8_t>(at.index);
                          });
        }
        /// key: (lane heads, D), the key that entry i scores as
        void decode(const summary_view& view, std::uint32_t u, std::uint32_t i, float* key) const noexcept {
            const std::uint8_t* code = codes(view, u, i);
            for_each_part(
                view.shape, [&](std::uint32_t h, std::uint32_t s, std::size_t first, std::size_t d) {
                    std::copy_n(codebook(view, h, s) + *code++ * d, d, key + h * view.shape.dim + first);
                });
        }

        /// out: (queries, U, max_entries)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            const summary_view& view = u.summary;
            const std::size_t m = parts(view.shape), entries = std::size_t{u.count} * u.max_entries;
            const std::uint8_t* code = codes(view, 0, 0) + u.head * m;
            for (std::uint32_t g = 0; g < queries; ++g, q += view.shape.dim) {
                for (std::uint32_t s = 0; s < m; ++s) {
                    const std::size_t first = begin(view.shape, s), d = begin(view.shape, s + 1) - first;
                    simd::dot_rows(q + first,
                                   rows_view<float>{codebook(view, u.head, s), filled(view, u.head, s), d, d},
                                   scratch.data() + s * centroids());
                }
                simd::sum_lookups(scratch.data(), centroids(), m, code, code_bytes(view.shape), entries,
                                  out.data() + g * entries);
            }
            detail::hide_absent_entries(u, queries, out.data());
        }

      private:
        [[nodiscard]] std::size_t centroids() const noexcept { return std::size_t{1} << config_.bits; }
        [[nodiscard]] std::uint32_t parts(const summary_shape& shape) const noexcept {
            return std::clamp(config_.parts, 1U, shape.dim);
        }
        [[nodiscard]] std::size_t code_bytes(const summary_shape& shape) const noexcept {
            return std::size_t{shape.lane_heads} * parts(shape);
        }
        /// First channel of part s: the longer parts come first.
        [[nodiscard]] std::size_t begin(const summary_shape& shape, std::uint32_t s) const noexcept {
            const std::uint32_t m = parts(shape);
            return std::size_t{s} * (shape.dim / m) + std::min(s, shape.dim % m);
        }
        /// f(head, part, first channel, channels)
        template <class F> void for_each_part(const summary_shape& shape, F&& f) const noexcept {
            for (std::uint32_t h = 0; h < shape.lane_heads; ++h)
                for (std::uint32_t s = 0; s < parts(shape); ++s)
                    f(h, s, begin(shape, s), begin(shape, s + 1) - begin(shape, s));
        }
        /// How many centroids a part has.
        [[nodiscard]] std::uint32_t& filled(const summary_view& view, std::uint32_t h,
                                            std::uint32_t s) const noexcept {
            return view.of_lane<std::uint32_t>()[std::size_t{h} * parts(view.shape) + s];
        }
        [[nodiscard]] std::size_t books_at(const summary_shape& shape) const noexcept {
            return (std::size_t{shape.lane_heads} * parts(shape) * sizeof(std::uint32_t) + 63) / 64 * 64;
        }
        /// Among the first n of a codebook.
        [[nodiscard]] static simd::neighbour nearest(const float* part, const float* book, std::size_t n,
                                                     std::size_t d) noexcept {
            return simd::nearest_row(part, rows_view<float>{book, n, d, d});
        }
        [[nodiscard]] static bool is_new(const simd::neighbour& at) noexcept { return at.distance > 0.0F; }
        /// (centroids, channels of the part)
        [[nodiscard]] float* codebook(const summary_view& view, std::uint32_t h,
                                      std::uint32_t s) const noexcept {
            return reinterpret_cast<float*>(view.lane + books_at(view.shape)) +
                   centroids() * (std::size_t{h} * view.shape.dim + begin(view.shape, s));
        }
        [[nodiscard]] std::uint8_t* codes(const summary_view& view, std::uint32_t u,
                                          std::uint32_t i) const noexcept {
            return view.of<std::uint8_t>(u) + i * code_bytes(view.shape);
        }

        config config_{};
    };
};

}} // namespace kvtl::v0
