// SPDX-License-Identifier: MIT
#include "measure.hpp"

#include <kvtl/io/backends.hpp>
#include <kvtl/io/superblock.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/dot_columns.hpp>

#include "cleanup.hpp"
#include "error.hpp"
#include "program.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

namespace engine {

namespace {

/// Median of `repeats` runs after one to warm up.
template <class F> double median_us(int repeats, const F& f) {
    f();
    std::vector<double> us;
    for (int i = 0; i < repeats; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        f();
        us.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(us.begin(), us.begin() + repeats / 2, us.end());
    return us[static_cast<std::size_t>(repeats / 2)];
}

template <kvtl::element E> std::vector<E> random_values(std::size_t n) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<E> values(n);
    for (E& v : values) v = kvtl::from_float<E>(normal(random));
    return values;
}

} // namespace

struct read_meter::parts {
    using io = kvtl::throttled<kvtl::any_io>;

    read_options options;
    kvtl::reservation arena;
    std::shared_ptr<kvtl::throttle> limit = std::make_shared<kvtl::throttle>();
    kvtl::superblock head = kvtl::make_superblock({1, 1, 1, 1}, 0, 0);
    std::optional<io::device> device;
    std::mt19937_64 random{7};
    std::vector<::iovec> slices;
    std::vector<kvtl::io_request> requests;
    std::vector<kvtl::io_completion> done;

    /// Hands over requests[0, n) and waits for all of them.
    void run(std::size_t n) {
        auto& queue = device->queue(0);
        insist(queue.submit({requests.data(), n}));
        for (std::size_t finished = 0; finished < n;) {
            const std::size_t some = queue.reap(done, true);
            for (std::size_t i = 0; i < some; ++i)
                if (done[i].error != 0)
                    throw run_failure(options.path + ": a transfer failed: " + std::strerror(done[i].error));
            finished += some;
        }
    }
};

read_meter::read_meter(const read_options& options, const char* program) : parts_(std::make_unique<parts>()) {
    parts& p = *parts_;
    p.options = options;
    constexpr std::uint64_t piece = 1 << 20;
    const std::uint64_t page = 4096, slack = options.most_reads * page + piece;
    p.arena = insist(kvtl::reservation::make(options.batch_bytes + slack));
    if (!kvtl::parse_backend(options.io))
        throw bad_input("unknown device '" + options.io + "'; valid: uring, posix, memory");
    kvtl::io_plan plan;
    plan.max_in_flight = std::max(options.most_reads, 64U);
    plan.arena = p.arena.memory();
    plan.superblock = kvtl::superblock_bytes(p.head);
    plan.max_bytes = options.file_bytes + piece;
    const auto open = [&] {
        const auto inner =
            kvtl::any_backend({.use = *kvtl::parse_backend(p.options.io), .path = options.path});
        return parts::io::open({.inner = inner, .limit = p.limit}, plan);
    };
    {
        const signal_hold hold;
        p.device.emplace(insist(or_posix(p.options.io, program, open)));
        if (options.io != "memory") remove_on_signal(options.path);
    }
    p.slices.resize(plan.max_in_flight);
    p.requests.resize(plan.max_in_flight);
    p.done.resize(plan.max_in_flight);

    // Random bytes: neither holes nor what a device might compress.
    insist(p.device->reserve(0, options.file_bytes + piece));
    for (std::byte& b : p.arena.memory().first(piece)) b = static_cast<std::byte>(p.random());
    p.slices[0] = {p.arena.memory().data(), piece};
    for (std::uint64_t at = p.device->device_info().page; at + piece <= options.file_bytes; at += piece) {
        p.requests[0] = {kvtl::io_verb::write, 1, &p.slices[0], at, 0};
        p.run(1);
    }
    p.limit->set(options.device);
}

read_meter::~read_meter() {
    const bool file = parts_->options.io != "memory";
    parts_.reset();
    if (file) forget_file();
}

const std::string& read_meter::io() const noexcept {
    return parts_->options.io;
}

kvtl::io_device_info read_meter::device_info() const {
    return parts_->device->device_info();
}

double read_meter::read_us(std::uint64_t bytes, std::uint32_t reads, int repeats) {
    parts& p = *parts_;
    const std::uint64_t page = p.device->device_info().page;
    const std::uint64_t size = (bytes + page - 1) / page * page;
    const std::uint64_t places = (p.options.file_bytes - page) / size - 1;
    return median_us(repeats, [&] {
        for (std::uint32_t i = 0; i < reads; ++i) {
            p.slices[i] = {p.arena.memory().data() + i * size, size};
            p.requests[i] = {kvtl::io_verb::read, 1, &p.slices[i], page + p.random() % places * size, i};
        }
        p.run(reads);
    });
}

double attend_us(const kvtl::shape& shape, std::uint32_t tokens) {
    const std::size_t dim = shape.head_dim, group = shape.query_heads / shape.kv_heads;
    const auto keys = random_values<kvtl::f16>(std::size_t{tokens} * shape.kv_heads * dim);
    const auto values = random_values<kvtl::f16>(keys.size());
    const auto q = random_values<float>(shape.query_heads * dim);
    std::vector<float> out(q.size()), state(kvtl::partial_floats(group, dim)),
        scratch(kvtl::simd::attend_scratch_floats(group));
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    return median_us(15, [&] {
        for (std::size_t h = 0; h < shape.kv_heads; ++h) {
            const auto p = kvtl::partial_at(state.data(), static_cast<std::uint32_t>(group), shape.head_dim);
            kvtl::reset(p);
            const std::size_t first = h * tokens * dim;
            kvtl::simd::attend_rows<kvtl::simd::default_arch, kvtl::f16>(
                q.data() + h * group * dim, dim, scale, {keys.data() + first, tokens, dim, dim},
                {values.data() + first, tokens, dim, dim}, nullptr, p, scratch);
            kvtl::finish(p, out.data() + h * group * dim, dim);
        }
    });
}

double score_us(const kvtl::shape& shape, std::uint64_t context, std::uint32_t rank) {
    const std::size_t dim = shape.head_dim, heads = shape.query_heads, group = heads / shape.kv_heads;
    const std::size_t width = shape.kv_heads * dim;
    const std::size_t rows = (context + kvtl::simd::column_block - 1) / kvtl::simd::column_block *
                             kvtl::simd::column_block; // blocks are whole in memory
    const auto adapter = random_values<float>(rank * width);
    const auto index = random_values<kvtl::f16>(rows * rank);
    const auto q = random_values<float>(heads * dim);
    std::vector<float> mean(width), low(rank), score(context);
    return median_us(7, [&] {
        std::fill(mean.begin(), mean.end(), 0.0F);
        for (std::size_t h = 0; h < heads; ++h)
            kvtl::simd::axpy(1.0F / static_cast<float>(group), q.data() + h * dim,
                             mean.data() + h / group * dim, dim);
        kvtl::simd::dot_rows<kvtl::simd::default_arch, float>(
            mean.data(), {adapter.data(), rank, width, width}, low.data());
        kvtl::simd::dot_columns<kvtl::simd::default_arch, kvtl::f16>(
            low.data(), 1, rank, {index.data(), context, rank, 0, rank}, score.data(), context);
    });
}

} // namespace engine
