// The decode step of `kvswap`, written out: one sequence, heads of 64 numbers, entries as f16, a file in memory.
//
// As dynakv_loop.hpp is for dynakv: the same kernels on the same file of pages, the same choices, so that outputs are the same
// bits, and no policy, slot or manager. Four consecutive tokens of all heads are a group; the keys of a layer are known in r
// joint dimensions; prefetch() chooses for the query that the layer before predicts and reads what is missing, step() attends
// that. Each layer has slots for groups, and a miss takes the slot that was filled first among those that are not chosen.
//
// Shapes: of a step q and guess (HQ, D), k and v (H, D), out (HQ, D) f32. Storage: pages of whole tokens, keys first.
// Memory: everything is there once the loop is made; a step allocates nothing.
// Source: KVSwap (presets/kvswap.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/unit.hpp>

#include "line_allocator.hpp"
#include "page_file.hpp"

#include <memory>

namespace bench {

struct kvswap_sizes {
    std::uint32_t layers = 0, kv_heads = 0, group = 0; ///< G query heads to a KV head
    std::uint32_t max_tokens = 0, attend_tokens = 0, window = 0;
    std::uint32_t rank = 0;        ///< r
    std::uint32_t slots = 0;       ///< of a layer
    std::uint32_t true_layers = 2; ///< choose with their own query
    float scale = 1;               ///< of logits
};

class kvswap_loop {
  public:
    static constexpr std::uint32_t none = kvtl::none;
    static constexpr std::uint32_t dim = 64; ///< D
    static constexpr std::uint32_t group_tokens = 4;
    using number = kvtl::f16;

    /// adapter: of each layer (r, H D), which outlive the loop.
    [[nodiscard]] static kvtl::result<kvswap_loop> open(const kvswap_sizes& s,
                                                        const kvtl::calibration_view& adapter);

    /// Takes a token of the prompt.
    [[nodiscard]] kvtl::status take(std::uint32_t layer, const float* k, const float* v) noexcept;
    /// Chooses for a layer's next step and reads.
    [[nodiscard]] kvtl::status prefetch(std::uint32_t layer, const float* guess) noexcept;
    /// Appends a token to a layer and attends it. Behind prefetch(), but for the first layer.
    [[nodiscard]] kvtl::status step(std::uint32_t layer, const float* q, const float* k, const float* v,
                                    float* out) noexcept;
    [[nodiscard]] std::uint64_t read_bytes() noexcept { return file_.read_bytes(); }

  private:
    kvswap_loop(const kvswap_sizes& s, page_file file, const kvtl::calibration_view& adapter);

    struct slot {
        std::uint32_t group = none;
        std::uint32_t prev = none, next = none; ///< in the order in which they were filled
        bool chosen = false;
    };
    struct layer_state {
        std::vector<number> ring_k, ring_v; ///< (window + 4, H D)
        std::vector<number> columns;        ///< keys in r dimensions: blocks of (r, 16)
        number* tail = nullptr;             ///< the page that is not full yet
        std::vector<slot> slots;            ///< and the end of their list behind them
        std::vector<std::uint32_t> slot_of; ///< (groups)
        std::vector<std::uint32_t> chosen;  ///< groups, in their order
        std::uint32_t tokens = 0, window_begin = 0, groups = 0;
    };

    [[nodiscard]] std::uint32_t ring(std::uint32_t token) const noexcept {
        return token % (s_.window + group_tokens);
    }
    [[nodiscard]] number* slot_rows(std::uint32_t layer, std::uint32_t i) noexcept {
        return &memory_[(std::size_t{layer} * s_.slots + i) * 2 * group_tokens * width_];
    }
    [[nodiscard]] std::uint32_t page_of(std::uint32_t layer, std::uint32_t i) const noexcept {
        return layer * layer_pages_ + i;
    }
    [[nodiscard]] kvtl::status fetch(std::uint32_t layer, const float* q) noexcept;
    void choose(layer_state& l, std::uint32_t layer, const float* q) noexcept;
    [[nodiscard]] std::uint32_t take_slot(layer_state& l) noexcept;
    [[nodiscard]] kvtl::status bring(layer_state& l, std::uint32_t layer) noexcept;
    void attend(const number* k, const number* v, std::uint32_t rows, const float* q) noexcept;
    void put(layer_state& l, const float* k, const float* v) noexcept;
    [[nodiscard]] kvtl::status drain(layer_state& l, std::uint32_t layer) noexcept;

    kvswap_sizes s_;
    page_file file_;
    kvtl::calibration_view adapter_;
    std::uint32_t width_;                                      ///< H D
    std::uint32_t page_rows_, value_offset_, layer_pages_ = 0; ///< value_offset: numbers
    std::vector<layer_state> layers_;
    std::vector<number> memory_; ///< (layers, slots, 2, 4, H D)

    struct free_memory {
        void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{4096}); }
    };
    std::unique_ptr<std::byte[], free_memory> pages_; ///< those that are read, then the layers' tails

    // Scratch of a step.
    std::vector<page_file::transfer> reads_;
    std::vector<std::uint32_t> missing_, order_;
    std::vector<std::uint64_t> keys_;
    std::vector<float> query_, small_, score_, key_;
    line_floats total_, attend_;
    std::vector<number> tile_k_, tile_v_; ///< (32, H D)
};

} // namespace bench
