// Any device behind one interface. The core knows devices by it alone, so presets that differ in their io policy share all
// other code. It is also an io policy: programs that choose a device at run time compile a preset once.
//
//   config.io = any_io::of<uring_file>({.path = "kv.bin"});    // needs io/uring_file.hpp, in this file only
//
// It wraps devices from outside the library without changes here. io/backends.hpp chooses among the library's devices by name.
//
// Cost: one virtual call per call, none per request.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

struct any_io {
    static constexpr std::string_view name = "any_io";

    /// The queue of some device.
    class queue {
      public:
        virtual ~queue() = default;
        [[nodiscard]] virtual status submit(std::span<const io_request> requests) noexcept = 0;
        [[nodiscard]] virtual std::size_t reap(std::span<io_completion> done, bool wait) noexcept = 0;
        [[nodiscard]] virtual std::size_t in_flight() const noexcept = 0;
        [[nodiscard]] virtual io_counters counters() const noexcept = 0;
    };

    class device;

    /// Opens some device.
    class source {
      public:
        virtual ~source() = default;
        [[nodiscard]] virtual result<device> open(const io_plan& plan) const = 0;
    };

    struct config {
        std::shared_ptr<const source> from{}; ///< of<Policy>(its config); empty is refused
    };

    /// The policy `Policy` with its config. That of any_io itself is taken as it is.
    template <io_policy Policy> [[nodiscard]] static config of(typename Policy::config config);

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);

  private:
    class held_device;
    template <class Inner> class held;
    template <class Inner> class held_queue;
    template <class Policy> class source_of;
};

class any_io::held_device {
  public:
    virtual ~held_device() = default;
    [[nodiscard]] virtual io_device_info device_info() const noexcept = 0;
    [[nodiscard]] virtual any_io::queue& queue(unsigned i) noexcept = 0;
    [[nodiscard]] virtual status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept = 0;
    virtual void use_arena(std::span<std::byte> arena) noexcept = 0;
};

class any_io::device {
  public:
    [[nodiscard]] io_device_info device_info() const noexcept { return inner_->device_info(); }
    [[nodiscard]] any_io::queue& queue(unsigned i) noexcept { return inner_->queue(i); }
    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return inner_->reserve(offset, bytes);
    }
    void use_arena(std::span<std::byte> arena) noexcept { inner_->use_arena(arena); }

  private:
    friend struct any_io;
    explicit device(std::unique_ptr<held_device> inner) noexcept : inner_(std::move(inner)) {}

    std::unique_ptr<held_device> inner_;
};

template <class Inner> class any_io::held_queue final : public any_io::queue {
  public:
    explicit held_queue(Inner& inner) noexcept : inner_(inner) {}
    status submit(std::span<const io_request> requests) noexcept override { return inner_.submit(requests); }
    std::size_t reap(std::span<io_completion> done, bool wait) noexcept override {
        return inner_.reap(done, wait);
    }
    std::size_t in_flight() const noexcept override { return inner_.in_flight(); }
    io_counters counters() const noexcept override { return inner_.counters(); }

  private:
    Inner& inner_;
};

template <class Inner> class any_io::held final : public held_device {
  public:
    held(Inner inner, unsigned queues) : inner_(std::move(inner)) {
        queues_.reserve(queues);
        for (unsigned i = 0; i < queues; ++i) queues_.emplace_back(inner_.queue(i));
    }
    io_device_info device_info() const noexcept override { return inner_.device_info(); }
    any_io::queue& queue(unsigned i) noexcept override { return queues_[i]; }
    status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept override {
        return inner_.reserve(offset, bytes);
    }
    void use_arena(std::span<std::byte> arena) noexcept override { use_arena_of(inner_, arena); }

  private:
    using inner_queue = std::remove_reference_t<decltype(std::declval<Inner&>().queue(0))>;

    Inner inner_;
    std::vector<held_queue<inner_queue>> queues_;
};

template <class Policy> class any_io::source_of final : public source {
  public:
    explicit source_of(typename Policy::config config) : config_(std::move(config)) {}
    result<device> open(const io_plan& plan) const override {
        auto inner = Policy::open(config_, plan);
        if (!inner) return inner.error();
        return device(std::make_unique<held<typename Policy::device>>(*std::move(inner), plan.queues));
    }

  private:
    typename Policy::config config_;
};

template <io_policy Policy> any_io::config any_io::of(typename Policy::config config) {
    if constexpr (std::same_as<Policy, any_io>)
        return config;
    else
        return {std::make_shared<const source_of<Policy>>(std::move(config))};
}

inline result<any_io::device> any_io::open(const config& config, const io_plan& plan) {
    if (!config.from)
        return status::failure(errc::invalid_argument,
                               "io.from is empty; valid: any_io::of<Policy>(its config)");
    return config.from->open(plan);
}

static_assert(io_policy<any_io>);

}} // namespace kvtl::v0
