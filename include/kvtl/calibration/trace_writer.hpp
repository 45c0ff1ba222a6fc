// Records a trace (calibration/trace_format.hpp): what an engine hands to its cache, for fitting and replaying.
//
//   auto out = trace_writer::create("own.trace", {.shape = model, .fields = trace_header::has_k_pre, .pair_distance = 32});
//   if (!out) ...                                                       // out.error()
//   out->write(first_token, layer, {.q = q, .k = k, .v = v, .k_pre = k_pre}); // for every chunk or step, and every layer
//   if (auto s = out->close(prompt_tokens, tokens); !s) ...             // the file is valid from here on
//
// Cost:   one write of 2 record_floats() bytes per token and layer; nothing is allocated after create().
// Errors: what goes wrong in write() is kept and said by close(), so that recording never disturbs a run.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/trace_format.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/views.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Records one sequence. Move-only.
class trace_writer {
  public:
    /// `what`: shape, fields, pair_distance and fingerprint. A file of that name is replaced.
    [[nodiscard]] static result<trace_writer> create(const std::string& path, const trace_header& what) {
        if (auto s = what.check(); !s) return status::failure(errc::invalid_argument, "trace: %s", s.what());
        trace_writer out(path, what);
        if (out.file_.descriptor() < 0)
            return error(errc::file_refused, "cannot write trace " + path + ": " + std::strerror(errno));
        return out;
    }

    /// The tokens from `first` on, in one layer: k (T, H, D), and q (T, HQ, D), v and k_pre (T, H, D) where the header has
    /// them. prediction: (T, HQ, D) or empty, which is zeros, also for who reads it. A layer's tokens come in order, none left
    /// out; one may be written again: the last one counts.
    void write(std::uint64_t first, std::uint32_t layer, const layer_input& in,
               std::span<const float> prediction = {}) noexcept {
        if (!said_.ok() || error_ != 0) return;
        if (said_ = check(first, layer, in, prediction); !said_.ok()) return;
        const std::size_t query = header_.query_floats(), key = header_.key_floats(),
                          tokens = in.k.size() / key;
        for (std::size_t t = 0; t < tokens && error_ == 0; ++t) {
            f16* at = record_.data();
            const auto add = [&](bool there, const tensor_view& rows, std::size_t floats) {
                if (!there) return;
                if (rows.empty())
                    std::fill_n(at, floats, f16{});
                else
                    rows.visit([&](const auto* x) { put(x + rows.place(t * floats), at, floats); });
                at += floats;
            };
            add(!header_.has(trace_header::without_q), in.q, query);
            add(true, in.k, key);
            add(!header_.has(trace_header::without_v), in.v, key);
            add(header_.has(trace_header::has_k_pre), in.k_pre, key);
            add(header_.has(trace_header::has_prediction), prediction, query);
            error_ = file_.write(record_.data(), record_.size() * sizeof(f16),
                                 header_.record_offset(first + t, layer));
        }
        written_[layer] = std::max(written_[layer], first + tokens);
    }

    /// Makes the file valid, with `tokens` tokens, of which the first prompt_tokens are the prompt. Fails with what had
    /// gone wrong in write(), and when a layer has fewer tokens.
    [[nodiscard]] status close(std::uint64_t prompt_tokens, std::uint64_t tokens) noexcept {
        if (!said_.ok()) return said_;
        if (error_ != 0) return not_written();
        const auto least = std::min_element(written_.begin(), written_.end());
        if (tokens == 0 || prompt_tokens > tokens || tokens > *least)
            return status::failure(
                errc::invalid_argument,
                "trace: %llu tokens, %llu of them of the prompt; layer %u has %llu that were written",
                number(tokens), number(prompt_tokens), static_cast<unsigned>(least - written_.begin()),
                number(*least));
        trace_header_bytes raw;
        const kvtl::shape& s = header_.shape;
        raw.fields = header_.fields, raw.layers = s.layers, raw.query_heads = s.query_heads;
        raw.kv_heads = s.kv_heads, raw.head_dim = s.head_dim;
        raw.prompt_tokens = prompt_tokens, raw.tokens = tokens;
        raw.pair_distance = header_.pair_distance, raw.fingerprint = header_.fingerprint;
        std::array<char, trace_header::bytes> block{};
        std::memcpy(block.data(), &raw, sizeof raw);
        if (error_ == 0) error_ = file_.write(block.data(), block.size(), 0);
        if (const int closed = file_.close(); error_ == 0) error_ = closed;
        return error_ == 0 ? status() : not_written();
    }

  private:
    trace_writer(const std::string& path, const trace_header& what)
        : path_(path), header_(what), record_(what.record_floats()), values_(record_.size()),
          written_(what.shape.layers),
          file_(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644)) {}

    [[nodiscard]] status not_written() const noexcept {
        return status::failure(errc::io_error, "cannot write trace %s: %s", path_.c_str(),
                               std::strerror(error_));
    }
    [[nodiscard]] static unsigned long long number(std::uint64_t n) noexcept { return n; }

    void put(const float* from, f16* to, std::size_t n) noexcept { simd::encode(from, to, n); }
    template <element E> void put(const E* from, f16* to, std::size_t n) noexcept {
        simd::decode(from, values_.data(), n);
        simd::encode(values_.data(), to, n);
    }

    [[nodiscard]] status check(std::uint64_t first, std::uint32_t layer, const layer_input& in,
                               std::span<const float> prediction) const noexcept {
        if (layer >= header_.shape.layers)
            return status::failure(errc::invalid_argument, "trace: layer %u; valid: 0 to %u", layer,
                                   header_.shape.layers - 1);
        if (first > written_[layer])
            return status::failure(errc::invalid_argument, "trace: layer %u, token %llu; valid: 0 to %llu",
                                   layer, number(first), number(written_[layer]));
        const std::size_t key = header_.key_floats(), query = header_.query_floats(),
                          tokens = in.k.size() / key;
        if (tokens == 0 || in.k.size() % key != 0)
            return status::failure(errc::invalid_argument,
                                   "trace: layer %u, token %llu: k has %zu numbers; valid: multiples of %zu",
                                   layer, number(first), in.k.size(), key);
        struct row {
            const char* name;
            bool wanted, may_be_empty;
            tensor_view numbers;
            std::size_t floats;
        };
        for (const row& r :
             {row{"k", true, false, in.k, key},
              row{"q", !header_.has(trace_header::without_q), false, in.q, query},
              row{"v", !header_.has(trace_header::without_v), false, in.v, key},
              row{"k_pre", header_.has(trace_header::has_k_pre), false, in.k_pre, key},
              row{"prediction", header_.has(trace_header::has_prediction), true, prediction, query}}) {
            if (!r.wanted || (r.may_be_empty && r.numbers.empty())) continue;
            if (r.numbers.size() != tokens * r.floats)
                return status::failure(
                    errc::invalid_argument,
                    "trace: layer %u, token %llu: %s has %zu numbers; valid for %zu tokens: %zu", layer,
                    number(first), r.name, r.numbers.size(), tokens, tokens * r.floats);
            if (!r.numbers.has_rows_of(r.floats))
                return status::failure(
                    errc::invalid_argument,
                    "trace: layer %u, token %llu: %s has rows of %zu numbers with a stride of %zu; "
                    "valid: rows of %zu with a stride of %zu or more",
                    layer, number(first), r.name, r.numbers.row(), r.numbers.stride(), r.floats, r.floats);
        }
        return {};
    }

    std::string path_;
    trace_header header_;
    std::vector<f16> record_;
    std::vector<float> values_;
    std::vector<std::uint64_t> written_; ///< tokens up to the last one, by layer
    trace_file file_;
    status said_;
    int error_ = 0;
};

}} // namespace kvtl::v0
