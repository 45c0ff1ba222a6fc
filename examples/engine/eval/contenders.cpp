// SPDX-License-Identifier: MIT
#include "contenders.hpp"

#include "cleanup.hpp"
#include "error.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "run_header.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace eval {

namespace {

/// Returns what the cache wants. Throws bad_input.
engine::cache_wants try_once(engine::cache_options& options, const std::vector<task>& tasks,
                             const char* program) {
    std::map<std::pair<std::size_t, std::size_t>, engine::cache_options> sizes;
    for (const task& t : tasks)
        for (const example& e : t.examples) {
            auto own = sized_for(options, t, e);
            const std::pair size(own.prefill_tokens, own.max_tokens);
            sizes.emplace(size, std::move(own));
        }
    if (sizes.empty()) sizes.emplace(std::pair(options.prefill_tokens, options.max_tokens), options);
    engine::cache_wants wants;
    std::string products;
    for (auto& [size, own] : sizes) {
        own.io = options.io;
        {
            const auto cache = engine::open_or_fall_back(own, program);
            wants = cache->wants(), products = cache->stats().products;
        }
        engine::forget_file();
        options.io = own.io;
    }
    engine::note_products(program, options.policy, products);
    return wants;
}

/// A reference line with too little memory gets twice as much until it opens. When memory is not what it
/// lacks, the first reason is thrown.
engine::cache_wants try_with_more(engine::cache_options& options, const std::vector<task>& tasks,
                                  const char* program) {
    constexpr int doublings = 6;
    const std::size_t asked = options.memory_bytes;
    std::string reason;
    for (int i = 0; i <= doublings; ++i) {
        try {
            return try_once(options, tasks, program);
        } catch (const engine::bad_input& e) {
            if (i == 0) reason = e.what();
            options.memory_bytes *= 2;
        }
    }
    options.memory_bytes = asked;
    throw engine::bad_input(reason);
}

/// The row of a contender that takes no part.
row failed_row(const contender& c, const task& of) {
    row r;
    r.policy = c.options.policy;
    r.task = of.name;
    r.question = of.question();
    r.attend_tokens = c.options.attend_tokens;
    if (c.options.keep_tokens != 0) r.keep_tokens = c.options.keep_tokens;
    r.error = c.error;
    return r;
}

} // namespace

std::vector<std::string> parse_policies(const std::string& list) {
    std::vector<std::string> names;
    if (list == "all") {
        for (const auto name : engine::policy_names()) names.emplace_back(name);
        return names;
    }
    for (const std::string& name : engine::parts_of(list)) {
        engine::require_policy(name, "--policies");
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return names;
}

bool built_in(std::string_view policy) {
    const auto names = engine::policy_names();
    return std::find(names.begin(), names.end(), policy) != names.end();
}

engine::cache_wants try_all(std::vector<contender>& all, std::string& io, const char* program,
                            const std::vector<task>& tasks) {
    engine::cache_wants wants;
    for (contender& c : all) {
        if (c.options.io != "memory") c.options.io = io;
        try {
            const engine::cache_wants own =
                c.reference ? try_with_more(c.options, tasks, program) : try_once(c.options, tasks, program);
            wants.inputs = wants.inputs | own.inputs;
            wants.prefetch = wants.prefetch || own.prefetch;
            if (c.options.io != "memory") io = c.options.io;
        } catch (const engine::bad_input& e) {
            c.error = e.what();
        }
    }
    return wants;
}

void require_any(const std::vector<contender>& all, const std::vector<std::string>& names) {
    std::string reason;
    for (const contender& c : all) {
        const std::string& policy = c.options.policy;
        const bool named = std::find(names.begin(), names.end(), policy) != names.end();
        if (!named || (policy == "full" && names.size() > 1)) continue;
        if (c.error.empty()) return;
        if (reason.empty()) reason = c.error;
    }
    throw engine::bad_input(reason);
}

std::vector<row> run_task(evaluator& measuring, const task& t, std::vector<contender>& all, bool open_loop) {
    std::vector<tally> tallies(all.size());
    const auto is_full = [](const contender& c) { return c.options.policy == "full"; };
    const auto full = static_cast<std::size_t>(std::find_if(all.begin(), all.end(), is_full) - all.begin());
    engine::progress_bar progress(t.name, t.examples.size() * all.size());
    std::size_t done = 0;
    for (const example& e : t.examples) {
        measuring.record(t, e);
        for (std::size_t i = 0; i < all.size(); ++i) {
            contender& c = all[i];
            // Whatever its budget, full attends everything: measured once, shown in every line.
            if (i > full && is_full(c)) {
                tallies[i] = tallies[full];
                c.error = all[full].error;
            } else if (c.error.empty()) {
                try {
                    measuring.measure(t, e, c.options, open_loop, tallies[i]);
                } catch (const std::runtime_error& failure) {
                    c.error = failure.what();
                    c.midway = true;
                }
            }
            progress.update(++done);
        }
    }
    std::vector<row> rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
        rows.push_back(all[i].error.empty() ? tallies[i].to_row(all[i].options, t) : failed_row(all[i], t));
        rows.back().variant = all[i].variant;
    }
    return rows;
}

void require_finished(const std::vector<contender>& all) {
    for (const contender& c : all)
        if (c.midway) throw engine::run_failure(c.options.policy + " failed midway: " + c.error);
}

} // namespace eval
