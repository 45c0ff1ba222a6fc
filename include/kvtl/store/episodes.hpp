// Episodes of a conversation: windows of utterances that belong together, so that each episode has a cache of its own.
//
//   auto found = kvtl::episodes::cluster(embeddings, width, {.episodes = 4});   // (N, width), a row for each window
//   for (std::size_t e = 0; e < found->size(); ++e) {                            // one sequence for each episode
//       const auto windows = *found->medoids(e);                                // their text is the probe of each chunk
//       ...                                                                     // prefill with layer_input::probe
//   }
//   const auto nearest = found->nearest(embedding_of_the_question);             // decode in this episode's sequence
//
// What:    the engine embeds windows of a few utterances, and later a question. Embeddings are compared by their directions:
//          k-means groups those of the windows, and a question belongs to the episode with the nearest mean. Medoids are the
//          windows nearest to that mean; their text stands for what the episode will be asked.
//          Caches of one conversation's episodes have the same tokens. A prefix_store tells them apart by prefix_space::input.
// Shapes:  embeddings (N, W) f32, N windows. Caches are ordinary sequences of any cache; nothing here refers to them.
// Cost:    `starts` times 100 N E W multiply-adds at most; E comparisons for a question. Cold; memory is allocated.
// Errors:  a shape that does not fit, a number that is not finite, and an episode that is not there. Nothing is changed.
// Limits:  deterministic: equal input gives equal episodes on one architecture.
// Source:  EpiCache (Kim et al.): windows of 4 utterances, 4 episodes, 4 medoids, k-means from 10 starts.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/kmeans.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

struct episodes_config {
    std::uint32_t episodes = 4; ///< 1: the whole conversation is one
    std::uint32_t medoids = 4;  ///< windows that stand for an episode, at most
    std::uint32_t starts = 10;  ///< of k-means; the one with the least inertia counts
    std::uint64_t seed = 1;
};

class episodes {
  public:
    /// Groups the rows of `embeddings` (N, width). Fails with invalid_argument where the numbers are no rows, where one is
    /// not finite, or where there are fewer rows than episodes.
    [[nodiscard]] static result<episodes> cluster(std::span<const float> embeddings, std::size_t width,
                                                  const episodes_config& config = {}) {
        if (width == 0 || embeddings.empty() || embeddings.size() % width != 0)
            return status::failure(errc::invalid_argument,
                                   "episodes: embeddings has %zu numbers; valid: a positive multiple of "
                                   "width = %zu",
                                   embeddings.size(), width);
        if (!simd::all_finite(embeddings.data(), embeddings.size()))
            return status::failure(errc::invalid_argument,
                                   "episodes: embeddings holds a number that is not finite");
        const std::size_t n = embeddings.size() / width;
        if (config.episodes == 0 || config.episodes > n)
            return status::failure(errc::invalid_argument,
                                   "episodes: episodes is %u; valid: 1 to %zu, the number of windows",
                                   config.episodes, n);
        if (config.medoids == 0 || config.starts == 0)
            return status::failure(errc::invalid_argument,
                                   "episodes: medoids is %u and starts is %u; valid: 1 or more",
                                   config.medoids, config.starts);
        episodes found;
        found.width_ = width, found.config_ = config;
        found.windows_.assign(embeddings.begin(), embeddings.end());
        for (std::size_t i = 0; i < n; ++i) to_unit({&found.windows_[i * width], width});
        found.group(n);
        return found;
    }

    [[nodiscard]] std::size_t size() const noexcept { return config_.episodes; }
    /// (N) the episode of each window.
    [[nodiscard]] std::span<const std::uint32_t> labels() const noexcept { return labels_; }

    /// The windows that stand for an episode, in the order of the conversation: `medoids` of them, or all that it has. Fails
    /// with out_of_range for an episode that is not there.
    [[nodiscard]] result<std::vector<std::uint32_t>> medoids(std::size_t episode) const {
        if (episode >= size())
            return status::failure(errc::out_of_range, "medoids: episode is %zu; valid: 0 to %zu", episode,
                                   size() - 1);
        std::vector<std::uint32_t> own;
        for (std::uint32_t i = 0; i < labels_.size(); ++i)
            if (labels_[i] == episode) own.push_back(i);
        std::vector<float> far(labels_.size());
        for (const std::uint32_t i : own) far[i] = simd::l2sq(centroid(episode), window(i), width_);
        std::stable_sort(own.begin(), own.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return far[a] < far[b]; });
        own.resize(std::min<std::size_t>(own.size(), config_.medoids));
        std::sort(own.begin(), own.end());
        return own;
    }

    /// The episode whose mean is nearest to an embedding (width), among equals the first. Fails with invalid_argument for one
    /// of another width, or with a number that is not finite.
    [[nodiscard]] result<std::uint32_t> nearest(std::span<const float> embedding) const {
        if (embedding.size() != width_)
            return status::failure(errc::invalid_argument, "nearest: embedding has %zu numbers; valid: %zu",
                                   embedding.size(), width_);
        if (!simd::all_finite(embedding.data(), embedding.size()))
            return status::failure(errc::invalid_argument,
                                   "nearest: embedding holds a number that is not finite");
        std::vector<float> x(embedding.begin(), embedding.end());
        to_unit(x);
        std::uint32_t best = 0;
        float least = std::numeric_limits<float>::infinity();
        for (std::uint32_t e = 0; e < size(); ++e)
            if (const float far = simd::l2sq(centroid(e), x.data(), width_); far < least)
                best = e, least = far;
        return best;
    }

  private:
    /// A row of zeros stays.
    static void to_unit(std::span<float> x) noexcept {
        double square = 0;
        for (const float v : x) square += static_cast<double>(v) * static_cast<double>(v);
        if (square == 0) return;
        for (float& v : x) v = static_cast<float>(static_cast<double>(v) / std::sqrt(square));
    }
    [[nodiscard]] const float* window(std::size_t i) const noexcept { return &windows_[i * width_]; }
    [[nodiscard]] const float* centroid(std::size_t e) const noexcept { return &centroids_[e * width_]; }

    void group(std::size_t n) {
        const rows_view<float> points{windows_.data(), n, width_, width_};
        carver sizes;
        static_cast<void>(detail::kmeans_memory::take(sizes, n, width_, size()));
        std::vector<std::byte> scratch(sizes.used() + 64);
        const auto to = reinterpret_cast<std::uintptr_t>(scratch.data()) % 64;
        const auto memory = std::span(scratch).subspan((64 - to) % 64);
        std::vector<float> centroids(size() * width_);
        std::vector<std::uint32_t> labels(n);
        double least = std::numeric_limits<double>::infinity();
        for (std::uint32_t s = 0; s < config_.starts; ++s) {
            const kmeans_config c{.seed = config_.seed * 1000003 + s,
                                  .max_iterations = 100,
                                  .min_gain = 0,
                                  .samples_per_centroid = static_cast<std::uint32_t>(n / size()),
                                  .flat_up_to = static_cast<std::uint32_t>(n)};
            const double inertia =
                kmeans(points, config_.episodes, c, memory, centroids.data(), labels.data()).inertia;
            if (inertia < least) least = inertia, centroids_ = centroids, labels_ = labels;
        }
    }

    std::size_t width_ = 0;
    episodes_config config_;
    std::vector<float> windows_,
        centroids_; ///< (N, W), (E, W): directions of the windows, and means of these
    std::vector<std::uint32_t> labels_;
};

}} // namespace kvtl::v0
