// What the server counts, as Prometheus reads it.
//
// Threads: any may count and read.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/prefix_store.hpp>
#include <kvtl/store/remote_tier.hpp>

#include "kv_cache.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace kvtl_server {

using counter = std::atomic<std::uint64_t>;

/// Seconds, by their size.
class histogram {
  public:
    static constexpr std::array<double, 13> bounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                      1,     2.5,  5,     10,   60,  300};

    void observe(double seconds) noexcept;
    void append_to(std::string& out, const char* name) const;

  private:
    std::array<counter, bounds.size() + 1> counts_{};
    std::atomic<double> sum_ = 0;
};

class metrics {
  public:
    counter prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    counter finished = 0, failed = 0, given_up = 0, refused = 0; ///< requests
    counter waiting = 0, answering = 0;                          ///< requests, now
    counter steps = 0;                                           ///< batches decoded
    histogram first_token, each_token, request;

    /// What the cache and the store have counted so far.
    void take(const engine::cache_stats& s, const kvtl::prefix_statistics& stored);
    /// Where the numbers of the remote come from, which change while nobody asks. Before others read.
    void watch(std::function<kvtl::remote_statistics()> remote) { remote_ = std::move(remote); }

    /// In the text format of Prometheus.
    [[nodiscard]] std::string text() const;

  private:
    struct cache_numbers {
        std::uint64_t memory = 0, storage = 0, read = 0, reads = 0, written = 0;
        double hit_rate = 0;
    };
    mutable std::mutex mutex_;
    cache_numbers cache_;
    kvtl::prefix_statistics store_;
    std::function<kvtl::remote_statistics()> remote_;
};

} // namespace kvtl_server
