// The backend chosen at run time: an ordinary io policy, used by programs so that presets compile once.
//
//   any_io::open({.use = any_io::backend::uring, .path = "kv.bin"}, plan)
//
// uring_file takes part when KVTL_HAS_URING is defined to 1 (the CMake target kvtl::uring is found); without
// it, asking for uring is errc::unsupported. Engines that care use the static types. With `limit` the device
// is slowed down to another one's profile (io/throttled.hpp).
//
// Cost: one branch per call, none per request.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>
#include <kvtl/io/posix_file.hpp>
#include <kvtl/io/throttled.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
#include <kvtl/io/uring_file.hpp>
#define KVTL_ANY_IO any_io_with_uring
#else
#define KVTL_ANY_IO any_io_without_uring
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvtl { inline namespace v0 {
// The layout depends on the macro, and so does the mangled name: both kinds may meet in one program.
inline namespace KVTL_ANY_IO {

struct any_io {
    static constexpr std::string_view name = "any_io";

    enum class backend : std::uint8_t { memory, posix, uring };

    struct config {
        backend use = backend::posix;
        std::string path{};     ///< of the file backends
        bool keep_file = false; ///< otherwise the file is removed when it is closed
        bool direct = true;
        unsigned threads = 2;              ///< of posix, per queue
        std::shared_ptr<throttle> limit{}; ///< empty: as fast as the device is
    };

    /// The names that programs take: "memory", "posix", "uring".
    [[nodiscard]] static std::optional<backend> parse(std::string_view text) noexcept {
        if (text == "memory") return backend::memory;
        if (text == "posix") return backend::posix;
        if (text == "uring") return backend::uring;
        return std::nullopt;
    }

    class queue;
    class device;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);

  private:
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    template <template <class...> class List, template <class> class Wrap>
    using backends = List<Wrap<in_memory>, Wrap<posix_file>, Wrap<uring_file>, Wrap<throttled<in_memory>>,
                          Wrap<throttled<posix_file>>, Wrap<throttled<uring_file>>>;
#else
    template <template <class...> class List, template <class> class Wrap>
    using backends =
        List<Wrap<in_memory>, Wrap<posix_file>, Wrap<throttled<in_memory>>, Wrap<throttled<posix_file>>>;
#endif
    template <class P> using device_of = typename P::device;
    template <class P> using queue_of = typename P::queue*;
    using any_device = backends<std::variant, device_of>;
    using any_queue = backends<std::variant, queue_of>;
};

class any_io::queue {
  public:
    explicit queue(any_queue inner) noexcept : inner_(inner) {}

    [[nodiscard]] status submit(std::span<const io_request> requests) noexcept {
        return std::visit([&](auto* q) noexcept { return q->submit(requests); }, inner_);
    }
    [[nodiscard]] std::size_t reap(std::span<io_completion> done, bool wait) noexcept {
        return std::visit([&](auto* q) noexcept { return q->reap(done, wait); }, inner_);
    }
    [[nodiscard]] std::size_t in_flight() const noexcept {
        return std::visit([](const auto* q) noexcept { return q->in_flight(); }, inner_);
    }
    [[nodiscard]] io_counters counters() const noexcept {
        return std::visit([](const auto* q) noexcept { return q->counters(); }, inner_);
    }

  private:
    any_queue inner_;
};

class any_io::device {
  public:
    [[nodiscard]] io_facts facts() const noexcept {
        return std::visit([](const auto& d) noexcept { return d.facts(); }, inner_);
    }
    [[nodiscard]] any_io::queue& queue(unsigned i) noexcept { return queues_[i]; }
    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return std::visit([&](auto& d) noexcept { return d.reserve(offset, bytes); }, inner_);
    }

  private:
    friend struct any_io;
    template <class Device> device(Device inner, unsigned queues) : inner_(std::move(inner)) {
        for (unsigned i = 0; i < queues; ++i) queues_.emplace_back(&std::get_if<Device>(&inner_)->queue(i));
    }
    template <class Policy>
    [[nodiscard]] static result<device> from(const typename Policy::config& config, const io_plan& plan) {
        auto inner = Policy::open(config, plan);
        if (!inner) return inner.error();
        return device(*std::move(inner), plan.queues);
    }
    /// The backend itself, or slowed down when there is a limit.
    template <class Policy>
    [[nodiscard]] static result<device> limited(const std::shared_ptr<throttle>& limit,
                                                const typename Policy::config& config, const io_plan& plan) {
        if (limit) return from<throttled<Policy>>({config, limit}, plan);
        return from<Policy>(config, plan);
    }

    any_device inner_;
    std::vector<any_io::queue> queues_; ///< point to queues that stay where they are when the device moves
};

inline result<any_io::device> any_io::open(const config& config, const io_plan& plan) {
    switch (config.use) {
    case backend::memory:
        return device::limited<in_memory>(config.limit, {}, plan);
    case backend::posix:
        return device::limited<posix_file>(
            config.limit, {config.path, config.keep_file, config.direct, config.threads}, plan);
    case backend::uring:
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
        return device::limited<uring_file>(
            config.limit, {.path = config.path, .keep_file = config.keep_file, .direct = config.direct},
            plan);
#else
        return status::failure(errc::unsupported,
                               "io: uring was not compiled in (KVTL_HAS_URING); use posix or memory");
#endif
    }
    return status::failure(errc::invalid_argument, "io: backend %u; valid: memory, posix, uring",
                           static_cast<unsigned>(config.use));
}

static_assert(io_policy<any_io>);

} // namespace KVTL_ANY_IO
}} // namespace kvtl::v0

#undef KVTL_ANY_IO
