// Writes docs/presets.md: for every header of presets its comment, and for every preset what it composes, where its
// entries live, its settings and what it needs. The composition is read from the headers' text, so that it stands there
// in the words of the header; everything else is asked of the types.
//
//   presets_page FILE            writes it
//   presets_page --check FILE    says whether FILE is what would be written
// SPDX-License-Identifier: MIT
#include "preset_headers.inc" // includes every header of presets, defines KVTL_ALL_PRESETS

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using strings = std::vector<std::string>;
using settings = std::vector<std::pair<std::string, std::string>>; // name and value

std::string read(const std::string& path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}
std::string code(const std::string& text) {
    return "`" + text + "`";
}
std::string joined(const strings& parts) {
    std::string all;
    for (const auto& part : parts) all += (all.empty() ? "" : ", ") + part;
    return all;
}

// ------------------------------------------------------------------------------------------------ the headers' text

constexpr const char* slots[] = {"clusterer",  "index",    "selector", "estimator",   "budget",   "retention",
                                 "compressor", "position", "layout",   "replacement", "schedule", "io"};

struct composition {
    std::string base;
    std::map<std::string, std::string> named; ///< slot to policy, as the struct itself has it
};
using compositions = std::map<std::string, composition>;

/// Of "struct NAME : BASE {" ... "};" in a header.
void read_structs(const std::string& text, compositions& all) {
    for (std::size_t at = text.find("\nnamespace presets {");
         (at = text.find("\nstruct ", at)) != std::string::npos; ++at) {
        std::istringstream head(text.substr(at + 8));
        std::string name, colon, base;
        head >> name >> colon >> base;
        composition& c = all[name];
        if (colon == ":") c.base = base;
        const std::string body = text.substr(at, text.find("\n};", at) - at);
        for (std::size_t use = 0; (use = body.find("    using ", use)) != std::string::npos; ++use) {
            std::istringstream words(body.substr(use + 10, body.find(';', use) - use - 10));
            std::string slot, word, policy;
            words >> slot >> word; // slot =
            while (words >> word) policy += (policy.empty() ? "" : " ") + word;
            c.named[slot] = policy;
        }
    }
}
/// What a preset has in a slot, itself or from what it inherits.
std::string policy_of(const compositions& all, const std::string& preset, const std::string& slot) {
    const composition& c = all.at(preset);
    const auto here = c.named.find(slot);
    if (here == c.named.end()) return policy_of(all, c.base, slot);
    const auto other = here->second.find("::" + slot); // that of another preset
    if (other != std::string::npos && all.count(here->second.substr(0, other)) != 0)
        return policy_of(all, here->second.substr(0, other), slot);
    return here->second;
}
std::string composed(const compositions& all, const std::string& preset) {
    strings parts;
    for (const char* slot : slots) {
        const std::string policy = policy_of(all, preset, slot);
        if (preset == "full" || policy != policy_of(all, "full", slot))
            parts.push_back(std::string(slot) + " " + code(policy));
    }
    return joined(parts);
}
/// The alias of its manager, which is not always called as the preset is.
std::string alias_of(const std::string& text, const std::string& preset) {
    const std::string manager = "kv_manager<presets::" + preset;
    const std::size_t use =
        text.rfind("using ", std::min(text.find(manager + ">"), text.find(manager + ",")));
    std::istringstream words(text.substr(use + 6));
    std::string alias;
    words >> alias;
    return alias;
}
/// The comment that opens a header, without its slashes and the licence.
std::string opening(const std::string& text) {
    std::istringstream lines(text);
    std::string all, line;
    while (std::getline(lines, line) && line.starts_with("//") && line.find("SPDX") == std::string::npos)
        all += (line.size() > 3 ? line.substr(3) : "") + "\n";
    return all;
}

// --------------------------------------------------------------------------------------------------------- the types

/// What fields() of a policy's config names.
struct listing {
    std::string slot;
    settings* all;
    template <class Number> void operator()(const char* name, const Number& value) {
        char text[40];
        std::snprintf(text, sizeof text, "%.6g", static_cast<double>(value));
        all->emplace_back(slot + "." + name, text);
    }
};
/// Of the slots that the preset's path reads (slots/preset.hpp).
template <class Preset> settings settings_of(kvtl::cache_config<Preset>& c) {
    settings all;
    const auto add = [&all](const char* slot, auto& of_policy) {
        if constexpr (requires(listing l) { of_policy.fields(l); }) of_policy.fields(listing{slot, &all});
    };
    if constexpr (kvtl::retrieves<Preset>) {
        add("clusterer", c.clusterer), add("index", c.index), add("selector", c.selector);
        add("estimator", c.estimator), add("layout", c.layout), add("replacement", c.replacement);
        if constexpr (kvtl::chooses_ahead<typename Preset::selector> ||
                      kvtl::virtualises<typename Preset::schedule>)
            add("schedule", c.schedule);
    }
    add("budget", c.budget), add("retention", c.retention);
    add("compressor", c.compressor), add("position", c.position);
    return all;
}
/// Settings with their defaults; those that fitted() turns are marked.
template <class Preset> std::string settings_of_preset() {
    kvtl::cache_config<Preset> c;
    c.shape = {32, 32, 8, 128};
    const settings before = settings_of(c);
    if constexpr (requires { Preset::shrink(c); })
        while (Preset::shrink(c)) {
        }
    const settings after = settings_of(c);
    strings parts;
    for (std::size_t i = 0; i < before.size(); ++i)
        parts.push_back(code(before[i].first) + " " + before[i].second +
                        (before[i] == after[i] ? "" : " **(size)**"));
    return joined(parts);
}

std::string tokens(std::uint32_t n) {
    return n == kvtl::whole_sequence ? "all"
           : n == kvtl::automatic    ? "half of what is kept"
                                     : std::to_string(n);
}

template <class Preset> std::string home() {
    if (kvtl::store_of_preset<Preset>() == kvtl::store_kind::rows) return "memory";
    const std::string units = kvtl::store_of_preset<Preset>() == kvtl::store_kind::groups ? "runs" : "units";
    return units +
           (std::string_view(Preset::io::name) == "in_memory" ? " on a device in memory" : " on storage");
}

template <class Preset> std::string needs() {
    using kvtl::engine_input;
    strings parts;
    constexpr engine_input needed = kvtl::needed_inputs<Preset>();
    for (const auto& [s, name] :
         {std::pair{engine_input::k_pre, "k_pre"}, std::pair{engine_input::x, "x"},
          std::pair{engine_input::probe, "probe"}, std::pair{engine_input::external, "external"}})
        if (contains(needed, s)) parts.push_back(code(std::string("layer_input::") + name));
    std::uint32_t kinds = kvtl::calibrated_kinds<typename Preset::compressor>();
    if constexpr (requires { Preset::index::calibrated; }) kinds |= kind_bit(Preset::index::calibrated);
    if (kinds != 0)
        parts.push_back("calibration " + code(kvtl::kind_names(kinds)) +
                        (contains(needed, engine_input::calibration) ? "" : " (may be left out)"));
    kvtl::cache_config<Preset> c;
    if constexpr (requires { c.retention.weights; }) parts.push_back("gates in " + code("retention.weights"));
    if constexpr (requires { c.compressor.frequencies; })
        parts.push_back("rotation in " + code("compressor.frequencies"));
    if constexpr (requires { c.position.frequencies; })
        parts.push_back("rotation in " + code("position.frequencies"));
    if constexpr (kvtl::asks_for_predictions<typename Preset::schedule>) parts.push_back(code("prefetch()"));
    if constexpr (kvtl::virtualises<typename Preset::schedule>) parts.push_back(code("before_query()"));
    return joined(parts);
}

struct description {
    const char *header, *name;
    std::string home, window, settings, needs;
};
template <class Preset> description describe(const char* header, const char* name) {
    return {header,
            name,
            home<Preset>(),
            tokens(Preset::window_tokens) + ", " + tokens(Preset::sink_tokens),
            settings_of_preset<Preset>(),
            needs<Preset>()};
}

std::string page() {
#define KVTL_PRESET(header, name) describe<kvtl::presets::name>(#header, #name),
    const std::vector<description> presets{KVTL_ALL_PRESETS(KVTL_PRESET)};
#undef KVTL_PRESET
    const auto header_text = [](const std::string& header) {
        return read(KVTL_SOURCE_DIR "/include/kvtl/presets/" + header + ".hpp");
    };
    compositions all;
    for (const auto& p : presets) read_structs(header_text(p.header), all);
    std::string text =
        R"(<!-- Generated: `cmake --build BUILD --target presets_page` writes this page, a test compares it. -->
# Presets

Every preset of `include/kvtl/presets/`, header by header. First comes the comment of the header, with the paper and the deviations from it. Then
one line describes each preset. [choose_a_preset.md](choose_a_preset.md) helps to choose, [policies.md](policies.md) sorts presets by paper, and
[glossary.md](glossary.md) explains the terms. D is the number of numbers per head, H the number of KV heads, and G the number of query heads per KV head.

| column | has |
| --- | --- |
| *composes* | the policies that differ from those of `full`, inherited ones included |
| *entries live* | in memory, or on a device as runs of consecutive tokens or as units of any tokens |
| *window, sinks* | the defaults of `window_tokens` and `sink_tokens` |
| *settings* | the fields of the policies' configs with their defaults: `config.SLOT.FIELD`, and `--set PRESET.SLOT.FIELD=VALUE` of the programs. `fitted()` changes those marked **(size)** to make the index fit |
| *needs* | inputs beyond q, k and v: [calibrate.md](calibrate.md) for files, [integrate.md](integrate.md) for calls |

Presets with a retention also read `keep_tokens` and `prefill_tokens`. The engine declares inputs and files in `engine_inputs<..>`, the second argument of
`kv_manager`; the aliases below do so. `config.engine_inputs` repeats the declaration at run time, and declares everything by default.
)";
    text += "\n| header | presets |\n| --- | --- |\n";
    for (std::size_t i = 0; i < presets.size();) {
        const std::string file = presets[i].header;
        strings names;
        for (; i < presets.size() && file == presets[i].header; ++i) names.push_back(code(presets[i].name));
        text += "| [" + file + ".hpp](#" + file + "hpp) | " + joined(names) + " |\n";
    }
    std::string header, header_content;
    for (const auto& p : presets) {
        if (header != p.header) {
            header = p.header;
            header_content = header_text(header);
            text += "\n## " + header + ".hpp\n\n```text\n" + opening(header_content) + "```\n\n";
            text += "| alias | composes | entries live | window, sinks | settings | needs |\n";
            text += "| --- | --- | --- | --- | --- | --- |\n";
        }
        const std::string alias = alias_of(header_content, p.name);
        text += "| " + code(alias) +
                (alias == p.name ? "" : " of " + code(std::string("presets::") + p.name)) + " | " +
                composed(all, p.name) + " | " + p.home + " | " + p.window + " | " + p.settings + " | " +
                p.needs + " |\n";
    }
    return text;
}

} // namespace

int main(int argc, char** argv) {
    const bool check = argc == 3 && std::strcmp(argv[1], "--check") == 0;
    if ((argc != 2 || argv[1][0] == '-') && !check)
        return std::fprintf(stderr, "usage: presets_page [--check] FILE\n"), 2;
    const std::string path = argv[argc - 1], text = page();
    if (check) {
        if (read(path) == text) return 0;
        std::fprintf(stderr, "%s is not up to date: cmake --build BUILD --target presets_page\n",
                     path.c_str());
        return 1;
    }
    std::ofstream(path) << text;
    return read(path) == text ? 0 : 1;
}
