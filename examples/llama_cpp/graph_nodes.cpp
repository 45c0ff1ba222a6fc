// SPDX-License-Identifier: MIT
#include "graph_nodes.hpp"

#include <kvtl/element.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace kvtl_llama::detail {

const ggml_tensor* root_of(const ggml_tensor* t) noexcept {
    while (t->view_src != nullptr) t = t->view_src;
    return t;
}

int layer_of(const ggml_tensor* t, std::string_view prefix) noexcept {
    const std::string_view name = root_of(t)->name;
    if (name.substr(0, prefix.size()) != prefix) return -1;
    int layer = -1;
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, layer);
    return error == std::errc() && rest == end ? layer : -1;
}

namespace {

const ggml_tensor* behind_cast(const ggml_tensor* t) noexcept {
    const ggml_tensor* root = root_of(t);
    return root->op == GGML_OP_CPY && root->src[0] != nullptr ? root->src[0] : t;
}

ggml_backend_buffer_t buffer_of(const ggml_tensor* t) noexcept {
    return t->view_src != nullptr ? t->view_src->buffer : t->buffer;
}

} // namespace

int layer_of_keys(const ggml_tensor* t) noexcept {
    return layer_of(behind_cast(t), "cache_k_l");
}
int layer_of_values(const ggml_tensor* t) noexcept {
    return layer_of(behind_cast(t), "cache_v_l");
}

bool on_host(const ggml_tensor* t) noexcept {
    ggml_backend_buffer_t buffer = buffer_of(t);
    return buffer == nullptr || ggml_backend_buffer_is_host(buffer);
}

const std::byte* bytes_of(const ggml_tensor* t, std::size_t offset, std::size_t bytes, staging& room) {
    if (on_host(t)) return static_cast<const std::byte*>(t->data) + offset;
    if (room.size() < bytes) room.resize(bytes);
    ggml_backend_tensor_get(t, room.data(), offset, bytes);
    return room.data();
}

void written_rows::note(const ggml_tensor* set_rows, int layer, staging& room) {
    const ggml_tensor* indices = set_rows->src[1];
    const auto n = static_cast<std::size_t>(indices->ne[0]);
    node_ = set_rows;
    layer_ = layer;
    cells_.resize(n);
    const std::byte* at = bytes_of(indices, 0, ggml_nbytes(indices), room);
    if (indices->type == GGML_TYPE_I64) {
        std::memcpy(cells_.data(), at, n * sizeof(std::int64_t));
    } else {
        for (std::size_t i = 0; i < n; ++i) {
            std::int32_t cell = 0;
            std::memcpy(&cell, at + i * sizeof cell, sizeof cell);
            cells_[i] = cell;
        }
    }
}

std::size_t written_rows::width() const noexcept {
    return node_ == nullptr ? 0 : static_cast<std::size_t>(node_->ne[0]);
}

kvtl::tensor_view written_rows::rows(staging& room) const {
    const std::size_t stride = node_->nb[1], row = width() * ggml_type_size(node_->type);
    const auto run_from = [&](std::size_t first) {
        std::size_t n = 1;
        while (first + n < cells_.size() && cells_[first + n] == cells_[first + n - 1] + 1) ++n;
        return n;
    };
    const auto offset = [&](std::size_t i) { return static_cast<std::size_t>(cells_[i]) * stride; };
    const std::byte* at = nullptr;
    // Emptied cells are filled from the first on, so that a batch's rows nearly always are neighbours.
    if (on_host(node_) && stride == row && !cells_.empty() && run_from(0) == cells_.size()) {
        at = static_cast<const std::byte*>(node_->data) + offset(0);
    } else {
        if (room.size() < cells_.size() * row) room.resize(cells_.size() * row);
        for (std::size_t i = 0; i < cells_.size(); ++i)
            ggml_backend_tensor_get(node_, room.data() + i * row, offset(i), row);
        at = room.data();
    }
    const std::size_t n = cells_.size() * width();
    switch (node_->type) {
    case GGML_TYPE_F16:
        return {reinterpret_cast<const kvtl::f16*>(at), n};
    case GGML_TYPE_BF16:
        return {reinterpret_cast<const kvtl::bf16*>(at), n};
    case GGML_TYPE_F32:
        return {reinterpret_cast<const float*>(at), n};
    default:
        return {};
    }
}

std::span<const float> queries_of(const ggml_tensor* q, std::vector<float>& scratch, staging& room) {
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float)) return {};
    const auto dim = static_cast<std::size_t>(q->ne[0]), tokens = static_cast<std::size_t>(q->ne[1]),
               heads = static_cast<std::size_t>(q->ne[2]);
    const std::byte* from = bytes_of(q, 0, ggml_nbytes(q), room);
    if (q->nb[2] == dim * sizeof(float) && q->nb[1] == heads * dim * sizeof(float))
        return {reinterpret_cast<const float*>(from), tokens * heads * dim};
    if (scratch.size() < tokens * heads * dim) scratch.resize(tokens * heads * dim);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t h = 0; h < heads; ++h)
            std::memcpy(scratch.data() + (t * heads + h) * dim, from + t * q->nb[1] + h * q->nb[2],
                        dim * sizeof(float));
    return std::span(scratch).first(tokens * heads * dim);
}

std::int64_t visible_cells(const ggml_tensor* mask, std::int64_t t, staging& room) {
    if (mask == nullptr || mask->type != GGML_TYPE_F16 || t >= mask->ne[1]) return -1;
    const auto cells = static_cast<std::size_t>(mask->ne[0]);
    const std::byte* row = bytes_of(mask, static_cast<std::size_t>(t) * mask->nb[1], mask->nb[1], room);
    std::int64_t seen = 0;
    for (std::size_t i = 0; i < cells; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, row + 2 * i, 2);
        seen += bits != 0xFC00U ? 1 : 0; // minus infinity
    }
    return seen;
}

} // namespace kvtl_llama::detail
