// SPDX-License-Identifier: MIT
#include "decode.hpp"

#include <kvtl/element.hpp>

#include "decode_runner.hpp"
#include "error.hpp"
#include "made_up_files.hpp"
#include "mapped_file.hpp"
#include "progress.hpp"
#include "random_reads.hpp"
#include "scratch_files.hpp"
#include "size_probe.hpp"
#include "stand_ins.hpp"
#include "workload.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

namespace bench {

namespace {

using json = nlohmann::ordered_json;

/// A policy at a budget.
struct entry {
    std::string policy;
    budgets at;
    bool operator==(const entry&) const = default;
};

std::vector<budgets> budgets_of(const decode_options& o) {
    std::vector<budgets> all;
    for (const std::size_t attend : o.attend_tokens)
        for (const std::size_t keep : o.keep_tokens)
            for (const double mib : o.memory_mib) all.push_back({attend, keep, mib});
    return all;
}

/// Budgets that share a prompt, the one with most memory in front: those that differ in memory only, or each its own.
std::vector<std::vector<budgets>> series_of(const decode_options& o, const std::vector<budgets>& all) {
    std::vector<std::vector<budgets>> series;
    for (const budgets& b : all) {
        const bool joins = o.keep_file && !series.empty() &&
                           series.back().front().attend_tokens == b.attend_tokens &&
                           series.back().front().keep_tokens == b.keep_tokens;
        if (!joins) series.emplace_back();
        series.back().push_back(b);
    }
    for (auto& some : series)
        std::stable_sort(some.begin(), some.end(),
                         [](const budgets& a, const budgets& b) { return a.memory_mib > b.memory_mib; });
    return series;
}

/// A policy has a row for each value of the budgets that it has, not of the others.
bool is_repeated(const decode_options& o, const std::string& policy, const budgets& b) {
    const engine::cache_wants wants = wants_of(policy);
    const bool attends = wants.retrieves || !wants.evicts || b.keep_tokens == 0;
    return (!wants.evicts && b.keep_tokens != o.keep_tokens.front()) ||
           (!attends && b.attend_tokens != o.attend_tokens.front());
}

workload_request request_of(const decode_options& o) {
    return {.text = o.workload,
            .shape = o.shape,
            .prompt_tokens = o.context,
            .tokens = most_tokens(o, o.runs(o.devices.size())),
            .sequences = o.batch,
            .rope_base = o.rope_base,
            .rope_neighbours = o.rope_neighbours};
}

/// Devices that one opened cache can stand for: those slower than the real one, or those imitated in memory.
struct device_group {
    bool simulated = false;
    std::vector<kvtl::device_profile> devices;
};

std::vector<device_group> group_devices(const decode_options& o, const std::optional<device_probe>& native) {
    device_group real{.simulated = false, .devices = {}}, imitated{.simulated = true, .devices = {}};
    for (const auto& name : o.devices) {
        const kvtl::device_profile& d = *kvtl::find_device(name);
        const bool faster =
            native && d.limited() && (d.mb_per_s > native->mb_per_s_128k || d.iops > native->iops_4k);
        (faster ? imitated : real).devices.push_back(d);
    }
    std::vector<device_group> groups;
    for (auto& g : {real, imitated})
        if (!g.devices.empty()) groups.push_back(g);
    return groups;
}

std::string gib(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GiB", bytes / (1 << 30));
    return text;
}

resources free_resources(const decode_options& o, bool in_memory) {
    return {.disk = in_memory ? 0 : free_disk_bytes(o.kv_path), .memory = available_memory_bytes()};
}

/// Steps until every runner has had its share. The rows of a token are generated once, outside the timers,
/// and given to all runners that are there; with one runner that is all there is to it.
void run_steps(const std::vector<runner*>& all, step_rows& data, workload& w, engine::progress_bar& bar) {
    for (bool busy = true; busy;) {
        busy = false;
        std::size_t next = 0; // the token behind the one that the rows are of
        for (runner* const r : all) {
            if (r->finished()) continue;
            busy = true;
            r->attempt([&] {
                if (next != r->position() + 1) {
                    next = 0;
                    data.generate(r->position()), next = r->position() + 1;
                }
                const bool recall = r->samples_recall();
                r->step(data, recall);
                if (recall) r->sample_recall(w, data);
            });
            bar.update(r->done());
        }
    }
}

} // namespace

resources needs(const decode_options& o, const std::vector<std::string>& policies, bool in_memory) {
    const std::size_t tokens = most_tokens(o, o.runs(o.devices.size()));
    const kvtl::shape& s = o.shape;
    const double entries = static_cast<double>(tokens) * static_cast<double>(o.batch) * s.layers * s.kv_heads;
    const double raw = entries * s.head_dim * 2 * sizeof(kvtl::f16);
    const double rows = static_cast<double>(o.batch) * s.layers * s.head_dim *
                        (2.0 * s.query_heads + 3.0 * s.kv_heads) * sizeof(float);
    const double turns =
        static_cast<double>(tokens) * s.head_dim * sizeof(float); // cos and sin of the workload
    constexpr double program = 64 << 20;
    resources need{.disk = 0, .memory = rows + turns + program};
    const double bound = *std::max_element(o.memory_mib.begin(), o.memory_mib.end()) * (1 << 20);
    for (const auto& policy : policies) {
        if (policy == "full") {
            need.memory += 1.1 * raw; // everything is window
            continue;
        }
        need.memory += bound;
        if (const auto wants = wants_of(policy); wants.evicts) { // the prompt comes in one chunk
            need.memory += static_cast<double>(o.context) * s.head_dim * (s.query_heads + 2.0 * s.kv_heads) *
                           sizeof(float);
            if (!wants.retrieves) continue; // it has no file
        }
        // What is stored may be smaller than what is said of 16-bit entries; not every policy can say without its files.
        engine::cache_options one = options_of(o, policy, budgets_of(o).front(), o.runs(o.devices.size()));
        one.io = "memory";
        const auto known = least_memory_of(one);
        const double file = known ? static_cast<double>(known->storage) : 2.5 * raw;
        // In memory, pages that nobody wrote cost nothing.
        (in_memory ? need.memory : need.disk) += in_memory ? .6 * file : file;
    }
    return need;
}

std::string too_large(const decode_options& o, const std::string& policy, const resources& free,
                      bool in_memory) {
    const resources need = needs(o, {policy}, in_memory);
    if (need.memory <= 0.8 * free.memory && need.disk <= 0.8 * free.disk) return {};
    return policy + " takes up to " + gib(need.memory) + " of memory and " + gib(need.disk) +
           " of disk; 80 % of what is free is " + gib(0.8 * free.memory) + " and " + gib(0.8 * free.disk);
}

std::vector<std::vector<std::string>> plan_rounds(const decode_options& o, const resources& free,
                                                  bool in_memory) {
    std::vector<std::vector<std::string>> rounds;
    for (const auto& policy : o.policies) {
        if (const std::string why = too_large(o, policy, free, in_memory); !why.empty())
            throw engine::bad_input(why);
        if (o.interleave && !rounds.empty()) {
            auto together = rounds.back();
            together.push_back(policy);
            const resources need = needs(o, together, in_memory);
            if (need.memory <= 0.8 * free.memory && need.disk <= 0.8 * free.disk) {
                rounds.back() = together;
                continue;
            }
        }
        rounds.push_back({policy});
    }
    return rounds;
}

std::vector<engine::least_row> least_memory(const decode_options& o) {
    const workload_request request = request_of(o);
    made_up_files files(o, request);
    std::vector<engine::least_row> rows;
    for (const auto& policy : o.policies)
        for (const budgets& b : budgets_of(o)) {
            if (is_repeated(o, policy, b) || b.memory_mib != o.memory_mib.front()) continue;
            std::string with = std::to_string(b.attend_tokens) + " attended";
            if (b.keep_tokens != 0 && wants_of(policy).evicts)
                with += ", " + std::to_string(b.keep_tokens) + " kept";
            runner one(o, policy, b, true, o.runs(o.devices.size()), o.kv_path);
            rows.push_back({policy, with, one.least(files)});
        }
    return rows;
}

json run_decode(const decode_options& asked, const std::function<void(const json&)>& row_done,
                const std::function<void()>& begun) {
    decode_options o = asked;
    const bool memory_only = o.io == "memory";
    // Before the probe writes: whether any policy fits the machine.
    const auto fits = [&](const std::string& policy) {
        return too_large(o, policy, free_resources(o, memory_only), memory_only).empty();
    };
    if (std::none_of(o.policies.begin(), o.policies.end(), fits))
        static_cast<void>(plan_rounds(o, free_resources(o, memory_only), memory_only)); // says why
    const workload_request request = request_of(o);
    const auto w = make_workload(request);
    o.rope_neighbours = w->neighbours();

    // The probe tells what the device can do, and by its change whether the machine was busy with other
    // things.
    std::optional<random_reader> reader;
    if (!memory_only) {
        reader.emplace(random_reader::config{.path = o.kv_path + ".probe", .io = o.io});
        o.io = reader->io(); // what the kernel refuses here it refuses the caches
    }
    const auto take_probe = [&]() -> std::optional<device_probe> {
        if (!reader) return std::nullopt;
        return probe(*reader);
    };
    // The same of as many queues as there are threads, in a file of its own: it is written here, before policies run for an
    // hour, and its queues' memory is locked only while they read.
    std::optional<scratch_file> shared;
    random_reader::config of_threads{
        .path = {}, .io = o.io, .queues = static_cast<unsigned>(o.threads), .keep_file = true};
    if (reader && o.threads > 1) {
        shared.emplace(o.kv_path + ".probes", scratch_file::owner::ours);
        of_threads.path = shared->path();
        static_cast<void>(random_reader(of_threads));
        of_threads.written = true;
    }
    const auto take_both = [&]() -> device_probes {
        device_probes p{take_probe(), {}};
        if (shared) {
            random_reader all(of_threads);
            p.threads = probe_together(all);
        }
        return p;
    };
    const auto groups = group_devices(o, take_probe());
    made_up_files files(o, request);
    const auto make_runner = [&](const device_group& group, const std::string& policy, const budgets& b,
                                 std::size_t place) {
        const std::string path = o.kv_path + (place == 0 ? "" : "." + std::to_string(place));
        return std::make_unique<runner>(o, policy, b, group.simulated || memory_only,
                                        o.runs(group.devices.size()), path);
    };
    const std::vector<budgets> all_budgets = budgets_of(o);
    const auto repeats = [&](const std::string& policy, const budgets& b) {
        return is_repeated(o, policy, b);
    };
    // What cannot be opened, or is too large for the machine, is known before the others run for an hour: rows that say why.
    json rows = json::array();
    const auto refuse = [&](const device_group& group, const std::string& policy, const budgets& b,
                            const std::string& why) {
        for (const auto& device : group.devices)
            rows.push_back(failed_row(o, policy, b, device, group.simulated, why));
    };
    std::vector<std::vector<entry>> able(groups.size()); // what each group of devices runs
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const bool in_memory = groups[g].simulated || memory_only;
        for (const budgets& b : all_budgets)
            for (const auto& policy : o.policies) {
                if (repeats(policy, b)) continue;
                std::string why = too_large(o, policy, free_resources(o, in_memory), in_memory);
                if (policy == mapped_file_name &&
                    std::any_of(groups[g].devices.begin(), groups[g].devices.end(),
                                [](const kvtl::device_profile& d) { return d.limited(); }))
                    why = "mapped_file: page faults cannot be slowed down; valid: --device native";
                try {
                    if (why.empty()) make_runner(groups[g], policy, b, 0)->open(files);
                } catch (const engine::bad_input& e) {
                    why = e.what();
                }
                if (why.empty())
                    able[g].push_back({policy, b});
                else
                    refuse(groups[g], policy, b, why);
            }
    }
    if (std::all_of(able.begin(), able.end(), [](const auto& some) { return some.empty(); }))
        throw engine::bad_input(rows.at(0)["error"].get<std::string>());
    if (begun) begun();
    for (const json& row : rows)
        if (row_done) row_done(row);

    step_rows data(*w, o.batch, seed_of(o.workload));
    const auto fill = [&](runner& r, const std::string& what) {
        engine::progress_bar bar(what, o.batch * o.context);
        r.attempt([&] { r.prefill(*w, bar); });
        data.with_guess |= r.wants().prefetch;
        data.with_k_pre |= contains(r.wants().inputs, kvtl::engine_input::k_pre);
    };
    // Each size with a prompt of its own, on the first of the group's devices.
    const auto choose_size = [&](const device_group& group, const entry& e) -> size_choice {
        // What was set for a policy is not tried away.
        const bool set = std::any_of(o.settings.begin(), o.settings.end(),
                                     [&](const engine::setting& given) { return given.policy == e.policy; });
        if (!o.fit || set || o.size_candidates < 2 || e.policy == mapped_file_name ||
            !wants_of(e.policy).retrieves)
            return {};
        const auto opened = [&](unsigned turns) {
            auto r = make_runner(group, e.policy, e.at, 0);
            r->set_size(turns);
            try {
                r->open(files);
            } catch (const engine::bad_input&) {
                r.reset();
            }
            return r;
        };
        if (!opened(1)) return {}; // there is nothing to choose from
        std::vector<tried_size> tried;
        for (unsigned turns = 0; turns < o.size_candidates; ++turns) {
            const auto one = opened(turns);
            if (!one) break;
            fill(*one, e.policy + ": size " + std::to_string(turns + 1));
            one->begin_run(group.devices.front(), o.compute_us_per_layer.front(),
                           std::min(o.steps, decode_options::probe_steps));
            engine::progress_bar bar(e.policy + ": size " + std::to_string(turns + 1),
                                     decode_options::probe_steps + decode_options::warm_up);
            run_steps({one.get()}, data, *w, bar);
            if (one->failed()) break; // its row will say why
            tried.push_back(one->tried());
        }
        return choice_of(tried);
    };
    const auto measure = [&](const device_group& group, const std::vector<runner*>& all) {
        for (const kvtl::device_profile& device : group.devices)
            for (const double compute_us : o.compute_us_per_layer) {
                const device_probes before = take_both();
                for (runner* const r : all) r->begin_run(device, compute_us, o.steps);
                engine::progress_bar bar(std::string(device.name) + ": steps",
                                         o.steps + decode_options::warm_up);
                run_steps(all, data, *w, bar);
                bar.clear();
                const device_probes after = take_both();
                for (runner* const r : all) {
                    rows.push_back(r->row(before, after));
                    if (row_done) row_done(rows.back());
                }
            }
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const device_group& group = groups[g];
        const bool in_memory = group.simulated || memory_only;
        const auto is_able = [&](const std::string& policy, const budgets& b) {
            return std::find(able[g].begin(), able[g].end(), entry{policy, b}) != able[g].end();
        };
        for (const std::vector<budgets>& series : series_of(o, all_budgets)) {
            const budgets& first = series.front();
            for (const budgets& b : series)
                for (const auto& policy : o.policies)
                    if (is_able(policy, b) && !is_able(policy, first)) {
                        refuse(group, policy, b,
                               policy +
                                   ": --keep-file opens it with the largest memory first, which cannot be");
                        if (row_done) row_done(rows.back());
                    }
            decode_options at = o;
            std::erase_if(at.policies, [&](const std::string& policy) { return !is_able(policy, first); });
            for (const auto& policies : plan_rounds(at, free_resources(o, in_memory), in_memory)) {
                std::vector<std::unique_ptr<runner>> all;
                std::vector<size_choice> sizes;
                for (const auto& policy : policies) sizes.push_back(choose_size(group, {policy, first}));
                for (std::size_t i = 0; i < policies.size(); ++i) {
                    all.push_back(make_runner(group, policies[i], first, i));
                    all.back()->set_size(sizes[i].turns, std::move(sizes[i].tried));
                    all.back()->attempt([&] { all.back()->open(files); });
                }
                for (std::size_t i = 0; i < all.size(); ++i) fill(*all[i], policies[i] + ": prompt");
                for (const budgets& b : series) {
                    std::vector<runner*> able_now;
                    for (std::size_t i = 0; i < policies.size(); ++i) {
                        if (!is_able(policies[i], b)) continue; // its row has said why
                        try {
                            all[i]->resize(b);
                            able_now.push_back(all[i].get());
                        } catch (const engine::bad_input& e) {
                            const std::size_t had = rows.size();
                            refuse(group, policies[i], b, e.what());
                            for (std::size_t r = had; row_done && r < rows.size(); ++r) row_done(rows[r]);
                        }
                    }
                    measure(group, able_now);
                }
            }
        }
    }
    return rows;
}

void require_finished(const json& rows) {
    for (const json& row : rows)
        if (row.contains("midway"))
            throw engine::run_failure(row["policy"].get<std::string>() +
                                      " failed midway: " + row["error"].get<std::string>());
}

} // namespace bench
