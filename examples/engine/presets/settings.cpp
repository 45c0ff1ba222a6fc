// SPDX-License-Identifier: MIT
#include "presets/settings.hpp"

#include "suggestion.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace engine {
namespace {

kvtl::error bad_setting(const setting& s, const std::string& why) {
    return {kvtl::errc::invalid_argument,
            "--set " + s.policy + "." + s.slot + "." + s.field + "=" + s.value + ": " + why};
}

constexpr std::pair<std::string_view, kvtl::precision> precisions[] = {
    {"exact", kvtl::precision::exact},
    {"relaxed", kvtl::precision::relaxed},
    {"relaxed_if_available", kvtl::precision::relaxed_if_available}};

/// What a field of this type takes, for messages.
template <class T> std::string valid_values() {
    if constexpr (std::is_same_v<T, bool>) {
        return "valid: 0, 1, false, true";
    } else if constexpr (std::is_same_v<T, kvtl::precision>) {
        std::string names;
        for (const auto& [name, value] : precisions)
            names += (names.empty() ? "valid: " : ", ") + std::string(name);
        return names;
    } else if constexpr (std::is_integral_v<T>) {
        return "valid: whole numbers up to " + std::to_string(std::numeric_limits<T>::max());
    } else {
        return "valid: numbers";
    }
}

template <class T> bool parse_value(const std::string& text, T& out) {
    if constexpr (std::is_same_v<T, bool>) {
        if (text != "0" && text != "1" && text != "true" && text != "false") return false;
        out = text == "1" || text == "true";
        return true;
    } else if constexpr (std::is_same_v<T, kvtl::precision>) {
        for (const auto& [name, value] : precisions)
            if (text == name) return out = value, true;
        return false;
    } else {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
        return error == std::errc{} && end == text.data() + text.size();
    }
}

} // namespace

void config_fields::add(const char* slot, const char* name, decltype(config_field::value) value) {
    all.push_back({slot, name, value});
}

kvtl::result<int> apply_setting(const config_fields& fields, const setting& s) {
    if (std::find(fields.slots.begin(), fields.slots.end(), s.slot) == fields.slots.end())
        return bad_setting(s, "no such slot; " + valid_names(s.slot, fields.slots));
    std::vector<std::string_view> names;
    for (const config_field& f : fields.all) {
        if (s.slot != f.slot) continue;
        names.push_back(f.name);
        if (s.field != f.name) continue;
        return std::visit(
            [&]<class T>(T* value) -> kvtl::result<int> {
                if (parse_value(s.value, *value)) return 0;
                return bad_setting(s, "not a value of this field; " + valid_values<T>());
            },
            f.value);
    }
    return bad_setting(s, "no such field; " + (names.empty() ? "valid: none" : valid_names(s.field, names)));
}

std::vector<std::pair<std::string, std::string>> list_settings(const config_fields& fields) {
    std::vector<std::pair<std::string, std::string>> all;
    for (const config_field& f : fields.all) {
        std::ostringstream text;
        text << std::boolalpha;
        std::visit(
            [&](const auto* value) {
                if constexpr (std::is_same_v<decltype(value), const kvtl::precision*>)
                    text << precisions[static_cast<std::size_t>(*value)].first;
                else
                    text << *value;
            },
            f.value);
        all.emplace_back(std::string(f.slot) + "." + f.name, text.str());
    }
    return all;
}

} // namespace engine
