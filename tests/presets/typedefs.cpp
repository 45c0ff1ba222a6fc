// Every typedef in the table of presets of docs/policies.md, by the name and with the arguments that a reader would use,
// and all headers of presets side by side: what two of them define twice does not compile.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/best.hpp>
#include <kvtl/presets/chelsea.hpp>
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/demoting.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/engine_decides.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/gear.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/infinigen.hpp>
#include <kvtl/presets/infllm.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/kivi.hpp>
#include <kvtl/presets/kv_direct.hpp>
#include <kvtl/presets/kvquant.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/learned.hpp>
#include <kvtl/presets/loki.hpp>
#include <kvtl/presets/low_bits.hpp>
#include <kvtl/presets/low_rank.hpp>
#include <kvtl/presets/merging.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/query_free.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/retroinfer.hpp>
#include <kvtl/presets/shadowkv.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/sparq.hpp>
#include <kvtl/presets/specache.hpp>
#include <kvtl/presets/squeezed.hpp>
#include <kvtl/presets/streaming.hpp>
#include <kvtl/presets/think.hpp>
#include <kvtl/presets/token_topk.hpp>
#include <kvtl/presets/two_level.hpp>
#include <kvtl/presets/virtualised.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace typedefs_test {

namespace {

// Rows that select() shows are those of the store only where records are rows.
static_assert(kvtl::dynakv::views_last && kvtl::flexgen::views_last);
static_assert(!kvtl::dynakv_int8::views_last && !kvtl::palu::views_last);

struct named {
    std::string_view alias;  ///< as docs/policies.md has it
    std::string_view preset; ///< the name of the preset behind it
};
/// Complete only where the preset satisfies the manager's requirements with what the alias supplies.
template <class Cache> constexpr std::string_view preset_of() {
    static_assert(sizeof(Cache) != 0);
    return Cache::preset::name;
}

#define TYPEDEF(name)                                                                                        \
    named {                                                                                                  \
#name, preset_of < kvtl::name>()                                                                     \
    }
constexpr named typedefs[] = {
    TYPEDEF(full),
    TYPEDEF(dynakv),
    TYPEDEF(dynakv_static),
    TYPEDEF(dynakv_lr_energy),
    TYPEDEF(dynakv_lr),
    TYPEDEF(snapkv_layer_then_dynakv_lr),
    TYPEDEF(palu),
    TYPEDEF(matryoshka),
    TYPEDEF(snapkv_layer_then_lr_energy),
    TYPEDEF(kvswap_lr),
    TYPEDEF(flexgen_lr),
    TYPEDEF(dynakv_head_lr),
    TYPEDEF(quest_head_lr),
    TYPEDEF(dynakv_unit_contiguous),
    TYPEDEF(kvtl_best),
    TYPEDEF(dynakv_lru),
    TYPEDEF(kvswap),
    TYPEDEF(kvswap_softmax),
    TYPEDEF(flexgen),
    TYPEDEF(infinigen),
    TYPEDEF(infinigen_star),
    TYPEDEF(infinigen_star_reuse),
    TYPEDEF(shadowkv),
    TYPEDEF(shadowkv_joint),
    TYPEDEF(quest),
    TYPEDEF(quest_top_p),
    TYPEDEF(pqcache),
    TYPEDEF(loki),
    TYPEDEF(loki_predicted),
    TYPEDEF(fasa),
    TYPEDEF(sparq),
    TYPEDEF(infllm),
    TYPEDEF(chelsea),
    TYPEDEF(clusterkv),
    TYPEDEF(retroinfer),
    TYPEDEF(squeezed),
    TYPEDEF(dynakv_estimate),
    TYPEDEF(dynakv_top_p),
    TYPEDEF(dynakv_virtualised),
    TYPEDEF(dynakv_estimate_virtualised),
    TYPEDEF(dynakv_two_level_int8_virtualised),
    TYPEDEF(clusterkv_virtualised),
    TYPEDEF(streaming_llm),
    TYPEDEF(sink_and_window),
    TYPEDEF(window_only),
    TYPEDEF(snapkv_group),
    TYPEDEF(snapkv_qhead),
    TYPEDEF(snapkv_layer),
    TYPEDEF(expected_attention),
    TYPEDEF(expected_attention_heads),
    TYPEDEF(r_kv),
    TYPEDEF(pyramidkv),
    TYPEDEF(dynamickv),
    TYPEDEF(dynamickv_qhead),
    TYPEDEF(cake),
    TYPEDEF(mikv),
    TYPEDEF(arkv),
    TYPEDEF(adakv),
    TYPEDEF(compress_kv),
    TYPEDEF(duo_attention),
    TYPEDEF(defensivekv),
    TYPEDEF(layer_defensivekv),
    TYPEDEF(defensivekv_mean),
    TYPEDEF(defensivekv_max),
    TYPEDEF(layer_defensivekv_mean),
    TYPEDEF(layer_defensivekv_max),
    TYPEDEF(h2o),
    TYPEDEF(h2o_prefill_once),
    TYPEDEF(tova),
    TYPEDEF(lazy_eviction),
    TYPEDEF(knorm),
    TYPEDEF(keydiff),
    TYPEDEF(lagkv),
    TYPEDEF(trim_kv),
    TYPEDEF(locret),
    TYPEDEF(global_gates),
    TYPEDEF(attention_gate),
    TYPEDEF(kvzap),
    TYPEDEF(lookahead_probe),
    TYPEDEF(epicache),
    TYPEDEF(kvzip),
    TYPEDEF(kvzip_plus),
    TYPEDEF(chosen_blocks),
    TYPEDEF(external_mask_cache),
    TYPEDEF(cam),
    TYPEDEF(d2o),
    TYPEDEF(kv_merger),
    TYPEDEF(snapkv_then_dynakv),
    TYPEDEF(mpcache),
    TYPEDEF(mpcache_shared),
    TYPEDEF(full_int8),
    TYPEDEF(snapkv_int8),
    TYPEDEF(dynakv_int8),
    TYPEDEF(kvswap_int8),
    TYPEDEF(full_fp8),
    TYPEDEF(dynakv_fp8),
    TYPEDEF(full_k8v4),
    TYPEDEF(full_int4),
    TYPEDEF(full_int2),
    TYPEDEF(snapkv_int4),
    TYPEDEF(dynakv_k8v4),
    TYPEDEF(kvswap_int4),
    TYPEDEF(flexgen_int4),
    TYPEDEF(full_k8v4_rotated),
    TYPEDEF(full_int4_rotated),
    TYPEDEF(full_int2_rotated),
    TYPEDEF(dynakv_int4_rotated),
    TYPEDEF(kivi_4),
    TYPEDEF(kivi_2),
    TYPEDEF(kv_direct),
    TYPEDEF(kv_direct_f16),
    TYPEDEF(gear),
    TYPEDEF(kvquant_4),
    TYPEDEF(kvquant_2),
    TYPEDEF(dynakv_kvquant),
    TYPEDEF(think),
    TYPEDEF(snapkv_think),
    TYPEDEF(specache),
    TYPEDEF(dynakv_two_level),
    TYPEDEF(dynakv_two_level_int8),
    TYPEDEF(no_cluster),
    TYPEDEF(no_cluster_streamed),
    TYPEDEF(oracle),
    TYPEDEF(random_units_cache),
    TYPEDEF(random_keep),
    TYPEDEF(random_decoded),
};
#undef TYPEDEF

/// The names in backquotes in the column `typedef` of the table in docs/policies.md.
std::vector<std::string> typedefs_of_page() {
    std::ifstream file(KVTL_SOURCE_DIR "/docs/policies.md");
    std::vector<std::string> names;
    bool inside = false;
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("| paper | typedef |")) inside = true;
        if (!inside) continue;
        if (!line.starts_with("|")) break;
        const std::size_t first = line.find('|', 1), last = line.find('|', first + 1);
        const std::string cell = line.substr(first, last - first);
        for (std::size_t at = cell.find('`'); at != std::string::npos;) {
            const std::size_t end = cell.find('`', at + 1);
            names.push_back(cell.substr(at + 1, end - at - 1));
            at = cell.find('`', end + 1);
        }
    }
    return names;
}

} // namespace

TEST_CASE("the typedefs above are those of docs/policies.md") {
    const std::vector<std::string> documented = typedefs_of_page();
    REQUIRE(documented.size() > 50);
    for (const std::string& name : documented) {
        CAPTURE(name);
        CHECK(std::any_of(std::begin(typedefs), std::end(typedefs),
                          [&](const named& n) { return n.alias == name; }));
    }
    for (const named& n : typedefs) {
        CAPTURE(std::string(n.alias));
        CHECK(std::find(documented.begin(), documented.end(), n.alias) != documented.end());
    }
}

TEST_CASE("a typedef bears its preset's name") {
    for (const named& n : typedefs) {
        CAPTURE(std::string(n.alias));
        CHECK((n.alias == n.preset || n.alias == std::string(n.preset) + "_cache"));
    }
}

TEST_CASE("an alias supplies what its preset needs, and no more") {
    using kvtl::engine_input, kvtl::engine_inputs_for;
    static_assert(std::is_same_v<engine_inputs_for<kvtl::presets::dynakv>, kvtl::default_engine_inputs>);
    CHECK(engine_inputs_for<kvtl::presets::kvswap>::value ==
          (engine_input::q | engine_input::k | engine_input::v | engine_input::calibration));
    CHECK(engine_inputs_for<kvtl::presets::lookahead_probe>::value ==
          (engine_input::q | engine_input::k | engine_input::v | engine_input::probe));
}

TEST_CASE("what an alias promised for its engine and does not come is refused in words") {
    kvtl::kvswap::config c;
    c.shape = {1, 4, 2, 32};
    c.max_tokens = 256;
    c.memory_bytes = std::size_t{16} << 20;
    const auto opened = kvtl::kvswap::open(c);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find("needs a calibration file") != std::string::npos);
}

} // namespace typedefs_test
