// SPDX-License-Identifier: MIT
#include "reuse.hpp"

#include <kvtl/io/backends.hpp>
#include <kvtl/policies/replace_cluster_aligned.hpp>
#include <kvtl/policies/replace_fifo.hpp>
#include <kvtl/policies/replace_lfu.hpp>
#include <kvtl/policies/replace_lru.hpp>
#include <kvtl/policies/replace_s3_fifo.hpp>
#include <kvtl/policies/replace_sieve.hpp>
#include <kvtl/policies/replace_slru.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "co_retrieved.hpp"
#include "error.hpp"
#include "placement.hpp"
#include "presets/preset_cache.hpp"
#include "progress.hpp"
#include "replay.hpp"
#include "scratch_files.hpp"
#include "traced_entries.hpp"
#include "workload.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unordered_map>

namespace bench {

/// DynaKV, observed.
struct traced_dynakv : kvtl::presets::dynakv {
    using replacement = traced<kvtl::cluster_aligned>;
    using index = traced_entries<kvtl::centroid>;
};
/// What a run writes down.
struct run_log {
    decision_log decisions;
    entry_log entries;
    void begin_call(std::size_t step, std::uint32_t layer) {
        decisions.begin_call(static_cast<std::uint32_t>(step), layer);
        entries.begin_call();
    }
};

namespace {

using json = nlohmann::ordered_json;
using manager = kvtl::kv_manager<engine::on_any_io<traced_dynakv>>;

constexpr std::size_t prompt_chunk = 1024;

void require(const kvtl::status& s) {
    if (!s) throw engine::run_failure(s.what());
}

manager::config cache_config(const decode_options& o, std::size_t attend_tokens, double mib, run_log& log) {
    manager::config c;
    c.shape = o.shape;
    c.max_tokens = o.context + o.steps;
    c.memory_bytes = static_cast<std::size_t>(mib * (1 << 20));
    c.attend_tokens = attend_tokens;
    c.io = kvtl::any_backend({.use = *kvtl::parse_backend(o.io), .path = o.kv_path});
    for (const engine::setting& s : o.settings)
        if (s.policy == traced_dynakv::name)
            if (auto done = engine::apply_setting(engine::fields_of(c), s); !done)
                throw engine::bad_input(done.error().message);
    if constexpr (requires { manager::fitted(c); })
        if (o.fit) {
            auto fitting = manager::fitted(c);
            if (!fitting) throw engine::bad_input(fitting.error().message);
            c = *fitting;
        }
    c.replacement.log = &log.decisions;
    c.index.log = &log.entries;
    return c;
}

/// Reads the prompt in without attention, with the queries of its last chunk.
kvtl::sequence_id read_prompt(const decode_options& o, manager& cache, workload& w,
                              engine::progress_bar& bar) {
    auto seq = cache.begin();
    if (!seq) throw engine::run_failure(seq.error().message);
    const std::size_t key = w.key_floats(), query = w.query_floats();
    std::vector<float> k(prompt_chunk * key), v(k.size()), q(prompt_chunk * query);
    for (std::size_t first = 0; first < o.context; first += prompt_chunk) {
        const std::size_t n = std::min(prompt_chunk, o.context - first);
        const bool last = first + n == o.context;
        const std::span<float> asked = std::span(q).first(last ? n * query : 0);
        for (std::uint32_t l = 0; l < o.shape.layers; ++l) {
            kvtl::layer_input in;
            in.k = std::span(k).first(n * key), in.v = std::span(v).first(n * key);
            w.rows(0, l, first, n,
                   {.q = asked, .k = std::span(k).first(n * key), .v = std::span(v).first(n * key)});
            mark_tokens(std::span(v).first(n * key), first, o.shape.kv_heads, o.shape.head_dim);
            in.q = asked;
            in.last_chunk = last;
            require(cache.prefill(*seq, l, in, {}));
        }
        bar.update(first + n);
    }
    return *seq;
}

/// Decodes, and notes where calls begin.
void run_steps(const decode_options& o, manager& cache, kvtl::sequence_id seq, workload& w, run_log& log,
               engine::progress_bar& bar) {
    std::vector<float> k(w.key_floats()), v(k.size()), q(w.query_floats()), out(q.size());
    for (std::size_t t = 0; t < o.steps; ++t) {
        for (std::uint32_t l = 0; l < o.shape.layers; ++l) {
            kvtl::layer_input in;
            w.rows(0, l, o.context + t, 1, {.q = q, .k = k, .v = v});
            mark_tokens(v, o.context + t, o.shape.kv_heads, o.shape.head_dim);
            in.q = q, in.k = k, in.v = v;
            log.begin_call(t, l);
            require(cache.attend(seq, l, in, out));
        }
        bar.update(o.context + t + 1);
    }
}

/// What the prompt's last queries, as many as layouts look at, choose among the prompt's units. False where that is more
/// than one selection may read.
bool ask_again(const decode_options& o, manager& cache, kvtl::sequence_id seq, workload& w, run_log& log) {
    constexpr std::size_t queries = 32;
    std::vector<float> q(w.query_floats());
    const std::size_t first = o.context - std::min(o.context, queries);
    for (std::size_t t = first; t < o.context; ++t)
        for (std::uint32_t l = 0; l < o.shape.layers; ++l) {
            w.rows(0, l, t, 1, {.q = q});
            log.begin_call(t, l);
            const kvtl::status asked = cache.select(seq, l, q, [](auto&&...) {});
            if (asked.code() == kvtl::errc::bound_too_small) return false;
            require(asked);
        }
    return true;
}

/// Of a run of its own, as asking again brings units in.
json together_json(const decode_options& o, workload& w, std::size_t attend_tokens, double mib) {
    run_log log;
    decode_options in_memory = o;
    in_memory.io = "memory";
    manager::config config = cache_config(in_memory, attend_tokens, mib, log);
    const kvtl::shape& m =
        o.shape; // room for all: what select() shows is pinned, and what is chosen is the same
    const std::size_t raw = config.max_tokens * m.layers * m.kv_heads * m.head_dim * 2 * sizeof(kvtl::f16);
    config.memory_bytes += 2 * raw;
    auto opened = manager::open(config);
    if (!opened) throw engine::bad_input("dynakv: " + opened.error().message);
    engine::progress_bar bar("pairs of units", o.context + o.steps);
    const kvtl::sequence_id seq = read_prompt(o, *opened, w, bar);
    const std::size_t begin = log.decisions.events().size();
    if (!ask_again(o, *opened, seq, w, log)) return nullptr;
    const std::size_t asked = log.decisions.events().size();
    run_steps(o, *opened, seq, w, log, bar);
    const auto all = log.decisions.events();
    const co_retrieved r = compare_pairs(all.subspan(begin, asked - begin), all.subspan(asked));
    return {{"lanes", r.lanes},
            {"pairs", r.pairs},
            {"rank_correlation", r.rank_correlation},
            {"concentration", r.concentration},
            {"foretold", r.foretold},
            {"partner_of_prompt", r.partner_of_prompt},
            {"partner_by_chance", r.partner_by_chance},
            {"partner_in_hindsight", r.partner_in_hindsight}};
}

json result_json(const char* policy, const replay_result& r) {
    const auto mean = [](std::uint64_t sum, std::uint64_t n) {
        return n > 0 ? json(static_cast<double>(sum) / static_cast<double>(n)) : json(nullptr);
    };
    return {{"policy", policy},
            {"hit_rate", r.hit_rate()},
            {"unit_hit_rate", r.unit_hit_rate()},
            {"evictions", r.evictions},
            {"mean_evicted_frames", mean(r.evicted_frames, r.evictions)},
            {"regretted", mean(r.regretted, r.evictions)}};
}

template <class... Replacement> void replay_all(const access_sequence& s, std::uint32_t frames, json& rows) {
    (rows.push_back(result_json(Replacement::name.data(), replay<Replacement>(s, frames))), ...);
}

json side_json(std::uint32_t frames, std::string_view only, const replay_difference::side& side) {
    const auto units = static_cast<double>(side.units);
    return {{"frames", frames},
            {"only", only},
            {"units", side.units},
            {"mean_frames", side.units > 0 ? json(static_cast<double>(side.frames) / units) : json(nullptr)},
            {"updated", side.units > 0 ? json(static_cast<double>(side.updated) / units) : json(nullptr)}};
}

/// All policies at one number of frames; `share` says where that comes from.
void replay_at(const access_sequence& s, std::span<const access> accesses, std::uint64_t wanted,
               const json& share, json& row) {
    using namespace kvtl;
    // What one call asks for has to fit together, as it does in the manager's planning.
    const auto frames = static_cast<std::uint32_t>(std::max(wanted, s.largest_call() + s.largest()));
    json rows = json::array();
    replay_all<cluster_aligned, lru, fifo, lfu, slru, s3_fifo, sieve>(s, frames, rows);
    const hit_bounds bounds = belady(accesses, frames);
    rows.push_back({{"policy", "belady"}, {"hit_rate", bounds.reached_rate()}});
    rows.push_back({{"policy", "bound"}, {"hit_rate", bounds.bound_rate()}});
    for (const json& r : rows) {
        json full = {{"frames", frames}, {"share", share}};
        full.update(r);
        row["replacement"].push_back(full);
    }
    const replay_difference d = compare<cluster_aligned, lru>(s, frames);
    row["difference"].push_back(side_json(frames, cluster_aligned::name, d.only_first));
    row["difference"].push_back(side_json(frames, lru::name, d.only_second));
}

/// What DynaKV's Figures 12 and 13 compare with, in all steps. `began`: behind the prompt.
json placement_json(const run_log& log, const kvtl::shape& m, const kvtl::io_device_info& device,
                    std::uint32_t gap_pages, const kvtl::statistics& began, const kvtl::statistics& ended) {
    const auto row = static_cast<std::uint32_t>(m.head_dim * sizeof(kvtl::f16));
    const kvtl::page_format page = kvtl::page_format::make(device.page, {row, row});
    const placement_replay r = replay_placement(log.decisions.events(), log.entries, page.rows, gap_pages);
    const auto bytes = [&](std::uint64_t entries) { return entries * page.record.entry(); };
    json of_clusters = {{"order", "clusters"},
                        {"reads", ended.reads - began.reads},
                        {"read_bytes", ended.read_bytes - began.read_bytes},
                        {"moved_by_appends", ended.bytes_moved_by_appends - began.bytes_moved_by_appends},
                        {"moved_by_staying_children",
                         ended.bytes_moved_by_staying_children - began.bytes_moved_by_staying_children},
                        {"moved_by_leaving_children",
                         ended.bytes_moved_by_leaving_children - began.bytes_moved_by_leaving_children}};
    json of_tokens = {{"order", "tokens"},
                      {"reads", r.in_token_order.reads},
                      {"read_bytes", r.in_token_order.read_pages * page.page_bytes},
                      {"page_bytes", r.in_token_order.pages * page.page_bytes},
                      {"entry_bytes", bytes(r.in_token_order.entries)},
                      {"units", r.in_token_order.units}};
    json of_packed = {{"order", "packed"},
                      {"joined", r.packed.joined},
                      {"moved_by_appends", bytes(r.packed.behind)},
                      {"moved_by_staying_children", bytes(r.packed.staying)},
                      {"moved_by_leaving_children", bytes(r.packed.leaving)}};
    return json::array({of_clusters, of_tokens, of_packed});
}

json one_row(const decode_options& o, workload& w, std::size_t attend_tokens, double mib) {
    run_log log;
    manager::config config = cache_config(o, attend_tokens, mib, log);
    const scratch_file file(o.kv_path);
    auto opened = manager::open(config);
    if (!opened) throw engine::bad_input("dynakv: " + opened.error().message);
    engine::progress_bar bar("prompt and steps", o.context + o.steps);
    const kvtl::sequence_id seq = read_prompt(o, *opened, w, bar);
    const kvtl::statistics began = opened->stats();
    run_steps(o, *opened, seq, w, log, bar);

    const kvtl::statistics stats = opened->stats();
    json settings = {{"attend_tokens", attend_tokens}, {"memory_mib", mib}};
    for (const auto& [name, value] : engine::list_settings(engine::fields_of(config))) settings[name] = value;
    json row = {{"policy", "dynakv"},          {"shape", o.shape_name},
                {"context", o.context},        {"steps", o.steps},
                {"workload", o.workload},      {"io", std::string(opened->device_info().name)},
                {"config", settings},          {"frames", log.decisions.frames()},
                {"units", stats.units},        {"splits", stats.splits},
                {"hit_rate", stats.hit_rate()}};
    row["horizons"] = reuse_row::horizons;
    row["reuse"] = json::array();
    for (const reuse_row& r : measure_reuse(log.decisions.events())) {
        json p = json::array();
        for (std::size_t i = 0; i < r.horizons.size(); ++i) p.push_back(r.probability(i));
        row["reuse"].push_back({{"kind", r.kind}, {"cases", r.cases}, {"probability", p}});
    }

    const access_sequence s(log.decisions.events());
    const std::vector<access> accesses = as_accesses(s);
    row["touched_frames"] = s.touched();
    row["replacement"] = json::array(), row["difference"] = json::array();
    for (const double share : {0.1, 0.125, 0.15, 0.25, 0.5, 0.75})
        replay_at(s, accesses, static_cast<std::uint64_t>(share * static_cast<double>(s.touched())), share,
                  row);
    replay_at(s, accesses, log.decisions.frames(), nullptr, row);
    row["placement"] =
        placement_json(log, o.shape, opened->device_info(), config.read_through_pages, began, stats);
    row["together"] = together_json(o, w, attend_tokens, mib);
    return row;
}

} // namespace

std::array<reuse_row, 4> measure_reuse(std::span<const decision_event> events) {
    struct unit_state {
        std::vector<std::uint32_t> asked; ///< steps, ascending
        bool resident = false, asked_now = false, updated_now = false;
    };
    std::unordered_map<std::uint64_t, unit_state> units;
    std::uint32_t last = 0;
    for (const decision_event& e : events) {
        if (e.what == decision::call) last = e.unit;
        if (e.what == decision::hit || e.what == decision::miss)
            units[unit_key(e.lane, e.unit)].asked.push_back(last);
    }

    std::array<reuse_row, 4> rows;
    rows[0].kind = "updated", rows[1].kind = "updated_only", rows[2].kind = "asked",
    rows[3].kind = "resident";
    const auto end_step = [&](std::uint32_t step) {
        for (auto& [key, u] : units) {
            const auto next = std::upper_bound(u.asked.begin(), u.asked.end(), step);
            const bool of_kind[] = {u.updated_now, u.updated_now && !u.asked_now,
                                    u.asked_now && !u.updated_now, u.resident};
            u.asked_now = u.updated_now = false;
            if (step + reuse_row::horizons.back() > last) continue;
            for (std::size_t k = 0; k < rows.size(); ++k) {
                if (!of_kind[k]) continue;
                ++rows[k].cases;
                for (std::size_t i = 0; i < reuse_row::horizons.size(); ++i)
                    if (next != u.asked.end() && *next <= step + reuse_row::horizons[i]) ++rows[k].again[i];
            }
        }
    };
    std::uint32_t step = 0;
    for (const decision_event& e : events) {
        if (e.what == decision::call) {
            if (e.unit != step) end_step(step);
            step = e.unit;
        }
        if (e.what == decision::call || e.what == decision::tick) continue;
        unit_state& u = units[unit_key(e.lane, e.unit)];
        u.resident = e.what != decision::left;
        u.asked_now |= e.what == decision::hit || e.what == decision::miss;
        u.updated_now |= e.what == decision::wrote;
    }
    end_step(step);
    return rows;
}

json run_reuse(const decode_options& o, const std::function<void(const json&)>& row_done) {
    if (o.context + o.steps > token_limit)
        throw engine::bad_input("--context + --steps: valid: up to " + std::to_string(token_limit) +
                                " tokens");
    const bool in_memory = o.io == "memory";
    decode_options one = o;
    one.policies = {"dynakv"};
    static_cast<void>(plan_rounds(
        one, {.disk = in_memory ? 0 : free_disk_bytes(o.kv_path), .memory = available_memory_bytes()},
        in_memory));
    const auto w = make_workload({.text = o.workload,
                                  .shape = o.shape,
                                  .prompt_tokens = o.context,
                                  .tokens = o.context + o.steps,
                                  .sequences = 1,
                                  .rope_base = o.rope_base});
    json rows = json::array();
    for (const std::size_t attend : o.attend_tokens)
        for (const double mib : o.memory_mib) {
            rows.push_back(one_row(o, *w, attend, mib));
            if (row_done) row_done(rows.back());
        }
    return rows;
}

namespace {

void print_placement(const json& rows, std::size_t steps) {
    const auto mean = [&](const json& r, const char* key) {
        return r.contains(key) ? r[key].get<double>() / static_cast<double>(steps) : 0.0;
    };
    std::printf("\n%-22s %10s %10s %14s %14s %14s\n", "entries in the order of", "reads", "KiB read",
                "KiB by appends", "staying", "leaving");
    for (const auto& r : rows)
        std::printf("  %-21s %10.1f %10.1f %14.2f %14.3f %14.3f   per step\n",
                    r["order"].get<std::string>().c_str(), mean(r, "reads"), mean(r, "read_bytes") / 1024,
                    mean(r, "moved_by_appends") / 1024, mean(r, "moved_by_staying_children") / 1024,
                    mean(r, "moved_by_leaving_children") / 1024);
}

} // namespace

void print_reuse(const json& row) {
    std::printf("%s, %zu + %zu tokens, %s: %u frames, hit rate %.3f\n\nasked for again within",
                row["shape"].get<std::string>().c_str(), row["context"].get<std::size_t>(),
                row["steps"].get<std::size_t>(), row["workload"].get<std::string>().c_str(),
                row["frames"].get<unsigned>(), row["hit_rate"].get<double>());
    for (const auto& h : row["horizons"]) std::printf("%8u", h.get<unsigned>());
    std::printf(" steps\n");
    for (const auto& r : row["reuse"]) {
        std::printf("  %-20s", r["kind"].get<std::string>().c_str());
        for (const auto& p : r["probability"]) std::printf("%7.1f%%", 100 * p.get<double>());
        std::printf("   of %zu\n", r["cases"].get<std::size_t>());
    }
    const auto& together = row["together"];
    if (!together.is_null())
        std::printf("\nasked for together, %zu pairs of units of %zu lanes, the prompt's last queries "
                    "against decode\n",
                    together["pairs"].get<std::size_t>(), together["lanes"].get<std::size_t>());
    for (auto it = together.begin(); it != together.end(); ++it)
        if (it.value().is_number_float())
            std::printf("  %-22s %.3f\n", it.key().c_str(), it.value().get<double>());
    print_placement(row["placement"], row["steps"].get<std::size_t>());
    unsigned frames = 0;
    for (const auto& r : row["replacement"]) {
        if (r["frames"].get<unsigned>() != frames) {
            frames = r["frames"].get<unsigned>();
            if (r["share"].is_null())
                std::printf("\n%u frames (the run's own)", frames);
            else
                std::printf("\n%u frames (%.0f %% of what is touched)", frames,
                            100 * r["share"].get<double>());
            std::printf("\n  %-20s %8s %8s %10s %8s %10s\n", "hit rate by", "bytes", "units", "evictions",
                        "frames", "regretted");
        }
        std::printf("  %-20s %8.4f", r["policy"].get<std::string>().c_str(), r["hit_rate"].get<double>());
        if (r.contains("evictions") && !r["regretted"].is_null())
            std::printf(" %8.4f %10zu %8.2f %10.3f", r["unit_hit_rate"].get<double>(),
                        r["evictions"].get<std::size_t>(), r["mean_evicted_frames"].get<double>(),
                        r["regretted"].get<double>());
        std::printf("\n");
    }
    std::printf("\nhad when asked for by one of cluster_aligned and lru only\n");
    for (const auto& d : row["difference"])
        if (d["units"].get<std::size_t>() > 0)
            std::printf("  %8u frames  %-16s %8zu units of %.2f frames, %.0f %% lately updated\n",
                        d["frames"].get<unsigned>(), d["only"].get<std::string>().c_str(),
                        d["units"].get<std::size_t>(), d["mean_frames"].get<double>(),
                        100 * d["updated"].get<double>());
    std::fflush(stdout);
}

} // namespace bench
