// The numbers of a preset's config by name, for `--set POLICY.SLOT.FIELD=VALUE` and for what programs print.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace engine {

/// One number of a config: where it is, and what it is called.
struct config_field {
    const char* slot;
    const char* name;
    std::variant<bool*, std::uint8_t*, std::uint32_t*, std::size_t*, float*, double*, kvtl::precision*> value;
};

/// All fields of all slots. They point into the config, and no longer than it lives.
struct config_fields {
    std::vector<const char*> slots; ///< also those without a field
    std::vector<config_field> all;

    void add(const char* slot, const char* name, decltype(config_field::value) value);
};

/// Writes a textual value into its field. The error names what is valid.
[[nodiscard]] kvtl::result<int> apply_setting(const config_fields& fields, const setting& s);

/// ("slot.field", value) of every field.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> list_settings(const config_fields& fields);

/// The configs of a preset's slots, and "cache" for the manager's own knobs.
template <class Config> [[nodiscard, gnu::cold]] config_fields fields_of(Config& c) {
    config_fields fields;
    const auto slot = [&](const char* name, auto& of) {
        fields.slots.push_back(name);
        of.fields([&](const char* field, auto& value) { fields.add(name, field, &value); });
    };
    slot("clusterer", c.clusterer);
    slot("index", c.index);
    slot("estimator", c.estimator);
    slot("selector", c.selector);
    slot("compressor", c.compressor);
    slot("budget", c.budget);
    slot("retention", c.retention);
    slot("position", c.position);
    slot("layout", c.layout);
    slot("replacement", c.replacement);
    slot("schedule", c.schedule);
    fields.slots.push_back("cache");
    fields.add("cache", "window_tokens", &c.window_tokens);
    fields.add("cache", "sink_tokens", &c.sink_tokens);
    fields.add("cache", "centroid_bits", &c.centroid_bits);
    fields.add("cache", "precision", &c.precision);
    fields.add("cache", "open_pages", &c.open_pages);
    fields.add("cache", "read_through_pages", &c.read_through_pages);
    fields.add("cache", "lend_tables", &c.lend_tables);
    fields.add("cache", "adapt_prompt", &c.adapt_prompt);
    fields.add("cache", "prefill_tokens", &c.prefill_tokens);
    fields.add("cache", "io_timeout_ms", &c.io_timeout_ms);
    return fields;
}

} // namespace engine
