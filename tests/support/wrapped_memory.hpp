// A device like in_memory whose queues a test puts something around.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvtl_test {

/// A queue that does what in_memory's does: the base of those that do a little more.
class forwarding_queue {
  public:
    explicit forwarding_queue(kvtl::in_memory::queue& inner) noexcept : inner_(&inner) {}
    [[nodiscard]] kvtl::status submit(std::span<const kvtl::io_request> requests) noexcept {
        return inner_->submit(requests);
    }
    [[nodiscard]] std::size_t reap(std::span<kvtl::io_completion> done, bool wait) noexcept {
        return inner_->reap(done, wait);
    }
    [[nodiscard]] std::size_t in_flight() const noexcept { return inner_->in_flight(); }
    [[nodiscard]] kvtl::io_counters counters() const noexcept { return inner_->counters(); }

  private:
    kvtl::in_memory::queue* inner_;
};

/// Queue: made of an in_memory::queue& and what open() is given beside the plan.
template <class Queue> class wrapped_memory {
  public:
    template <class... With>
    [[nodiscard]] static kvtl::result<wrapped_memory> open(const kvtl::io_plan& plan, const With&... with) {
        auto inner = kvtl::in_memory::open({}, plan);
        if (!inner) return inner.error();
        wrapped_memory made(*std::move(inner));
        for (unsigned i = 0; i < plan.queues; ++i)
            made.queues_.push_back(std::make_unique<Queue>(made.inner_.queue(i), with...));
        return made;
    }
    [[nodiscard]] kvtl::io_device_info device_info() const noexcept { return inner_.device_info(); }
    [[nodiscard]] Queue& queue(unsigned i) noexcept { return *queues_[i]; }
    [[nodiscard]] kvtl::status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return inner_.reserve(offset, bytes);
    }
    [[nodiscard]] kvtl::in_memory::device& inner() noexcept { return inner_; }

  private:
    explicit wrapped_memory(kvtl::in_memory::device inner) : inner_(std::move(inner)) {}
    kvtl::in_memory::device inner_; // its queues stay where they are when it moves
    std::vector<std::unique_ptr<Queue>> queues_;
};

} // namespace kvtl_test
