// An engine's threads for tests: a new one for each task, all of them at once.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/lent_threads.hpp>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace kvtl_test {

class lending {
  public:
    explicit lending(unsigned count) : count_(count) {}

    [[nodiscard]] kvtl::lent_threads threads() noexcept {
        return {.run =
                    [](void* pool, std::size_t n, kvtl::lent_threads::task f, void* with) noexcept {
                        ++static_cast<lending*>(pool)->calls_;
                        std::vector<std::thread> all;
                        for (std::size_t i = 0; i < n; ++i) all.emplace_back([=] { f(with, i); });
                        for (auto& t : all) t.join();
                    },
                .pool = this,
                .count = count_};
    }
    /// How often something was handed over.
    [[nodiscard]] std::size_t calls() const { return calls_; }

  private:
    unsigned count_;
    std::atomic<std::size_t> calls_ = 0;
};

} // namespace kvtl_test
