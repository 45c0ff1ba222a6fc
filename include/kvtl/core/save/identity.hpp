// What two caches must have in common so that one goes on with the other's sequence: everything that decides, by name.
//
// What:   the model's shape and how it attends, sinks and window, how entries are stored and grouped, each slot's policy with
//         its settings, and a checksum of tables and of the calibration. Where things are does not matter: frames,
//         replacement, device, shards, memory, schedule. Nor does max_tokens, which must suffice. attend_tokens and the
//         products of attention (config.precision, and the processor) may differ, but then the continuation is another
//         one, which load() says (same_attention()).
// Cost:   of open() only: some 60 short strings.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/settings.hpp>
#include <kvtl/core/save/compare_identity.hpp>
#include <kvtl/save/fingerprint.hpp>
#include <kvtl/save/saved.hpp>
#include <kvtl/simd/checksum.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

class identity_list {
  public:
    [[gnu::cold, gnu::noinline]] void add(std::string_view name, std::string_view value) {
        fields_.push_back({std::string(name), std::string(value)});
    }
    template <std::floating_point T> void add(std::string_view name, T value) {
        add_text(name, "%.9g", static_cast<double>(value));
    }
    template <std::integral T> void add(std::string_view name, T value) {
        add_text(name, "%lld", static_cast<long long>(value));
    }
    /// A table stands for its bytes; an empty one is left out.
    [[gnu::cold, gnu::noinline]] void add_bytes(std::string_view name, std::span<const std::byte> bytes) {
        if (bytes.empty()) return;
        const std::size_t lines = bytes.size() / 64 * 64; // what is behind them goes byte by byte
        fingerprint_hash hash;
        hash.add_number(simd::page_checksum64(bytes.data(), lines));
        hash.add(std::string_view(reinterpret_cast<const char*>(bytes.data() + lines), bytes.size() - lines));
        add_text(name, "%016llx", static_cast<unsigned long long>(hash.value()));
    }
    template <class T> void add(std::string_view name, const std::vector<T>& table) {
        add_bytes(name, std::as_bytes(std::span(table)));
    }
    void add(std::string_view name, std::span<const std::byte> table) { add_bytes(name, table); }
    /// A slot: its policy, and what its config shows (slots/policy.hpp).
    template <class Config>
    [[gnu::cold]] void slot(const std::string& name, std::string_view policy, Config config) {
        add(name, policy);
        const auto list = [&](const char* field, const auto& value) { add(name + "." + field, value); };
        show_fields(config, list);
        show_tables(config, list);
    }

    [[nodiscard]] std::vector<identity_field> take() noexcept { return std::move(fields_); }

  private:
    [[gnu::cold, gnu::noinline, gnu::format(printf, 3, 4)]] void add_text(std::string_view name,
                                                                          const char* format, ...) {
        std::array<char, 32> text{};
        std::va_list args;
        va_start(args, format);
        std::vsnprintf(text.data(), text.size(), format, args);
        va_end(args);
        add(name, text.data());
    }

    std::vector<identity_field> fields_;
};

/// Of all that the fields say: FNV-1a, 64 bits.
[[nodiscard, gnu::cold]] inline std::uint64_t
fingerprint_of(std::span<const identity_field> fields) noexcept {
    fingerprint_hash hash;
    for (const identity_field& f : fields) hash.add(f.name), hash.add(f.value);
    return hash.value();
}

/// A number for a replacement policy, its settings and what its memory means (slots/replacement.hpp).
template <class Policy>
[[nodiscard, gnu::cold]] std::uint64_t fingerprint_of_replacement(const typename Policy::config& config) {
    identity_list all;
    all.slot("", Policy::name, config);
    if constexpr (requires { Policy::block_form; }) all.add("block_form", Policy::block_form);
    return fingerprint_of(all.take());
}

/// What the identity says of the policies beside their names and settings.
struct stored_form {
    std::string_view element;
    bool drops = false, retrieves = false, weighted = false;
    std::uint32_t page_bytes = 0; ///< of the store
};
/// The model, how it attends, and what is attended.
[[gnu::cold]] inline void identify_model(identity_list& all, const common_settings& c, const geometry& g,
                                         const cache_plan& plan, const stored_form& form) {
    all.add("layers", c.owner.empty() ? g.layers() : c.owner.size());
    all.add("query_heads", g.query_heads());
    all.add("kv_heads", g.kv_heads());
    all.add("head_dim", g.head_dim());
    all.add("attention.scale", g.logit_scale());
    all.add("attention.softcap", c.attention.softcap);
    all.add_bytes("attention.windows", std::as_bytes(std::span(c.attention.windows)));
    all.add_bytes("owner", std::as_bytes(std::span(c.owner)));
    all.add("element", form.element);
    all.add("window_tokens",
            form.retrieves && c.window_tokens == automatic ? plan.sizes.window : c.window_tokens);
    all.add("sink_tokens", c.sink_tokens);
    all.add(may_differ[0], c.attend_tokens);
    all.add(may_differ[1], std::string_view(plan.model.logits.relaxed ? "relaxed" : "exact"));
    if (form.drops) all.add("keep_tokens", c.keep_tokens == 0 ? c.attend_tokens : c.keep_tokens);
}
/// How entries are stored.
[[gnu::cold]] inline void identify_store(identity_list& all, const cache_plan& plan, const stored_form& form,
                                         std::span<const std::byte> calibration) {
    if (form.retrieves) {
        all.add("page_bytes", form.page_bytes);
        all.add("unit_entries", plan.max_entries);
        all.add("centroid_bits", plan.sizes.centroid_bits);
        all.add("lane_heads", plan.model.lane_heads);
    }
    all.add("key_bytes", plan.sizes.record.key);
    all.add("value_bytes", plan.sizes.record.value);
    all.add("weighted", form.weighted);
    all.add_bytes("calibration", calibration);
}

/// `plan`: as settled by the planner. calibration: bytes that the policies read.
template <class Policies>
[[nodiscard, gnu::cold]] std::vector<identity_field> identity_of(const cache_settings<Policies>& c,
                                                                 const geometry& g, const cache_plan& plan,
                                                                 std::span<const std::byte> calibration) {
    using types = policy_types<Policies>;
    stored_form form{element_name<typename types::element_type>(), types::drops, types::retrieves,
                     types::weighted};
    if constexpr (types::retrieves)
        form.page_bytes = types::page_format_of(plan.device_page, plan.sizes).page_bytes;
    identity_list all;
    identify_model(all, c, g, plan, form);
    all.slot("clusterer", Policies::clusterer::name, c.clusterer);
    all.slot("index", Policies::index::name, c.index);
    all.slot("selector", Policies::selector::name, c.selector);
    all.slot("estimator", Policies::estimator::name, c.estimator);
    all.slot("budget", Policies::budget::name, c.budget);
    all.slot("retention", Policies::retention::name, c.retention);
    all.slot("compressor", Policies::compressor::name, c.compressor);
    all.slot("position", Policies::position::name, c.position);
    all.slot("layout", Policies::layout::name, c.layout);
    identify_store(all, plan, form, calibration);
    return all.take();
}

}} // namespace kvtl::v0
