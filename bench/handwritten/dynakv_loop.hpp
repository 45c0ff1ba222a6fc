// The decode step of `dynakv`, written out: one sequence, heads of 64 numbers, entries as f16, a file in memory.
//
// What composition costs is what kv_manager<presets::dynakv> takes more than this. It calls the same kernels on the same file
// of pages, and makes the same decisions in the same order, so that its outputs are the same bits; but there is no policy, no
// slot and no manager: what a step does stands here, from the score of the clusters to the entry that leaves the window.
// Left out is what belongs to other engines: shards, several sequences, reads that are still in the air while others are
// attended, reads ahead, statistics, checks of what the engine hands over, and undoing a step that failed.
//
// Shapes: of a step q (HQ, D), k and v (H, D), out (HQ, D) f32. Storage: a cluster has one or two pages of 16 entries, keys
//         first; two clusters share a pool of pages and grow towards each other.
// Memory: everything is there once the loop is made; a step allocates nothing.
// Limits: the prompt is clustered already (take_over.hpp), and memory holds what one layer chooses.
// Source: DynaKV (presets/dynakv.hpp), section 4 and Algorithm 1 for maintain(), 5.2 for the pools, 6.2 for who leaves.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/halve.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/codes.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/simd/nearest_code.hpp>
#include <kvtl/simd/topk.hpp>

#include "cluster_order.hpp"
#include "line_allocator.hpp"
#include "page_file.hpp"

#include <array>
#include <cstring>
#include <memory>

namespace bench {

struct dynakv_sizes {
    std::uint32_t layers = 0, kv_heads = 0, group = 0; ///< G query heads to a KV head
    std::uint32_t attend_tokens = 0, window = 0, sinks = 0;
    std::uint32_t waiting = 0;            ///< entries of a head that wait before a cluster is read for them
    std::uint32_t tokens_per_cluster = 0; ///< the largest has twice as many
    std::uint32_t max_clusters = 0;       ///< of a head
    std::uint32_t frames = 0, tails = 0;  ///< pages in memory; those that may be unfinished
    std::uint32_t all_clusters = 0;       ///< of all heads; with so many, no cluster splits
    float scale = 1;                      ///< of logits
};

class dynakv_loop {
  public:
    static constexpr std::uint32_t none = kvtl::none;
    static constexpr std::uint32_t dim = 64; ///< D
    using number = kvtl::f16;
    static constexpr std::uint32_t page_rows = page_file::page_bytes / (2 * dim * sizeof(number));

    struct cluster {
        std::uint32_t entries = 0;
        std::uint32_t waiting = 0; ///< entries that wait for it
        bool to_split = false;     ///< once it is resident
        float m2 = 0;              ///< sum of squared distances to the mean
        std::uint32_t pool = none, side = 0;
        std::uint32_t frames = none; ///< first of its pages in memory
        std::uint32_t tail = none;   ///< frame of the page that storage has not
    };
    /// One KV head of a layer.
    struct head {
        std::vector<number> sink_k, sink_v, ring_k, ring_v, wait_k, wait_v; ///< rows of D
        std::vector<std::uint32_t> wait_for;                                ///< clusters
        std::vector<std::int8_t> code; ///< (max_clusters, D): means, rounded
        std::vector<float> scale;      ///< (max_clusters)
        std::vector<cluster> clusters;
        std::uint32_t tokens = 0, window_begin = 0, waiting = 0;
        float threshold = 0; ///< variance beyond which a cluster splits
        kvtl::simd::neighbour leaves{
            none}; ///< the mean nearest to the entry that leaves next, while that holds
    };

    dynakv_loop(const dynakv_sizes& s, page_file file);

    [[nodiscard]] const dynakv_sizes& sizes() const noexcept { return s_; }
    [[nodiscard]] head& at(std::uint32_t layer, std::uint32_t h) noexcept {
        return heads_[layer * s_.kv_heads + h];
    }
    /// A cluster of the prompt: its rows (N, D), as it is stored, goes to `pool`.
    [[nodiscard]] kvtl::status add_cluster(head& of, const number* k, const number* v, std::uint32_t entries,
                                           std::uint32_t pool, std::uint32_t side);

    /// Appends a token to a layer and attends it.
    [[nodiscard]] kvtl::status step(std::uint32_t layer, const float* q, const float* k, const float* v,
                                    float* out) noexcept;
    [[nodiscard]] std::uint64_t read_bytes() noexcept { return file_.read_bytes(); }

  private:
    static constexpr std::size_t value_offset = std::size_t{page_rows} * dim; ///< numbers
    static constexpr std::uint32_t cluster_pages = 2;
    static constexpr std::uint32_t smallest_split = 4;

    struct frame {
        std::uint32_t next = none, page = none;
        head* of = nullptr;
        std::uint32_t cluster = none;
        std::uint32_t used = none; ///< tails: which of running_ is its cluster's
        std::uint32_t stamp = 0;   ///< tails: when it last received an entry
        std::uint16_t pins = 0;
        bool linked = false, wanted = false;
        [[nodiscard]] bool is_tail() const noexcept { return used != none; }
    };
    struct chosen {
        std::uint32_t cluster;
        bool attended; ///< else it is only brought in
    };
    enum class growth : std::uint8_t { append, split, open };

    // What a step consists of, in its order.
    [[nodiscard]] std::uint32_t choose(head& h, const float* q, chosen* out) noexcept;
    [[nodiscard]] bool bring(head& h, std::uint32_t c) noexcept;
    void attend_memory(const head& h, const float* q) noexcept;
    void attend_cluster(const cluster& c, const float* q, const cluster* next) noexcept;
    [[nodiscard]] kvtl::status maintain(head& h) noexcept;

    // Algorithm 1.
    [[nodiscard]] bool place(head& h, const number* k, const number* v) noexcept;
    [[nodiscard]] growth judge(head& h, const cluster& c, float distance) const noexcept;
    [[nodiscard]] growth assign(head& h, const number* k, std::uint32_t& nearest) noexcept;
    [[nodiscard]] kvtl::simd::neighbour nearest_to(const head& h, const number* k) noexcept;
    void merge_waiting(head& h) noexcept;
    void merge_cluster(head& h, std::uint32_t c) noexcept;
    [[nodiscard]] bool move_elsewhere(head& h, std::uint32_t i) noexcept;
    [[nodiscard]] bool open(head& h, std::uint32_t like, const number* k, const number* v) noexcept;
    [[nodiscard]] bool append(head& h, std::uint32_t c, const number* k, const number* v) noexcept;
    [[nodiscard]] bool append_row(head& h, std::uint32_t c, const number* k, const number* v) noexcept;
    [[nodiscard]] bool split(head& h, std::uint32_t c, const number* k, const number* v) noexcept;
    [[nodiscard]] std::uint32_t gather(const head& h, std::uint32_t c, const number* k,
                                       const number* v) noexcept;
    void fill(head& h, std::uint32_t c, std::uint8_t side, std::uint32_t rows, const std::uint32_t* frames,
              std::uint32_t pages) noexcept;
    [[nodiscard]] bool force(head& h) noexcept;
    [[nodiscard]] std::uint32_t most_awaited(const head& h) const noexcept;
    void wait(head& h, std::uint32_t c, const number* k, const number* v) noexcept;
    void stop_waiting(head& h, std::uint32_t i) noexcept;

    // Frames.
    [[nodiscard]] std::uint32_t take_frame() noexcept;
    void evict(cluster& c) noexcept;
    void link(cluster& c, std::uint32_t f) noexcept;
    void settle(std::uint32_t f) noexcept {
        if (!frames_[f].linked && !frames_[f].is_tail()) free_.push_back(f);
    }
    void unpin(std::uint32_t f) noexcept {
        if (frames_[f].pins > 0) --frames_[f].pins;
    }
    void note_updated(const cluster& c) noexcept;
    [[nodiscard]] float* make_tail(std::uint32_t f) noexcept;
    void end_tail(std::uint32_t f) noexcept;
    void write(std::uint32_t f, std::uint32_t rows) noexcept;
    [[nodiscard]] number* keys(std::uint32_t f) noexcept {
        return reinterpret_cast<number*>(memory_.get() + std::size_t{f} * page_file::page_bytes);
    }
    [[nodiscard]] const number* keys(std::uint32_t f) const noexcept {
        return const_cast<dynakv_loop*>(this)->keys(f);
    }
    void put(std::uint32_t f, std::uint32_t row, const number* k, const number* v) noexcept {
        std::memcpy(keys(f) + row * dim, k, dim * sizeof(number));
        std::memcpy(keys(f) + value_offset + row * dim, v, dim * sizeof(number));
    }

    // Pools.
    [[nodiscard]] bool may_place() const noexcept { return 2 * pools_ - half_.size() < s_.all_clusters; }
    [[nodiscard]] std::uint32_t page_of(const cluster& c, std::uint32_t i) const noexcept {
        const std::uint32_t first = c.pool * 2 * cluster_pages;
        return c.side == 0 ? first + i : first + 2 * cluster_pages - 1 - i;
    }

    [[nodiscard]] std::uint32_t max_entries() const noexcept { return 2 * s_.tokens_per_cluster; }
    [[nodiscard]] std::uint32_t ring(std::uint32_t token) const noexcept { return token % (s_.window + 1); }
    void round_mean(head& h, std::uint32_t c, const float* mean) noexcept {
        h.scale[c] = kvtl::simd::quantise(mean, &h.code[std::size_t{c} * dim], dim);
    }

    struct free_memory {
        void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{4096}); }
    };

    dynakv_sizes s_;
    page_file file_;
    kvtl::status failed_; ///< the first write that did
    std::vector<head> heads_;
    std::unique_ptr<std::byte[], free_memory> memory_; ///< of the frames
    std::vector<frame> frames_;
    std::vector<std::uint32_t> free_;
    cluster_order order_;
    std::vector<std::uint32_t> tails_;        ///< frames
    std::vector<float> running_;              ///< (tails + 1, D): means of clusters that grow, not rounded
    std::vector<std::uint32_t> free_running_; ///< rows of it
    std::uint32_t clock_ = 0;                 ///< of tails
    std::uint32_t pools_ = 0, next_pool_ = 0; ///< pools in use; the first that never was
    std::vector<std::array<std::uint32_t, 2>> half_; ///< pools with one cluster, and the side that is free

    // Scratch of a step.
    std::vector<float> query_, distance_, score_;
    line_floats item_, total_, attend_;
    std::vector<std::uint32_t> order_by_score_, count_;
    std::vector<std::uint64_t> keys_;
    std::vector<chosen> chosen_; ///< (H, attend_tokens + 1)
    std::vector<page_file::transfer> reads_;
    std::vector<number> split_k_, split_v_;
    std::vector<std::uint8_t> side_;
    std::vector<std::byte> halves_;
};

} // namespace bench
